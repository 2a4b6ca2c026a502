"""Worker side: every way to run the step, each in its own module tree over shared weights."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from e2e.arm_names import ArmName
from e2e.binding import registered
from e2e.measure.fingerprint import Ring
from e2e.measure.pause import Pause
from e2e.patch import Patch, copy_sharing_weights, observed, sites_in
from e2e.protocols import Op, Site
from e2e.schema.words import Mode, Role
from e2e.stats import median
from e2e.units import Seconds

REGION = "Torch-Compiled Region"
"""What torch calls a compiled region in a profile; an arm called compiled must have entered one."""
SLOTS = 4096
"""Steps whose inputs and fingerprints are held at once."""


@dataclass
class Candidate:
    """The bound kernel and where it goes."""

    kernel: Callable[..., Any]
    sha256: str
    fqns: frozenset[str]
    """Sites it stands at; the others keep the baseline op (declared constraints)."""


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


class CountingBackend:
    """Inductor, with a look at each graph on its way: how many graphs, and how often the kernel is in them."""

    def __init__(self, mode: Mode) -> None:
        self._inductor = torch._TorchCompileInductorWrapper(None if mode is Mode.COMPILE else mode.value, None, False)
        self.watched: Any = None
        self.graphs = 0
        self.nodes = 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.graphs += 1
        self.nodes += sum(1 for node in graph.graph.nodes if node.target is self.watched)
        return self._inductor(graph, inputs)


class Arena:
    """All arms of one worker."""

    def __init__(self, session: Any, op: Op, sites: list[Site], candidate: Candidate | None) -> None:
        self._session = session
        self._op = op
        self._sites = sites
        self._candidate = candidate
        self._registered: Any = None
        self._arms: dict[str, Arm] = {}
        self._ring = Ring(SLOTS, session.device)

    def prepare(self, name: str, *, seed: int, profiled: bool = True) -> dict[str, Any]:
        """Build, compile and run an arm's first steps; what is known about it afterwards."""
        arm_name = ArmName.parse(name)
        model = copy_sharing_weights(self._session.model)
        self._swap(arm_name, sites_in(model, self._sites), seed)
        program = self._session.program(model)
        backend = None
        run: Callable[..., Any] = program
        if arm_name.mode is not Mode.EAGER:
            backend = CountingBackend(arm_name.mode)
            backend.watched = self._registered
            run = _compiled(program, backend)
        arm = Arm(arm_name, run, backend, seed if arm_name.role is Role.HEADROOM else None)
        self._arms[name] = arm
        start = time.perf_counter()
        broken = self._first_step(arm, program, seed)
        first_step_s = time.perf_counter() - start
        self.run(name, seeds=[seed + 1, seed + 2])
        return {"first_step_s": first_step_s, "graph_breaks": broken, **self._proof(arm, seed, profiled)}

    def _first_step(self, arm: Arm, program: nn.Module, seed: int) -> bool:
        """Compile and run once; whether a baseline had to be compiled with breaks in its graph.

        A model that does not compile in one piece still profits in parts, and its user has those parts: refusing
        them would make a weak opponent. A candidate must not be what breaks the graph.
        """
        try:
            self.run(str(arm.name), seeds=[seed])
        except torch._dynamo.exc.TorchDynamoException:
            if arm.name.role is Role.CANDIDATE or arm.backend is None:
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
        """Steps of one arm, one per seed, and their fingerprints."""
        arm = self._arms[name]
        digests: list[Any] = []
        for start in range(0, len(seeds), SLOTS):
            batches = self.batches(arm, seeds[start : start + SLOTS])
            self.sync()
            for place, batch in enumerate(batches):
                self._step(arm, batch, place)
            digests += self._ring.read(len(batches))
        return digests

    def timed(self, name: str, *, batches: list[Any], settle: int, mark: Callable[[], None]) -> list[Any]:
        """`settle` uncounted steps, a mark, then the timed ones, a mark; all of them leave a fingerprint."""
        arm = self._arms[name]
        if len(batches) > self._ring.slots:
            self._ring = Ring(len(batches), self._session.device)
        self.sync()
        for place, batch in enumerate(batches):
            if place == settle:
                self.sync()
                mark()
            self._step(arm, batch, place)
        self.sync()
        mark()
        return self._ring.read(len(batches))

    def batches(self, arm: Arm | str, seeds: list[int]) -> list[Any]:
        """Fresh inputs, one per seed; a headroom arm always gets the batch whose outputs it replays."""
        arm = self._arms[arm] if isinstance(arm, str) else arm
        if arm.fixed_seed is not None:
            return [self._session.batch(arm.fixed_seed)] * len(seeds)
        return [self._session.batch(seed) for seed in seeds]

    def outputs(self, name: str, seed: int) -> tuple[Tensor, ...]:
        """One step's outputs, cloned: a graph's own are overwritten by its next replay."""
        arm = self._arms[name]
        batch = self.batches(arm, [seed])[0]
        return tuple(tensor.clone() for tensor in self._execute(arm, batch))

    def sync(self) -> None:
        """Wait for the whole device, not one stream."""
        if self._session.device != "cpu":
            torch.cuda.synchronize()

    def _step(self, arm: Arm, batch: Any, slot: int) -> None:
        self._ring.commit(self._execute(arm, batch), slot)

    def _execute(self, arm: Arm, batch: Any) -> tuple[Tensor, ...]:
        with torch.no_grad():
            self._session.reset()
            if arm.name.mode is Mode.REDUCE_OVERHEAD:
                torch.compiler.cudagraph_mark_step_begin()
            outputs = arm.program(*batch)
            if arm.pause is not None:
                arm.pause()
            return outputs

    def _swap(self, name: ArmName, sites: list[Site], seed: int) -> None:
        usable = [site for site in sites if self._candidate is None or site.fqn in self._candidate.fqns]
        if name.role is Role.CANDIDATE:
            function = self._candidate_function(name.mode)
            Patch(self._op, usable, lambda site: function)
        elif name.role is Role.PLANTED:
            Patch(self._op, sites, lambda site: None)
        elif name.alternative is not None:
            function = self._op.alternatives[name.alternative]
            Patch(self._op, sites, lambda site: function)
        elif name.role is Role.SHAM:
            Patch(self._op, sites, lambda site: None)
        elif name.role is Role.HEADROOM:
            self._replay(usable, name.mode, seed)

    def _candidate_function(self, mode: Mode) -> Callable[..., Any]:
        if self._candidate is None:
            raise RuntimeError("no candidate in this worker")
        if mode is Mode.EAGER:
            return self._candidate.kernel
        if self._registered is None:
            self._registered = registered(
                self._op,
                self._candidate.kernel,
                sha256=self._candidate.sha256,
                device=self._session.device.partition(":")[0],
            )
        function: Callable[..., Any] = self._registered
        return function

    def _replay(self, sites: list[Site], mode: Mode, seed: int) -> None:
        """Record every site's true output for one batch, then return it instead of computing it."""
        originals = [Site(s.fqn, self._session.model.get_submodule(s.fqn), s.scalars) for s in sites]
        recorded: dict[str, list[Tensor]] = {}
        with observed(originals, lambda site, a, k, output: recorded.setdefault(site.fqn, []).append(output.clone())):
            self._execute(
                Arm(ArmName(Role.BASELINE, Mode.EAGER), self._session.program(self._session.model), None),
                self._session.batch(seed),
            )
        for site in sites:
            outputs = recorded.get(site.fqn, [])
            if len(outputs) == 1:
                forward = _replay_eager(outputs[0]) if mode is Mode.EAGER else _replay_compiled(site, outputs[0])
            elif outputs and mode is Mode.EAGER:
                forward = _replay_several(outputs)
            else:
                raise RuntimeError(f"{site.fqn} ran {len(outputs)} times in a step: its outputs cannot be replayed")
            site.module.forward = forward.__get__(site.module)

    def _proof(self, arm: Arm, seed: int, profiled: bool) -> dict[str, Any]:
        """Compiled regions that one profiled, untimed step entered, and the kernel's nodes in the graphs.

        Without a profile the graphs that the compiler was handed stand for the regions.
        """
        if arm.backend is None:
            return {"regions": None, "kernel_calls": None}
        if not profiled:
            return {"regions": arm.backend.graphs, "kernel_calls": arm.backend.nodes}
        from torch.profiler import ProfilerActivity, profile

        batch = self.batches(arm, [seed])[0]
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            self._execute(arm, batch)
            self.sync()
        names = [event.name for event in profiler.events() or []]
        regions = sum(1 for name in names if name.startswith(REGION))
        return {"regions": regions, "kernel_calls": arm.backend.nodes}


