"""What `e2e profile` asks of a process without any candidate: the step, every op's sites and inputs, its ceiling."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from e2e import outside, stats, wording
from e2e.arm_names import AS_SHIPPED, ArmName
from e2e.capture_files import FOLDER, file_name
from e2e.errors import E2EError
from e2e.measure.schedule import steps_for
from e2e.processes import Worker, WorkerFault
from e2e.profile import timeline
from e2e.profile.timeline import Timeline
from e2e.schema.evidence import NOT_CALLED, ArmRecord, DeviceFacts, ModelFacts, SiteRecord
from e2e.schema.profile import Capture, ModuleRow, OpProfile, SiteGroup, StepMemory, StepProfile, TimeRow
from e2e.schema.words import Mode, Role, Stage
from e2e.stages.course import Course
from e2e.stages.lineup import mode_problem
from e2e.stages.planted import for_op
from e2e.stages.survey import know_device, survey
from e2e.stages.timing import Phase, rough_step_s, run_block, warm_up
from e2e.store import Run
from e2e.units import Bytes, Seconds
from e2e.winnings import relative_times, strongest_of, winnings_of

STAGE = Stage.SCREEN
TRACE_STEPS = 3
COMPILE_SHARE = 0.3
"""Of the time left, the most that compiling one more arm may take."""
EXTRA_SHARE = 0.03
"""Of the budget, what blocks beyond the policy's may take for one op, while they might decide."""
PILOT_BLOCKS = 2
"""Mirrored blocks of all of an op's arms, before those that are far too slow are left out; part of no ceiling."""
FEWEST = 2
"""Blocks of a phase without which there is no interval, whatever time is left."""
LEAST_COMPILE_S = 5.0
"""With less time than this nothing is compiled: what does not finish costs a process."""
ENDED = "the profile ended before"
FORMS, ROWS = 24, 40
"""Most forms of calls, and rows of a table, that are stored."""
SLOW = 1.5
"""An alternative that makes the step this many times as slow in its first blocks is not timed further."""


@dataclass
class Found:
    """What is known so far; Ctrl-C keeps it."""

    device: DeviceFacts | None = None
    model: ModelFacts | None = None
    steps: list[StepProfile] = field(default_factory=list)
    memory: StepMemory | None = None
    modes: list[ArmRecord] = field(default_factory=list)
    strongest: str | None = None
    ops: dict[str, OpProfile] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)


@dataclass
class Look:
    """One op that occurs, on its way from its sites to its ceiling."""

    op: str
    fqns: list[str]
    """Sites that compute it."""
    alternatives: list[str]


