"""What plug-ins must offer, and the records that cross processes. Imports no torch.

`Any` stands for tensors and modules: the parent checks these signatures without ever importing torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from e2e.schema.kernel import Kernel
from e2e.schema.record import Record
from e2e.schema.result import Result


class Built(Record):
    """A built kernel, as the parent hands it to workers."""

    kernel: Kernel
    builder: str
    """Name of the builder, which also binds it."""
    artifact: str
    """Absolute path of the shared library, cubin or Python source."""
    seconds: float
    cached: bool
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
    """One call of the op: tensors in the op's order (None where an optional one is absent), then scalars."""

    tensors: tuple[Any, ...]
    scalars: tuple[Any, ...]


def outputs_of(value: Any) -> tuple[Any, ...]:
    """What a call of an op returned, as a tuple of tensors."""
    return tuple(value) if isinstance(value, tuple | list) else (value,)


OUT = "out"
"""Name of an op's output in a manifest, and among the names of `Swaps`."""
Swaps = Mapping[str, tuple[int, int]]
"""Two dimensions by the name of a tensor: in another layout they stand in each other's place."""


class Op(Protocol):
    """The operation that is replaced (worker side; one file in `e2e/ops/`).

    Some members are optional. `variants(dtype, device, seed)` gives named calls of other widths and scalars than the
    example's, for checks without a workload; in a model its sites fix both. `parameter_names` are those of its tensors
    that are the site's own, as weights are: a kernel may prepare them. `layouts` has the `Swaps` of every other
    layout in which a kernel may take the op's tensors.

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