def _compiled(program: nn.Module, backend: CountingBackend, *, fullgraph: bool = True) -> Callable[..., Any]:
    options: dict[str, Any] = {"fullgraph": fullgraph, "dynamic": False, "backend": backend}
    if "isolate_recompiles" in inspect.signature(torch.compile).parameters:
        options["isolate_recompiles"] = True  # Dynamo's cache hangs on the code object, which all arms share
    else:
        torch._dynamo.config.recompile_limit = 64
    compiled: Callable[..., Any] = torch.compile(program, **options)
    return compiled


def _replay_eager(recorded: Tensor) -> Callable[..., Tensor]:
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
        return recorded

    return forward


def _replay_several(recorded: list[Tensor]) -> Callable[..., Tensor]:
    calls = 0

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
        nonlocal calls
        calls += 1
        return recorded[(calls - 1) % len(recorded)]

    return forward


def _replay_compiled(site: Site, recorded: Tensor) -> Callable[..., Tensor]:
    """Under a compiler the recording is a buffer, and an opaque op keeps the site's inputs alive.

    Without it the compiler deletes everything upstream of the site, and the ceiling means nothing.
    """
    _define_touch()
    site.module.register_buffer("e2e_recorded", recorded, persistent=False)

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        torch.ops.e2e_headroom.touch(self.e2e_recorded, [x])
        result: Tensor = self.e2e_recorded
        return result

    return forward


_TOUCH: list[torch.library.Library] = []


def _define_touch() -> None:
    if _TOUCH:
        return
    library = torch.library.Library("e2e_headroom", "DEF")
    library.define("touch(Tensor(a!) recorded, Tensor[] inputs) -> ()")
    library.impl("touch", lambda recorded, inputs: None, "CompositeExplicitAutograd")
    torch.library.register_fake("e2e_headroom::touch", lambda recorded, inputs: None, lib=library)
    _TOUCH.append(library)