class Profiler:
    """One process after the other with the workload open: a new one where the last one ended."""

    def __init__(self, course: Course, found: Found) -> None:
        self._course, self._found = course, found
        self._step_s: Seconds = 0.0
        """Of the eager step, roughly; sizes segments."""
        self._number = -1
        """Of the process."""
        self._ready: set[str] = set()
        """Arms of the model as it is that are ready in the process."""
        self._compile_s: Seconds = 0.0
        """What the last arm that was compiled took."""

    # ---- The step

    def open(self) -> None:
        """A fresh process, with the model as it is ready in eager mode.

        Raises:
            EnvironmentFault, UsageError: the workload cannot be opened, or its step cannot be run.
        """
        course = self._course
        self._number += 1
        course.clean = course.crew.worker(clean=True)
        know_device(course)
        course.crew.make_arena(course.clean)
        course.crew.require(course.clean, "prepare", arm=AS_SHIPPED)
        self._ready = {AS_SHIPPED}
        self._found.device, self._found.model = course.evidence.device, course.evidence.model

    def look_at_step(self) -> None:
        """Its rough time, its memory, and one profiled pass each for operators and kernels, and for modules."""
        course = self._course
        self._step_s = rough_step_s(course, self._worker, AS_SHIPPED, stage=STAGE)
        said = course.crew.require(self._worker, "step_memory", arm=AS_SHIPPED)
        self._found.memory = StepMemory.model_validate(said)
        found = self._traced(AS_SHIPPED)
        ranged = self._traced(AS_SHIPPED, by_module=True) if found else None
        self._found.steps.append(_step_profile(AS_SHIPPED, found, ranged, self._step_s))

    def _traced(self, arm: str, *, by_module: bool = False) -> Timeline | None:
        """A profiled pass of the arm, stored; None where it cannot be had, and then it is among what was not seen."""
        course, raw = self._course, self._course.path("trace.json")
        name = f"{arm}.modules" if by_module else arm
        try:
            course.crew.require(self._worker, "trace", arm=arm, path=str(raw), steps=TRACE_STEPS, by_module=by_module)
            return timeline.store(raw, course.folder / "traces", arm=name, steps=TRACE_STEPS)
        except (ValueError, OSError, KeyError, TypeError, E2EError) as error:
            self._found.unseen.append(f"trace of {name}: {error}")
            self._revive()
            return None

    @property
    def _worker(self) -> Worker:
        assert self._course.clean is not None
        return self._course.clean

    # ---- Ops

    def places(self, op: str) -> int:
        """At how many places the op may occur; an op that has none is absent."""
        found = int(self._turned(op)["sites"])
        self._found.absent += [] if found else [op]
        return found

    def _turned(self, op: str) -> dict[str, Any]:
        """The process has that op in hand from now on."""
        place = outside.place_of(op)
        sha256 = outside.sha256_of(place) if place is not None else None
        return self._course.crew.require(self._worker, "turn_to", op=op, op_sha256=sha256)

    def look_for(self, op: str) -> list[Look]:
        """The op's sites, calls and inputs; nothing where there is nothing to measure."""
        course = self._course
        own = for_op(course, op)
        own.clean, self._found.ops[op] = course.clean, OpProfile(op=op, status="not_looked_at", reason=ENDED)
        alternatives = self._turned(op)["alternatives"]
        survey(own)
        engagement = own.evidence.engagement
        assert engagement is not None
        if all(site.reason == NOT_CALLED for site in engagement.sites):
            del self._found.ops[op]
            self._found.absent.append(op)
            return []
        groups = _groups(engagement.sites)
        if not own.fqns:
            self._know(op, status="incompatible", reason=groups[0].reason, not_sites=groups)
            return []
        said = course.crew.require(self._worker, "forms", most=FORMS)
        watched = course.crew.require(self._worker, "stopwatch")
        self._know(
            op,
            status="not_measured",
            reason=ENDED,
            sites=said["sites"],
            not_sites=groups,
            calls=said["calls"],
            forms=said["forms"],
            stopwatch_ratio=watched["op_s"] / watched["step_s"] if watched["step_s"] else None,
            capture=self._captured(op, course.policy.numerics.capture_bytes),
        )
        return [Look(op, own.fqns, alternatives)]

    def _captured(self, op: str, budget_bytes: Bytes) -> Capture:
        """The op's inputs in the run's folder, whole or not at all."""
        course, name = self._course, f"{FOLDER}/{file_name(op)}"
        path = course.path("captured.safetensors")
        said = course.crew.require(self._worker, "save_captured", path=str(path), op=op, budget_bytes=budget_bytes)
        if not said["calls"]:
            least = f"one call takes {wording.size(said['bytes'])}, and the policy allows {wording.size(budget_bytes)}"
            return Capture(path=None, calls=0, bytes=0, reason=least)
        Run(course.folder).write_bytes(name, path.read_bytes())
        return Capture(path=name, calls=said["calls"], bytes=said["bytes"])

    def _know(self, op: str, **fields: Any) -> None:
        known = self._found.ops[op].model_dump()
        self._found.ops[op] = OpProfile.model_validate({**known, **fields})

    @contextlib.contextmanager
    def guarded(self, op: str) -> Iterator[None]:
        """Work on one op; what goes wrong there is that op's remark, and the others go on."""
        try:
            yield
        except E2EError as error:
            self._know(op, reason=wording.clean(error.message))
            self._revive()

    # ---- Modes

    def choose_mode(self) -> None:
        """The fastest way to run the model as it is, of those that the time allows."""
        course = self._course
        names = [str(ArmName(Role.BASELINE, mode)) for mode in course.policy.modes if mode is not Mode.EAGER]
        records = [_record(AS_SHIPPED), *self._prepared(names, again=lambda: None)]
        course.learn(arms=records)
        usable = [record.name for record in records if record.status == "ok"]
        try:
            warm_up(course, self._worker, usable, worker_number=self._number, stage=STAGE)
            self._blocks(course, usable, course.policy.blocks, phase="pilot", until=math.inf)
        except E2EError as error:
            self._found.unseen.append(f"modes: {error.message}")
            self._revive()
        self._found.modes = [_timed(course, record) for record in records]
        self._found.strongest = strongest_of(course.evidence, course.policy) or AS_SHIPPED
        self._step_s = self._found.modes[0].step_s or self._step_s
        self._look_at_modes()

    def _prepared(self, names: Sequence[str], *, again: Callable[[], None]) -> list[ArmRecord]:
        """The arms, ready in the process; or why not. One that ends its process is left out of the next one.

        `again` makes a fresh process what this one was.
        """
        records: dict[str, ArmRecord] = {}
        waiting = list(names)
        while waiting:
            name = waiting.pop(0)
            records[name] = self._tried(name)
            if self._revive():
                again()
                waiting = [*(done for done, record in records.items() if record.status == "ok"), *waiting]
        return [records[name] for name in names]

    def _tried(self, name: str) -> ArmRecord:
        course, arm = self._course, ArmName.parse(name)
        if problem := mode_problem(course, arm.mode):
            return _record(name, status="skipped", reason=problem)
        if name in self._ready:
            return _record(name)
        budgets, limit = course.policy.budgets, course.policy.budgets.call_s
        if arm.mode.is_compiled:
            limit = min(budgets.compile_s, COMPILE_SHARE * course.deadline.left_s)
            if limit < LEAST_COMPILE_S:
                return _record(name, status="skipped", reason="there is no time to compile it")
        try:
            reply = self._worker.call("prepare", timeout_s=limit, arm=name)
        except WorkerFault as fault:
            if fault.kind == "timed_out":
                return _record(name, status="skipped", reason=f"it was not ready after {wording.span(limit)}")
            return _record(name, status="failed", reason=wording.clean(fault.message))
        if arm.mode.is_compiled and not reply["regions"]:
            return _record(name, status="void", reason="it ran eagerly: no compiled region was entered")
        if arm.mode.is_compiled:
            self._compile_s = reply["first_step_s"]
        if arm.role is Role.BASELINE and arm.alternative is None:
            self._ready.add(name)
        return _record(name, first_step_s=reply["first_step_s"], compiled_regions=reply["regions"])

    def _revive(self) -> bool:
        """Whether the process had ended; then there is a new one."""
        if self._worker.alive:
            return False
        self.open()
        return True

    def _look_at_modes(self) -> None:
        """The steps' times, now that they are known, and the strongest one's own trace."""
        step_s = {record.name: record.step_s for record in self._found.modes}
        strongest = str(self._found.strongest)
        self._found.steps = [_retimed(step, step_s.get(step.arm) or self._step_s) for step in self._found.steps]
        if strongest != AS_SHIPPED and self._worker.alive:
            traced = self._traced(strongest)
            self._found.steps.append(_step_profile(strongest, traced, None, step_s[strongest]))

    # ---- Ceilings

    def measure(self, look: Look) -> None:
        """The op's arms beside the model as it is, in mirrored blocks.

        As many as the policy wants while there is time at all; where they might decide, some more.
        """
        own = for_op(self._course, look.op)
        end = time.monotonic() + own.deadline.left_s
        self._turn(look)
        records = self._own_arms(look)
        own.learn(arms=records)
        names = [record.name for record in records if record.status == "ok"]
        warm_up(own, self._worker, names, worker_number=self._number, stage=STAGE)
        self._blocks(own, names, PILOT_BLOCKS, phase="pilot", until=end)
        times = relative_times(own.evidence)
        kept = [name for name in names if ArmName.parse(name).alternative is None or times[name] <= SLOW]
        self._blocks(own, kept, own.policy.blocks, phase="ceiling", until=end)
        found = winnings_of(own.evidence, own.policy)
        extra_end = min(end, time.monotonic() + EXTRA_SHARE * own.policy.budgets.cell_s)
        while found.worth == "maybe" and self._has_room(own, extra_end):
            self._blocks(own, kept, 1, phase="ceiling", until=extra_end)
            found = winnings_of(own.evidence, own.policy)
        self._know(
            look.op,
            status="measured" if found.share else "not_measured",
            reason=None if found.share else found.ceiling_reason or "there was no time for enough blocks",
            share=found.share,
            strongest=found.strongest,
            strongest_s=found.strongest_s,
            ceiling=found.ceiling,
            ceiling_reason=found.ceiling_reason,
            twice_as_fast_ratio=found.twice_as_fast,
            worth=found.worth,
            alternatives=found.alternatives,
            arms=[_timed(own, record) for record in records],
        )

    def _turn(self, look: Look) -> None:
        """The process is ready for that op's arms."""
        self._turned(look.op)
        self._course.crew.require(self._worker, "retarget", fqns=look.fqns)

    def _own_arms(self, look: Look) -> list[ArmRecord]:
        """The model as it is, eager and in its strongest mode; the op by its alternatives, and by nothing.

        An alternative is not compiled: a compiler often makes it the same code, and compiling takes the op's time.
        """
        modes = dict.fromkeys((Mode.EAGER, ArmName.parse(str(self._found.strongest)).mode))
        names: list[ArmName] = []
        left_out: list[ArmName] = []
        for mode in modes:
            names.append(ArmName(Role.BASELINE, mode))
            names += [] if mode.is_compiled else [ArmName(Role.BASELINE, mode, other) for other in look.alternatives]
            is_long = mode.is_compiled and self._compile_s > COMPILE_SHARE * self._course.deadline.left_s
            (left_out if is_long else names).append(ArmName(Role.HEADROOM, mode))
        problem = f"compiling takes about {wording.span(self._compile_s)}: a larger --budget allows it"
        skipped = [_record(str(arm), status="skipped", reason=problem) for arm in left_out]
        return [*self._prepared(list(map(str, names)), again=lambda: self._turn(look)), *skipped]

    def _has_room(self, own: Course, until: float) -> bool:
        return _blocks_in(own, "ceiling") < own.policy.max_blocks and time.monotonic() < until

    def _blocks(self, own: Course, names: Sequence[str], most: int, *, phase: Phase, until: float) -> None:
        """So many more mirrored blocks of those arms, or as many as the time allows; an op gets two in any case."""
        steps = steps_for(self._step_s, segment_s=own.policy.segment_s, min_steps=own.policy.min_steps)
        first = _blocks_in(own, phase)
        for number in range(first, first + most):
            if number >= FEWEST and time.monotonic() > until:
                return
            run_block(
                own,
                self._worker,
                dict.fromkeys(names, steps),
                phase=phase,
                worker_number=self._number,
                block_number=number,
                stage=STAGE,
            )


