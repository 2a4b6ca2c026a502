"""Worker side: every way to run the step, prepared and run."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from e2e.arm_names import WITH_KERNELS, ArmName
from e2e.bound import Part
from e2e.measure.fingerprint import Ring
from e2e.measure.pause import Pause
from e2e.modes import REGION, CountingBackend, DeviceClock, GraphedStep, compiled, driver_calls, need_all
from e2e.operators import interceptions_in
from e2e.prepared import Prepared
from e2e.profile.recorder import in_range
from e2e.protocols import Op, Site, written_by
from e2e.schema.words import Mode, Role
from e2e.schema.workload import TrainSpec
from e2e.trainer import Trainer
from e2e.trees import Trees
from e2e.units import Seconds

SLOTS = 4096
"""Steps whose inputs and fingerprints are held at once."""


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
        self._trees = Trees(session, parts)
        self._arms: dict[str, Arm] = {}
        self._ring = Ring(SLOTS, session.device)

    def turn_to(self, op: Op, sites: list[Site]) -> None:
        """Arms of another op from now on; those of the model as it is stay."""
        self._trees.parts = [Part(op, sites)]
        own = {name: arm for name, arm in self._arms.items() if arm.name.role is Role.BASELINE}
        self._arms = {name: arm for name, arm in own.items() if arm.name.alternative is None}

    def program(self, name: str) -> Callable[..., Any]:
        """What a step of the arm calls: for an eager one a module."""
        return self._arms[name].program

    def prepare(self, name: str, *, seed: int, profiled: bool = True) -> dict[str, Any]:
        """Build, compile and run an arm's first steps; what is known about it afterwards."""
        arm_name = ArmName.parse(name)
        model = self._trees.grown(arm_name, self._replayed(seed))
        program = self._session.program(model)
        backend = None
        run: Callable[..., Any] = program
        if arm_name.mode.is_compiled:
            backend = CountingBackend(arm_name.mode, self._trees.traces(arm_name, model))
            backend.watched = self._trees.watched(0)
            backend.interceptions = interceptions_in(model)
            run = compiled(program, backend)
        arm = Arm(arm_name, run, backend, seed if arm_name.role is Role.HEADROOM else None)
        arm.trainer = self._trees.trainer(arm_name, model)
        self._arms[name] = arm
        prepare_s = self._made_ready(arm_name, seed)
        start = time.perf_counter()
        if arm_name.mode is Mode.CUDA_GRAPH:
            self._trees.forget_captured()
            first = self._moved(self.batches(arm, [seed])[0])
            arm.program = GraphedStep(program, first, before=self._before_capture)
        broken = self._first_step(arm, program, seed)
        if backend is not None:
            need_all(backend)
        first_step_s = time.perf_counter() - start
        self.run(name, seeds=[seed + 1, seed + 2])
        found = {"first_step_s": first_step_s, "graph_breaks": broken, "prepare_s": prepare_s}
        return found | self._proof(arm, seed, profiled)

    def _made_ready(self, name: ArmName, seed: int) -> Seconds | None:
        """What preparing the sites' parameters takes, done in an eager step before anything is compiled or captured.

        None where the arm's kernel prepares nothing; a kernel prepares once for all arms.
        """
        prepared = [kernel.call for kernel in self._trees.kernels_of(name) if isinstance(kernel.call, Prepared)]
        if not prepared:
            return None
        if not all(call.seconds for call in prepared):
            eager = ArmName(name.role, Mode.EAGER, name.alternative)
            arm = Arm(eager, self._session.program(self._trees.grown(eager, self._replayed(seed))), None)
            self._execute(arm, self.batches(arm, [seed])[0])
        return sum(call.seconds for call in prepared)

    def _need_fresh(self) -> None:
        """Of every kernel in this process that prepares, in every arm's segments, so that all are treated alike.

        In training parameters change with every step, and are prepared again by their version.

        Raises:
            CandidateError: `prepared_stale`.
        """
        if self._train is not None:
            return
        for kernel in self._trees.kernels:
            if isinstance(kernel.call, Prepared):
                kernel.call.need_fresh()

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
            arm.program = compiled(program, arm.backend, fullgraph=False)
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
                before = driver_calls(self._session.device)
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
        after = driver_calls(self._session.device)
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
        return graphs + (driver_calls(self._session.device) or 0)

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

    def _replayed(self, seed: int) -> Callable[[], tuple[Tensor, ...]]:
        """Where a headroom arm's tree gets that batch from, on the device."""
        return lambda: self._moved(self._fixed(seed))

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

    @contextmanager
    def stepping(self, name: str) -> Iterator[Callable[[Any], Any]]:
        """Steps on batches that somebody else makes, on the device; in training the first is from the snapshot."""
        arm = self._arms[name]
        arm.begin()
        yield partial(self._execute, arm)
        arm.end()

    @contextmanager
    def with_ranges(self, name: str) -> Iterator[None]:
        """While inside, an eager arm's steps have a profiler's range around every call of the op at its sites.

        No other arm has: a compiler's graphs hold no ranges, and a training arm would need weights of its own twice.
        """
        arm = self._arms[name]
        if arm.name.mode is Mode.EAGER and self._train is None:
            tree = self._trees.grown_with(arm.name, in_range)
            self._arms[name] = dataclasses.replace(arm, program=self._session.program(tree))
        try:
            yield
        finally:
            self._arms[name] = arm

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

    def _before_capture(self) -> None:
        self._trees.forget_captured()
        self._session.reset()

    def _proof(self, arm: Arm, seed: int, profiled: bool) -> dict[str, Any]:
        """Compiled regions that one profiled, untimed step entered, and each kernel's nodes in the graphs.

        Without a profile the graphs that the compiler was handed stand for the regions.
        """
        if arm.backend is None:
            is_captured = arm.name.role in WITH_KERNELS and arm.name.mode is Mode.CUDA_GRAPH
            return {"regions": None, "kernel_calls": self._trees.captured() if is_captured else None}
        seen = zip(self._trees.parts, self._trees.captured(), strict=True)
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
