"""Worker side: every way to run the step, each in its own module tree; in inference over shared weights."""

from __future__ import annotations

import copy
import dataclasses
import gc
import inspect
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn

from e2e import registry
from e2e.arm_names import WITH_KERNELS, ArmName, alternative_for, places_of
from e2e.binding import compiled_training, erase_marks, in_training, registered, sparing
from e2e.errors import CandidateError
from e2e.headroom import recorded, replay
from e2e.layouts import InLayout, Relaid
from e2e.measure.fingerprint import Ring
from e2e.measure.pause import Pause
from e2e.operators import Interception, interceptions_in, replace
from e2e.patch import Patch, Standing, copy_sharing_weights, everywhere, sites_in
from e2e.prepared import InPrepared, Prepared
from e2e.protocols import Built, Op, Site, updated, written_by
from e2e.schema.words import Mode, Role
from e2e.schema.workload import TrainSpec
from e2e.scout import Replica, placed
from e2e.trainer import Trainer
from e2e.units import Seconds

REGION = "Torch-Compiled Region"
"""What torch calls a compiled region in a profile; an arm called compiled must have entered one."""
OPERATOR = "aten:"
"""Start of the name of an op that is one of torch's own operators."""
SLOTS = 4096
"""Steps whose inputs and fingerprints are held at once."""


@dataclass(frozen=True)
class Bound:
    """A kernel that can be called."""

    call: Callable[..., Any]
    sha256: str
    writes: frozenset[int] = frozenset()
    """Places of the arguments that it writes to."""
    is_python: bool = True
    """Whether autograd sees through it."""
    borrowed: bool = False
    """Whether it borrows the op's own backward."""

    def in_training(self, op: Op) -> Callable[..., Any]:
        """As an eager training step calls it; a patch brings its own gradients, and an optimizer has none."""
        if isinstance(self.call, Replica) or written_by(op):
            return self.call
        return in_training(op, self.call, is_python=self.is_python, borrowed=self.borrowed, writes=self.writes)

    def in_compiled_training(self, op: Op, device: str) -> tuple[Callable[..., Any], Any]:
        """See compiled_training."""
        return compiled_training(
            op,
            self.call,
            sha256=self.sha256,
            device=device,
            is_python=self.is_python,
            borrowed=self.borrowed,
            writes=self.writes,
        )


def bound_to(built: Built, op: Op, dtype: str) -> Bound:
    """The built kernel, loaded into this process.

    Raises:
        CandidateError: `bind_failed` or `dtype_not_supported`.
    """
    kernel, manifest = built.kernel, built.kernel.manifest
    unknown = [name for name in manifest.mutates if name not in op.tensor_names]
    if unknown:
        known = ", ".join(op.tensor_names)
        raise CandidateError(
            f"{kernel.shown}: mutates: {op.name} has no tensor {unknown[0]!r}; it has: {known}", code="bind_failed"
        )
    return Bound(
        _returning(op, _call_of(built, op, dtype)),
        kernel.sha256,
        frozenset(op.tensor_names.index(name) for name in manifest.mutates) | written_by(op),
        is_python=manifest.is_python,
        borrowed=manifest.borrows_gradients,
    )