def _blocks_in(course: Course, phase: Phase) -> int:
    return 1 + max((item.block for item in course.evidence.segments if item.phase == phase), default=-1)


def _record(name: str, **fields: Any) -> ArmRecord:
    arm = ArmName.parse(name)
    about = {"role": arm.role, "mode": arm.mode, "alternative": arm.alternative, "status": "ok"}
    return ArmRecord.model_validate({"name": name, **about, **fields})


def _timed(course: Course, record: ArmRecord) -> ArmRecord:
    return record.model_copy(update={"step_s": stats.step_seconds(course.evidence.segments, record.name)})


def _groups(sites: Sequence[SiteRecord]) -> list[SiteGroup]:
    """Sites that do not compute the op, by what they do instead."""
    reasons: dict[str, list[str]] = {}
    for site in sites:
        if site.status == "incompatible":
            reasons.setdefault(str(site.reason), []).append(site.fqn)
    return [SiteGroup(reason=reason, sites=fqns) for reason, fqns in reasons.items()]


# ---- Tables


def _step_profile(arm: str, found: Timeline | None, ranged: Timeline | None, step_s: Seconds | None) -> StepProfile:
    """What the traces of one arm say; everything unknown without one."""
    is_device = found is not None and found.busy_s is not None
    profile = StepProfile(
        arm=arm,
        step_s=step_s,
        trace=found.record if found else None,
        busy_s=found.busy_s if found else None,
        idle_ratio=None,
        operators=_rows({name: (at.calls, at.own_s) for name, at in found.within.items()}) if found else [],
        kernels=_rows(found.rows) if found and is_device else None,
        modules=_module_rows(ranged) if ranged else [],
        phases=_rows({name: (at.calls, at.own_s) for name, at in found.phases.items()}) if found else [],
    )
    return _retimed(profile, step_s)


