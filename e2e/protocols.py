"""What plug-ins must offer, and the records that cross processes. Imports no torch.

`Any` stands for tensors and modules: the parent checks these signatures without ever importing torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from e2e.schema.evidence import Answer, ModelFacts
from e2e.schema.kernel import Kernel
from e2e.schema.record import Record
from e2e.schema.result import Result
from e2e.schema.workload import Cell, TrainSpec, Workload


class Built(Record):
    """A built kernel, as the parent hands it to workers."""

    kernel: Kernel
    builder: str
    """Name of the builder, which also binds it."""
    artifact: str
    """Absolute path of the shared library, cubin or Python source."""
    seconds: float
    cached: bool
    compiler: str | None = None
    """Its name and version; None where nothing is compiled."""
    command: str | None = None
    log: str = ""
    resources: list[str] = []


@dataclass(frozen=True)
class BuildTarget:
    """What to build for."""

    device: str
    """`cpu` or `cuda`."""
    arch: str | None
    """CUDA architecture such as `90`; None on a CPU, and where nothing but the flags says what to build for."""
    cache: Path
    """Folder of built kernels; one sub-folder per content hash."""
    timeout_s: float
    sanitize: bool = False
    """Whether to build for sanitizers, slower and with lines: part of what a build is found by."""


class Builder(Protocol):
    """Builds in the parent (compilers only, never the candidate's code), binds in a worker."""

    def build(self, kernel: Kernel, target: BuildTarget) -> Built:
        """Compile, or find in the cache.

        Raises:
            CandidateError: `build_failed` or `timed_out`, with the compiler's first error and its line.
            EnvironmentFault: no compiler, no toolkit; the message says what to install.
        """
        ...

    def bind(self, built: Built, op: Op, dtype: str) -> Callable[..., Any]:
        """In a worker: a callable taking the op's tensors and scalars in order and returning the output.

        Raises:
            CandidateError: `bind_failed`.
        """
        ...


class Format(Protocol):
    """Reads one way of describing a kernel."""

    def read(self, spec: str, *, op: str | None) -> Kernel | None:
        """The kernel, or None when this is not that format.

        Raises:
            UsageError: it is that format, but damaged; the message has the line.
        """
        ...


class Report(Protocol):
    """One rendering of a stored result."""

    def render(self, result: Result) -> str:
        """Text of the report."""
        ...


@dataclass(frozen=True)
class Site:
    """One place where the op happens: a module, its owner, whose `forward` is the op or calls it."""

    fqn: str
    module: Any
    scalars: Mapping[str, Any]
    """Scalar arguments read from the module, such as `eps`."""
    incompatible: str | None = None
    """Why the kernel's op cannot stand here, in words."""
    is_declared: bool = True
    """Whether the module says that the op happens there; else a step has to, and where none does is no site."""


@dataclass(frozen=True)
class OpCall:
    """One call of the op: tensors in the op's order (None where an optional one is absent), then scalars.

    Where the op takes lists of tensors, so does the call, as tuples.
    """

    tensors: tuple[Any, ...]
    scalars: tuple[Any, ...]


def outputs_of(value: Any) -> tuple[Any, ...]:
    """What a call of an op returned, as a tuple of tensors."""
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def each(argument: Any) -> tuple[Any, ...]:
    """Tensors of one argument of a call: none, one, or those of a list."""
    if argument is None:
        return ()
    return tuple(argument) if isinstance(argument, tuple | list) else (argument,)


def mapped(function: Callable[[Any], Any], argument: Any) -> Any:
    """The argument with `function` applied to every tensor in it."""
    if isinstance(argument, tuple | list):
        return tuple(function(item) for item in argument)
    return None if argument is None else function(argument)


def tensors_of(call: OpCall) -> list[Any]:
    """Every tensor of a call, one after the other."""
    return [tensor for argument in call.tensors for tensor in each(argument)]


def written_by(op: Op) -> frozenset[int]:
    """Places of the arguments that a call of the op updates in place, and returns; none for most ops."""
    return frozenset(op.tensor_names.index(name) for name in getattr(op, "in_place", ()))


def updated(op: Op, arguments: Iterable[Any]) -> tuple[Any, ...]:
    """What a call of an op that works in place returns: the tensors of those arguments, one after the other."""
    written = written_by(op)
    return tuple(tensor for place, item in enumerate(arguments) if place in written for tensor in each(item))


def output_count(op: Op) -> int:
    """How many tensors the op returns."""
    return len(re.findall(r"\bTensor\b", op.schema.rpartition("->")[2]))


OUT = "out"
"""Name of an op's output in a manifest, and among the names of `Swaps`."""
Swaps = Mapping[str, tuple[int, int]]
"""Two dimensions by the name of a tensor: in another layout they stand in each other's place."""


class Op(Protocol):
    """The operation that is replaced (worker side; one file in `e2e/ops/`).

    Some members are optional. `variants(dtype, device, seed)` gives named calls of other widths and scalars than the
    example's, for checks without a workload; in a model its sites fix both. `parameter_names` are those of its tensors
    that are the site's own, as weights are: a kernel may prepare them. `layouts` has the `Swaps` of every other
    layout in which a kernel may take the op's tensors. `in_place` are the tensors that a call updates: kernels return
    nothing, `own` and alternatives what `updated` says; reference and mutants return the same anew, and change nothing.
    `read_in_part` are tensors of which a call may read a part only, such as a table's rows: no roofline counts them.

    A *call* is the op's tensors, then its scalars, in the order of their names. What a call returns is one tensor, or
    a tuple of them where `schema` says so.
    """

    name: str
    tensor_names: tuple[str, ...]
    scalar_names: tuple[str, ...]
    schema: str
    """Arguments and returns as torch writes them for its operators, without the name."""
    alternatives: Mapping[str, Callable[..., Any]]
    """PyTorch paths a user could take today, by name; same call as the op."""

    def find_sites(self, model: Any) -> list[Site]:
        """Every place where the op may happen, by what modules declare and do."""
        ...

    def own(self, site: Site) -> Callable[..., Any]:
        """What the site's own code computes for any call, with the call's tensors in the place of the site's."""
        ...

    def forward_with(self, site: Site, function: Callable[..., Any] | None) -> Callable[..., Any]:
        """The owner's `forward(self, ...)` with `function` in the op's place; None: its own code, put there alike."""
        ...

    def reference(self, *call: Any) -> Any:
        """The op in plain PyTorch maths; exact in float64."""
        ...

    def allocate(self, *call: Any) -> Any:
        """Uninitialised outputs of one call; on fake tensors, what a compiler may know about them."""
        ...

    def dims(self, call: OpCall) -> dict[str, int | str]:
        """Named dimensions and `dtype` of one call, for constraints and launches."""
        ...

    def example(self, dtype: str, device: str, seed: int) -> OpCall:
        """A typical call with drawn values, for a check without a workload.

        Raises:
            UsageError: the op has no calls apart from a model's.
        """
        ...

    def edge_calls(self, call: OpCall, seed: int) -> Iterable[tuple[str, OpCall]]:
        """Named hard inputs of the same kind as `call`."""
        ...

    def mutants(self) -> Mapping[str, Callable[..., Any]]:
        """Kernels that are wrong on purpose; every one must be caught."""
        ...


def parameters_of(op: Op) -> tuple[str, ...]:
    """Those of the op's tensors that are the site's own; an op need not say so."""
    return tuple(getattr(op, "parameter_names", ()))


Batch = tuple[Any, ...]
"""Tensors of one call of the model."""


class Session(Protocol):
    """A built model with its batches and its step, for one cell on one device (worker side; made by a task).

    Everything is a function of the seeds: two processes that open a session alike have the same model, batches and
    state.

    Right and wrong are decided row by row, so the model must treat every row of a batch by itself: the reference, one
    precision higher, computes `answers` (for the model check) and `step_answers` (for an arm's step) of one row at a
    time.

    Two members are optional. `conditions(seed)` gives named calls unlike the step's own (padding, a cache, late
    positions), every tensor with the rows first; `answers_under(model, *inputs)` gives (B, S, width) for one of them,
    zeros where nothing is compared.
    """

    cell: Cell
    device: str
    model: Any
    """In eval mode; parameters ask for gradients only where the step is `train`."""
    facts: ModelFacts
    """What was really built, for the report."""
    answer: Answer
    """What an answer is."""

    def prepare(self, seed: int) -> None:
        """Make the state that all arms share, such as a cache; called once, before the first batch."""
        ...

    def batch(self, seed: int) -> Batch:
        """Fresh inputs of one step, on the device; no two of thousands of seeds may give the same."""
        ...

    def reset(self) -> None:
        """Before every step of every arm, and inside its time: the state goes back to where `prepare` left it."""
        ...

    def program(self, model: Any) -> Any:
        """The step of one arm, as a module of that model: takes a batch, returns a tuple of tensors.

        They are what the step hands to its user. All are fingerprinted; the first is compared with the reference and,
        arm with arm, so that it holds zeros where nothing means anything (padding).
        """
        ...

    def exam(self, tokens: int, seed: int) -> list[Batch]:
        """Inputs of the model check, call by call, of about so many tokens; the step's own shapes where they fit.

        Shapes:
            every tensor has the rows first.
        """
        ...

    def answers(self, model: Any, *inputs: Any) -> Any:
        """The model's answers to one call of the exam, without gradients; zeros where nothing is compared.

        Shapes:
            -> (B, ..., width).
        """
        ...

    def count(self, *inputs: Any) -> int:
        """Answers to one call of the exam that are compared: tokens that are not padding, images."""
        ...

    def labels(self, *inputs: Any) -> Any | None:
        """What should have been answered to one call of the exam, where the data say so; None where they do not.

        Shapes:
            -> (answers,), whole numbers below the width; -1 where there is none.
        """
        ...

    def step_inputs(self, seed: int) -> Batch:
        """All that the step of that batch depends on: the batch, and what the state stands for.

        Shapes:
            every tensor has the rows first.
        """
        ...

    def step_answers(self, model: Any, *inputs: Any) -> Any:
        """A step's first output on these inputs, computed without the state and without gradients."""
        ...


class TrainingSession(Session, Protocol):
    """A session whose step is `train`.

    `batch` has a tensor for every part that gradients are accumulated over; `program(model)` takes one of them and
    returns its loss, as a tuple of one scalar.
    """

    train: TrainSpec
    """What a step is beyond that."""

    def loss(self, model: Any, batch: Batch) -> Any:
        """Mean loss of one training step in the model's own precision, with gradients."""
        ...


class Task(Protocol):
    """A kind of workload: one file in `e2e/tasks/`, or `path/to/file.py:Task`."""

    steps: tuple[str, ...]
    """Kinds of step that it has, as a literal: read without running the file."""

    def open(self, workload: Workload, cell: Cell, *, root: Path, device: str, seed: int) -> Session:
        """Build the session; paths in the workload are relative to `root`.

        Raises:
            UsageError: the workload does not fit.
            EnvironmentFault: model or data cannot be reached.
        """
        ...


class Progress(Protocol):
    """What the pipeline tells people while it runs."""

    def stage(self, name: str, detail: str = "") -> None:
        """A stage, or a part of one, begins."""
        ...

    def note(self, text: str) -> None:
        """Something is known now: a choice, a ceiling, a provisional range."""
        ...

    def advance(self, done: int, total: int, what: str, left_s: float | None = None) -> None:
        """How far a long part is; called between blocks only, so that nothing runs while a clock does."""
        ...