def _returning(op: Op, call: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel that works in place, as its op's calls do, returns what it has updated."""
    if not written_by(op):
        return call

    def returning(*args: Any) -> tuple[Any, ...]:
        call(*args)
        return updated(op, args[: len(op.tensor_names)])

    return returning


def _call_of(built: Built, op: Op, dtype: str) -> Callable[..., Any]:
    builder, manifest = registry.load("builders", built.builder), built.kernel.manifest
    if manifest.prepare is not None:
        make = builder.prepare(built, op, dtype)
        prepared = InPrepared(op, [name for item in manifest.prepared for name in item])
        return Prepared(prepared, builder.bind(built, prepared, dtype), make, shown=built.kernel.shown)
    swaps = getattr(op, "layouts", {}).get(manifest.layout)
    if swaps is None:
        call: Callable[..., Any] = builder.bind(built, op, dtype)
        return call
    view = InLayout(op, swaps)
    return Relaid(view, builder.bind(built, view, dtype))


@dataclass(frozen=True)
class Candidate:
    """The bound kernel and where it goes."""

    kernel: Bound
    fqns: frozenset[str]
    """Sites it stands at; the others keep the baseline op (declared constraints)."""


@dataclass(frozen=True)
class Part:
    """An op, the sites that compute it, and what may stand there."""

    op: Op
    sites: Sequence[Site]
    candidate: Candidate | None = None
    """None in a process that holds no candidate, or leaves this kernel out."""
    adopted: Mapping[str, Bound] = field(default_factory=dict)
    """Kernels adopted earlier, which the policy names as opponents; by their arms' alternative."""

    @property
    def usable(self) -> list[Site]:
        """Where the candidate stands; without one, every site."""
        return [site for site in self.sites if self.candidate is None or site.fqn in self.candidate.fqns]


@dataclass
class Arm:
    """A prepared arm: call `program(*batch)`."""

    name: ArmName
    program: Callable[..., tuple[Tensor, ...]]
    backend: CountingBackend | None
    fixed_seed: int | None = None
    """Headroom arms replay one batch's outputs, so they always run that batch."""
    pause: Pause | None = None
    """What every step of a planted arm waits for as well."""
    trainer: Trainer | None = None
    """Of a training arm, whose `program` gives the loss of one batch."""

    def begin(self) -> None:
        """Before steps that count as the first ones: training starts from the snapshot, inference keeps no state."""
        if self.trainer is not None:
            self.trainer.restore()

    def end(self) -> None:
        """After them."""
        if self.trainer is not None:
            self.trainer.release()


class CountingBackend:
    """Inductor, with a look at each graph on its way: how many graphs, and how often each kernel is in them."""

    def __init__(self, mode: Mode, traces: Callable[[Any], Counter[int]]) -> None:
        """`traces` finds the kernels in a graph: how often each, by its number."""
        self._inductor = torch._TorchCompileInductorWrapper(None if mode is Mode.COMPILE else mode.value, None, False)
        self._traces = traces
        self.graphs = 0
        self.nodes: Counter[int] = Counter()
        self.watched: Mapping[Any, int] = {}
        """Kernels as registered ops, and their numbers."""
        self.interceptions: Mapping[str, Interception] = {}
        """What stands where the graph calls an operator, by the operator's owner."""
        self.placed: list[Interception] = []

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.graphs += 1
        parts = [item for item in graph.modules() if isinstance(item, fx.GraphModule)]  # a Function's are inside
        for part in parts:
            self.nodes += self._traces(part.graph)
            erase_marks(part)
        if self.interceptions:
            placed = replace(graph, self.interceptions)
            self.nodes += Counter(self.watched[item.function] for item in placed if item.function in self.watched)
            self.placed += placed
        return self._inductor(graph, inputs)


class GraphedStep:
    """Eager code captured once in a CUDA graph: a call copies the inputs in and replays it.

    Outputs are the same tensors every time, overwritten by the next replay.
    """

    def __init__(self, program: nn.Module, batch: tuple[Tensor, ...], *, before: Callable[[], None]) -> None:
        self._inputs = tuple(tensor.clone() for tensor in batch)
        self._graph = torch.cuda.CUDAGraph()
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(aside):  # lazy set-up must not happen while capturing
            for _ in range(_STEPS_BEFORE_CAPTURE):
                before()
                program(*self._inputs)
        torch.cuda.current_stream().wait_stream(aside)
        before()
        with torch.no_grad(), torch.cuda.graph(self._graph):
            self._outputs = program(*self._inputs)

    def __call__(self, *batch: Tensor) -> tuple[Tensor, ...]:
        torch._foreach_copy_(self._inputs, batch)
        self._graph.replay()
        outputs: tuple[Tensor, ...] = self._outputs
        return outputs


_STEPS_BEFORE_CAPTURE = 3


class Arena:
    """All arms of one worker."""

    def __init__(
        self,
        session: Any,
        parts: Sequence[Part],
        *,
        transfer: bool = False,
    ) -> None:
        """No two parts have a site in common. `transfer`: inputs wait on the host, and every step begins by moving them
        to the device.
        """
        self._transfer = transfer
        self._session = session
        self._train: TrainSpec | None = getattr(session, "train", None)
        self._parts = parts
        self._registered: dict[str, tuple[Callable[..., Any], Any]] = {}
        """By hash of the kernel: what stands at its sites, and the operator that a graph of it holds."""
        self._captured_calls: Counter[str] = Counter()
        """By site."""
        self._arms: dict[str, Arm] = {}
        self._ring = Ring(SLOTS, session.device)

    def turn_to(self, op: Op, sites: list[Site]) -> None:
        """Arms of another op from now on; those of the model as it is stay."""
        self._parts = [Part(op, sites)]
        own = {name: arm for name, arm in self._arms.items() if arm.name.role is Role.BASELINE}
        self._arms = {name: arm for name, arm in own.items() if arm.name.alternative is None}

    def program(self, name: str) -> Callable[..., Any]:
        """What a step of the arm calls: for an eager one a module."""
        return self._arms[name].program

    def prepare(self, name: str, *, seed: int, profiled: bool = True) -> dict[str, Any]:
        """Build, compile and run an arm's first steps; what is known about it afterwards."""
        arm_name = ArmName.parse(name)
        model = self._tree(arm_name, seed)
        program = self._session.program(model)
        backend = None
        run: Callable[..., Any] = program
        if arm_name.mode.is_compiled:
            backend = CountingBackend(arm_name.mode, self._traces(arm_name, model))
            backend.watched = self._watched(0)
            backend.interceptions = interceptions_in(model)
            run = _compiled(program, backend)
        arm = Arm(arm_name, run, backend, seed if arm_name.role is Role.HEADROOM else None)
        if self._train is not None:
            arm.trainer = Trainer(model, self._source(arm_name), self._train)
        self._arms[name] = arm
        prepare_s = self._made_ready(arm_name, seed)
        start = time.perf_counter()
        if arm_name.mode is Mode.CUDA_GRAPH:
            self._captured_calls.clear()
            first = self._moved(self.batches(arm, [seed])[0])
            arm.program = GraphedStep(program, first, before=self._before_capture)
        broken = self._first_step(arm, program, seed)
        if backend is not None:
            _need_all(backend)
        first_step_s = time.perf_counter() - start
        self.run(name, seeds=[seed + 1, seed + 2])
        found = {"first_step_s": first_step_s, "graph_breaks": broken, "prepare_s": prepare_s}
        return found | self._proof(arm, seed, profiled)

    def _made_ready(self, name: ArmName, seed: int) -> Seconds | None:
        """What preparing the sites' parameters takes, done in an eager step before anything is compiled or captured.

        None where the arm's kernel prepares nothing; a kernel prepares once for all arms.
        """
        prepared = [kernel.call for kernel in self._kernels_of(name) if isinstance(kernel.call, Prepared)]
        if not prepared:
            return None
        if not all(call.seconds for call in prepared):
            eager = ArmName(name.role, Mode.EAGER, name.alternative)
            arm = Arm(eager, self._session.program(self._tree(eager, seed)), None)
            self._execute(arm, self.batches(arm, [seed])[0])
        return sum(call.seconds for call in prepared)

    def _kernels_of(self, name: ArmName) -> list[Bound]:
        if name.role in WITH_KERNELS:
            return [part.candidate.kernel for part in self._standing(name) if part.candidate is not None]
        return [kernel for part in self._parts if (kernel := part.adopted.get(str(name.alternative))) is not None]

    def _need_fresh(self) -> None:
        """Of every kernel in this process that prepares, in every arm's segments, so that all are treated alike.

        In training parameters change with every step, and are prepared again by their version.

        Raises:
            CandidateError: `prepared_stale`.
        """
        if self._train is not None:
            return
        bound = [kernel for part in self._parts for kernel in part.adopted.values()]
        bound += [part.candidate.kernel for part in self._parts if part.candidate is not None]
        for kernel in bound:
            if isinstance(kernel.call, Prepared):
                kernel.call.need_fresh()

    def keep(self, names: Collection[str]) -> None:
        """Let go of all other arms, and of the device's memory that they held."""
        self._arms = {name: arm for name, arm in self._arms.items() if name in names}
        gc.collect()
        if self._session.device != "cpu":
            torch.cuda.empty_cache()

    def _first_step(self, arm: Arm, program: nn.Module, seed: int) -> bool:
        """Compile and run once; whether a baseline had to be compiled with breaks in its graph.

        A model that does not compile in one piece still profits in parts, and its user has those parts: refusing
        them would make a weak opponent. A candidate must not be what breaks the graph.
        """
        try:
            self.run(str(arm.name), seeds=[seed])
        except torch._dynamo.exc.TorchDynamoException:
            if arm.name.role in WITH_KERNELS or arm.backend is None:
                raise
            arm.program = _compiled(program, arm.backend, fullgraph=False)
            self.run(str(arm.name), seeds=[seed])
            return True
        return False

    def plant(self, name: str, *, pause_s: Seconds, seed: int) -> None:
        """Prepare identical code whose every step takes that much longer; 0 makes it one more twin."""
        self.prepare(name, seed=seed, profiled=False)
        if pause_s:
            self._arms[name].pause = Pause(pause_s, self._session.device)
            self.run(name, seeds=[seed + 3])

    def pause_s(self, name: str, *, seeds: list[int]) -> Seconds:
        """What a planted arm's pause really takes between steps; one step for each seed."""
        arm = self._arms[name]
        assert arm.pause is not None
        taken = []
        for batch in self.batches(arm, seeds):
            self._execute(arm, batch)
            taken.append(arm.pause.take())
        return median(taken)

    def run(self, name: str, *, seeds: list[int]) -> list[Any]:
        """Steps of one arm, one per seed, and their fingerprints; in training the first from the snapshot."""
        arm = self._arms[name]
        digests: list[Any] = []
        arm.begin()
        for start in range(0, len(seeds), SLOTS):
            batches = self.batches(arm, seeds[start : start + SLOTS])
            self.sync()
            for place, batch in enumerate(batches):
                self._step(arm, batch, place)
            digests += self._ring.read(len(batches))
        arm.end()
        return digests

    def timed(self, name: str, *, batches: list[Any], settle: int, mark: Callable[[], None]) -> dict[str, Any]:
        """`settle` uncounted steps, a mark, then the timed ones, a mark; all of them leave a fingerprint.

        Beside the fingerprints: the timed steps by the device's own clock, and how often torch's allocator turned
        to the driver meanwhile; both None on a CPU.
        """
        arm = self._arms[name]
        clock = DeviceClock() if self._session.device != "cpu" else None
        if len(batches) > self._ring.slots:
            self._ring = Ring(len(batches), self._session.device)
        arm.begin()
        self.sync()
        for place, batch in enumerate(batches):
            if place == settle:
                self.sync()
                before = _driver_calls(self._session.device)
                mark()
                if clock is not None:
                    clock.start()
            self._step(arm, batch, place)
        if clock is not None:
            clock.stop()
        self.sync()
        mark()
        self._need_fresh()
        arm.end()
        after = _driver_calls(self._session.device)
        return {
            "digests": self._ring.read(len(batches)),
            "device_s": clock.seconds if clock is not None else None,
            "allocations": after - before if after is not None and before is not None else None,
        }

    def clocked(self, name: str, *, seed: int, count: int) -> list[Seconds]:
        """Seconds of each of `count` steps by this process's clock, for warming up only."""
        arm, times = self._arms[name], []
        batches = self.batches(arm, [seed + place for place in range(count)])
        arm.begin()
        for batch in batches:
            self.sync()
            start = time.perf_counter()
            self._step(arm, batch, 0)
            self.sync()
            times.append(time.perf_counter() - start)
        arm.end()
        return times

    def generation_s(self, name: str, *, seeds: list[int]) -> tuple[Seconds, Seconds] | None:
        """Seconds to the first token and of the whole step, medians over the seeds, one after the other.

        None where the step generates nothing, or is one graph from end to end.
        """
        arm = self._arms[name]
        first = getattr(arm.program, "first_token", None)
        if first is None:
            return None
        firsts, wholes = [], []
        for batch in self.batches(arm, seeds):
            firsts.append(self._clocked_once(arm, first, batch))
            wholes.append(self._clocked_once(arm, arm.program, batch))
        return median(firsts), median(wholes)

    def _clocked_once(self, arm: Arm, program: Callable[..., Any], batch: Any) -> Seconds:
        self.sync()
        start = time.perf_counter()
        self._execute(dataclasses.replace(arm, program=program), batch)
        self.sync()
        return time.perf_counter() - start

    def disturbances(self) -> int:
        """Compilations and calls of the driver's allocator so far: while they grow, nothing is steady."""
        graphs = int(torch._dynamo.utils.counters["stats"]["unique_graphs"])
        return graphs + (_driver_calls(self._session.device) or 0)

    def batches(self, arm: Arm | str, seeds: list[int]) -> list[Any]:
        """Fresh inputs, one per seed; a headroom arm always gets the batch whose outputs it replays."""
        arm = self._arms[arm] if isinstance(arm, str) else arm
        if arm.fixed_seed is not None:
            return [self._fixed(arm.fixed_seed)] * len(seeds)
        return [self._staged(seed) for seed in seeds]

    def _fixed(self, seed: int) -> tuple[Tensor, ...]:
        """What a headroom arm gets in every step; where a step has several parts, the first for all of them."""
        batch = self._staged(seed)
        return batch if self._train is None else batch[:1] * len(batch)

    def _staged(self, seed: int) -> tuple[Tensor, ...]:
        """Where a step finds its inputs: on the device, or in pinned memory if the way there is part of it."""
        batch: tuple[Tensor, ...] = self._session.batch(seed)
        return tuple(tensor.cpu().pin_memory() for tensor in batch) if self._transfer else batch

    def _moved(self, batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if not self._transfer:
            return batch
        return tuple(tensor.to(self._session.device, non_blocking=True) for tensor in batch)

    def outputs(self, name: str, seed: int) -> tuple[Tensor, ...]:
        """One step's outputs, cloned: a graph's own are overwritten by its next replay."""
        arm = self._arms[name]
        batch = self.batches(arm, [seed])[0]
        arm.begin()
        return tuple(tensor.clone() for tensor in self._execute(arm, batch))

    def execute(self, name: str, batch: tuple[Tensor, ...]) -> None:
        """A step and nothing else: no fingerprint, no wait."""
        self._execute(self._arms[name], batch)

    def probe(self, name: str, seed: int) -> dict[str, Tensor]:
        """See Trainer.probe."""
        arm = self._arms[name]
        assert arm.trainer is not None
        with torch.enable_grad():
            return arm.trainer.probe(arm.program, self._moved(self.batches(arm, [seed])[0]))

    def sync(self) -> None:
        """Wait for the whole device, not one stream."""
        if self._session.device != "cpu":
            torch.cuda.synchronize()

    def _step(self, arm: Arm, batch: Any, slot: int) -> None:
        self._ring.commit(self._execute(arm, batch), slot)

    def _execute(self, arm: Arm, batch: Any) -> tuple[Tensor, ...]:
        with torch.set_grad_enabled(arm.trainer is not None):
            self._session.reset()
            if arm.name.mode.is_graphed and arm.name.mode.is_compiled:
                torch.compiler.cudagraph_mark_step_begin()
            given = self._moved(batch)
            outputs = arm.program(*given) if arm.trainer is None else arm.trainer.step(arm.program, given)
            if arm.pause is not None:
                arm.pause()
            return outputs

    def _tree(self, name: ArmName, seed: int) -> nn.Module:
        """The arm's own module tree."""
        if name.role in WITH_KERNELS:
            return self._with_candidate(name)
        model = self._copied(self._session.model)
        if name.role is Role.HEADROOM:
            self._replay(model, name.mode, seed)
        elif name.role is not Role.BASELINE or name.alternative is not None:
            self._swap(name, model)
        return model

    def _learns(self, op: Op) -> bool:
        """Whether a kernel needs gradients of its own: not in an operator's place, whose own stay, nor where the step
        has done its backward already.
        """
        return self._train is not None and not (op.name.startswith(OPERATOR) or written_by(op))

    def _copied(self, model: nn.Module) -> nn.Module:
        """A module tree of its own: in training with weights of its own, which the step changes."""
        return copy_sharing_weights(model) if self._train is None else copy.deepcopy(model).train()

    def _source(self, name: ArmName) -> nn.Module:
        """The model that the arm's tree is a copy of."""
        standing = self._standing(name) if name.role in WITH_KERNELS else []
        calls = [part.candidate.kernel.call for part in standing if part.candidate is not None]
        source: nn.Module = next((call.model for call in calls if isinstance(call, Replica)), self._session.model)
        return source

    def _swap(self, name: ArmName, model: nn.Module) -> None:
        """The alternatives that the name says, and every other op's own code in the same place.

        Raises:
            RuntimeError: no op has such an alternative.
        """
        alternative = None if name.role is Role.PLANTED else name.alternative
        found = [self._alternative(part, alternative, name.mode) for part in self._parts]
        if alternative is not None and not any(found):
            raise RuntimeError(f"no op here has an alternative {alternative}")
        for part, function in zip(self._parts, found, strict=True):
            if function is not None or alternative is None or name.role is Role.SHAM:
                Patch(part.op, sites_in(model, list(part.sites)), everywhere(function))

    def _alternative(self, part: Part, name: str | None, mode: Mode) -> Callable[..., Any] | None:
        """What stands at the part's sites in an arm of that alternative; None for their own code."""
        own = None if name is None else alternative_for((*part.adopted, *part.op.alternatives), name)
        if own is None:
            return None
        return self._function(part.op, part.adopted[own], mode) if own in part.adopted else part.op.alternatives[own]

    def _standing(self, name: ArmName) -> list[Part]:
        """Those whose kernels stand in the arm."""
        places = places_of(name)
        return [part for place, part in enumerate(self._parts) if places is None or place in places]

    def _with_candidate(self, name: ArmName) -> nn.Module:
        self._captured_calls.clear()
        kernels = [
            Standing(part.op, part.usable, self._standing_there(part, part.candidate.kernel, name.mode))
            for part in self._standing(name)
            if part.candidate is not None
        ]
        if not kernels:
            raise RuntimeError("no candidate in this worker")
        around = self._counted if name.mode is Mode.CUDA_GRAPH else None
        return placed(self._session.model, kernels, around, copied=self._copied)

    def _traces(self, name: ArmName, model: nn.Module) -> Callable[[Any], Counter[int]]:
        """Counts kernels in a graph of that tree: calls of their ops, or a patch's modules that left nodes there."""
        for number, part in enumerate(self._parts):
            if part.candidate is not None and isinstance(part.candidate.kernel.call, Replica):
                changed = part.usable if name.role is Role.CANDIDATE else []
                keys = {str(id(site.module)) for site in sites_in(model, changed)}
                return _nodes_in(keys, number)
        watched = self._watched(1)
        return lambda graph: Counter(watched[node.target] for node in graph.nodes if node.target in watched)

    def _standing_there(self, part: Part, kernel: Bound, mode: Mode) -> Callable[..., Any]:
        """The kernel as it stands at the part's sites; what no compiler meets is counted, where its graphs are."""
        function = self._function(part.op, kernel, mode)
        is_outside = mode.is_compiled and written_by(part.op)
        return self._counted(part.usable[0], function) if is_outside and part.usable else function

    def _watched(self, place: Literal[0, 1]) -> dict[Any, int]:
        """What stands for the kernels under a compiler (0), or tells them in its graphs (1), and their parts' numbers.

        Only kernels that are registered already.
        """
        kernels = [part.candidate.kernel.sha256 if part.candidate is not None else "" for part in self._parts]
        known = ((number, self._registered.get(sha256)) for number, sha256 in enumerate(kernels))
        return {found[place]: number for number, found in known if found is not None}

    def _function(self, op: Op, kernel: Bound, mode: Mode) -> Callable[..., Any]:
        """The kernel itself, or under a compiler as an op that the compiler cannot look into; a patch is no op."""
        if isinstance(kernel.call, Replica):
            return kernel.call
        if not mode.is_compiled or written_by(op):
            return kernel.in_training(op) if self._learns(op) else kernel.call
        if kernel.sha256 not in self._registered:
            self._registered[kernel.sha256] = self._registration(op, kernel)
        return self._registered[kernel.sha256][0]

    def _registration(self, op: Op, kernel: Bound) -> tuple[Callable[..., Any], Any]:
        """What stands at the sites, and the operator by which a graph shows that it does."""
        device = self._session.device.partition(":")[0]
        if self._learns(op):
            return kernel.in_compiled_training(op, device)
        found = registered(op, sparing(kernel.call, kernel.writes), sha256=kernel.sha256, device=device)
        return found, found

    def _counted(self, site: Site, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """The kernel, counting its calls: those of the capture are those of every replay, which makes none."""

        def call(*args: Any, **named: Any) -> Any:
            self._captured_calls[site.fqn] += 1
            return kernel(*args, **named)

        return call

    def _before_capture(self) -> None:
        self._captured_calls.clear()
        self._session.reset()

    def _replay(self, model: nn.Module, mode: Mode, seed: int) -> None:
        """Record every call's true outputs for one batch, then return them in that tree instead of computing them.

        Nothing comes out of an optimizer: it is left out, and its state stays where it is.
        """
        inside = [part for part in self._parts if not written_by(part.op)]
        occurrences = [(part.op, sites_in(self._session.model, part.usable)) for part in inside]
        batch = self._moved(self._fixed(seed))
        self._session.reset()
        calls = recorded(occurrences, self._session.program(self._session.model), batch, self._train) if inside else {}

        def replayed(site: Site) -> Callable[..., Any]:
            return replay(site, calls.get(site.fqn, []), is_compiled=mode.is_compiled)

        for part in self._parts:
            stands = everywhere(_nothing) if written_by(part.op) else replayed
            Patch(part.op, sites_in(model, part.usable), stands)

    def _proof(self, arm: Arm, seed: int, profiled: bool) -> dict[str, Any]:
        """Compiled regions that one profiled, untimed step entered, and each kernel's nodes in the graphs.

        Without a profile the graphs that the compiler was handed stand for the regions.
        """
        if arm.backend is None:
            is_captured = arm.name.role in WITH_KERNELS and arm.name.mode is Mode.CUDA_GRAPH
            return {"regions": None, "kernel_calls": self._captured() if is_captured else None}
        seen = zip(self._parts, self._captured(), strict=True)
        outside = [bool(count) if written_by(part.op) else 0 for part, count in seen]
        calls = [arm.backend.nodes[place] + count for place, count in enumerate(outside)]
        if not profiled:
            return {"regions": arm.backend.graphs, "kernel_calls": calls}
        from torch.profiler import ProfilerActivity, profile

        batch = self.batches(arm, [seed])[0]
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            self._execute(arm, batch)
            self.sync()
        names = [event.name for event in profiler.events() or []]
        regions = sum(1 for name in names if name.startswith(REGION))
        return {"regions": regions, "kernel_calls": calls}

    def _captured(self) -> list[int]:
        """Calls of each kernel in the graph that was captured last, or outside of what is compiled."""
        return [sum(self._captured_calls[site.fqn] for site in part.usable) for part in self._parts]


def _nothing(*call: Any) -> None:
    """In the place of what has no outputs."""


def _nodes_in(modules: set[str], number: int) -> Callable[[Any], Counter[int]]:
    return lambda graph: Counter({number: len(modules & _modules_of(graph))})


def _modules_of(graph: Any) -> set[str]:
    """Modules whose code made a graph's nodes, as Dynamo names them: by identity."""
    return {key for node in graph.nodes for key in node.meta.get("nn_module_stack") or ()}


class DeviceClock:
    """Two events on the current stream: what lies between them by the device's own clock."""

    def __init__(self) -> None:
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def start(self) -> None:
        """Before the first step."""
        self._events[0].record()

    def stop(self) -> None:
        """After the last."""
        self._events[1].record()

    @property
    def seconds(self) -> Seconds:
        """Between the two; the device must have been waited for."""
        return float(self._events[0].elapsed_time(self._events[1])) / 1e3


def _driver_calls(device: str) -> int | None:
    """How often torch's allocator took memory from the driver or gave it back; None on a CPU."""
    if device == "cpu":
        return None
    known = torch.cuda.memory_stats()
    return int(known.get("num_device_alloc", 0) + known.get("num_device_free", 0))


def _compiled(program: nn.Module, backend: CountingBackend, *, fullgraph: bool = True) -> Callable[..., Any]:
    options: dict[str, Any] = {"fullgraph": fullgraph, "dynamic": False, "backend": backend}
    if "isolate_recompiles" in inspect.signature(torch.compile).parameters:
        options["isolate_recompiles"] = True  # Dynamo's cache hangs on the code object, which all arms share
    else:
        torch._dynamo.config.recompile_limit = 64
    parts: tuple[str, ...] = getattr(program, "compiled_parts", ())
    for name in parts:
        part = getattr(program, name)
        setattr(program, name, torch.compile(getattr(part, "_orig_mod", part), **options))
    compiled: Callable[..., Any] = program if parts else torch.compile(program, **options)
    return compiled


def _need_all(backend: CountingBackend) -> None:
    """Refuse an arm in whose graph an operator was not replaced everywhere: it would be the baseline under its name.

    Raises:
        RuntimeError: names the first module whose calls are not there.
    """
    for item in backend.interceptions.values():
        if item not in backend.placed:
            owner = type(item.owner).__name__
            raise RuntimeError(
                f"the compiled graph has no call of {item.operator} in {owner}, where an eager step has one"
            )