def _retimed(step: StepProfile, step_s: Seconds | None) -> StepProfile:
    """The profiler makes steps longer, not kernels: idle is what their time leaves of the step as timed without."""
    idle = None if step.busy_s is None or not step_s else max(0.0, 1 - step.busy_s / step_s)
    return step.model_copy(update={"step_s": step_s, "idle_ratio": idle})


def _rows(times: Mapping[str, tuple[float, Seconds]]) -> list[TimeRow]:
    """Calls and seconds by name to rows, largest first, as many as are stored; shares are of all."""
    whole = sum(seconds for _, seconds in times.values())
    largest = sorted((item for item in times.items() if item[1][1] > 0), key=lambda item: -item[1][1])[:ROWS]
    return [
        TimeRow(
            name=wording.clean(name, 200), calls=calls, seconds=seconds, share_ratio=seconds / whole if whole else None
        )
        for name, (calls, seconds) in largest
    ]


def _module_rows(ranged: Timeline) -> list[ModuleRow]:
    """Modules whose names differ in numbers only are one row."""
    grouped: dict[tuple[str, str], list[float]] = {}
    for name, time_ in ranged.modules.items():
        fqn, _, owner = name.rpartition(" ")
        pattern = ".".join("*" if part.isdigit() else part for part in fqn.split("."))
        sums = grouped.setdefault((pattern, owner), [0.0, 0.0, 0.0])
        for place, value in enumerate((time_.calls, time_.own_s, time_.total_s)):
            sums[place] += value
    whole = sum(own_s for _, own_s, _ in grouped.values())
    rows = [
        ModuleRow(
            name=pattern or "(the model)",
            owner=owner,
            calls=calls,
            own_s=max(0.0, own_s),
            total_s=total_s,
            share_ratio=own_s / whole if whole else None,
        )
        for (pattern, owner), (calls, own_s, total_s) in grouped.items()
    ]
    return sorted(rows, key=lambda row: -row.own_s)[:ROWS]
