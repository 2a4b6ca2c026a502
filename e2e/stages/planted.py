"""What `e2e selftest` asks of workers: planted kernels through the real check, planted times in real blocks."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Literal

from e2e import stats
from e2e.arm_names import AS_SHIPPED, ArmName
from e2e.builders.planted import LATE_CALLS, LATE_TRICKS, REFERENCE, TRICKS
from e2e.judge import judge
from e2e.measure.audit import Fingerprint, Replay
from e2e.measure.schedule import steps_for
from e2e.processes import Worker
from e2e.protocols import Built
from e2e.schema.evidence import Audit, Evidence
from e2e.schema.kernel import Kernel, Manifest
from e2e.schema.selftest import Catch
from e2e.schema.words import ReasonCode, Role, Stage
from e2e.stages.correctness import check_mutants, check_op, check_outputs, engage
from e2e.stages.course import Course
from e2e.stages.survey import know_device, survey
from e2e.stages.timing import run_block, warm_up
from e2e.trials import CANDIDATE, SHAM, Timed, compared
from e2e.units import Seconds
from e2e.workers import CandidateFault, Member

PILOT_BLOCKS = 5
PAUSE_STEPS = 15
"""Steps after which a pause is measured; the median counts."""


def planted(op: str, entry: str) -> Built:
    """The planted kernel of that name, as if it had been built."""
    manifest = Manifest(op=op, entry=entry, binding="python")
    sha256 = hashlib.sha256(f"{op} {entry}".encode()).hexdigest()
    kernel = Kernel(spec=f"planted:{entry}", path=None, sha256=sha256, manifest=manifest, format="planted")
    return Built(kernel=kernel, builder="planted", artifact=entry, seconds=0.0, cached=True)


def for_op(course: Course, op: str) -> Course:
    """The same crew on another op, with its honest kernel; evidence starts anew."""
    honest = planted(op, REFERENCE)
    crew = replace(course.crew, members=[Member(honest.kernel, honest)])
    nothing = Evidence(stage_asked=Stage.CHECK, stage_finished=Stage.CHECK)
    return replace(course, crew=crew, evidence=nothing, clean=None, fqns=[], facts={})


# ---- Kernels


def look(course: Course) -> bool:
    """Find the op's sites, and check its honest kernel as any candidate; False where the op does not occur."""
    course.clean = course.crew.worker(clean=True)
    know_device(course)
    survey(course)
    if not course.fqns:
        course.clean.close()
        return False
    check_mutants(course)
    with course.crew.candidate_worker(course.fqns, stage=Stage.CHECK) as worker:
        check_op(course, worker)
        engage(course, worker)
    return True


def catches(course: Course) -> list[Catch]:
    """Every planted kernel of the op through the check that candidates go through."""
    wrong = [f"mutant:{mutant.name}" for mutant in course.evidence.mutants] + [f"trick:{name}" for name in TRICKS]
    honest = [REFERENCE, *(f"alternative:{name}" for name in course.facts["alternatives"])]
    entries = [*honest, *wrong]
    found = []
    worker = course.crew.candidate_worker(course.fqns, stage=Stage.CHECK)
    try:
        for place, entry in enumerate(entries):
            course.progress.advance(place, len(entries), f"planted kernels of {course.crew.ops[0]}")
            own = _with(course, entry)
            try:
                own.crew.bind(worker, own.fqns, stage=Stage.CHECK)
                check_op(own, worker)
            except CandidateFault as caught:
                own.fail(caught.fault)
                worker = course.crew.candidate_worker(course.fqns, stage=Stage.CHECK)
                if entry.startswith("alternative:") and caught.fault.code is ReasonCode.CANDIDATE_RAISED:
                    continue  # torch has no such path for these calls here: it refuses, and nobody accuses it
            found.append(_catch(own, entry, "check"))
    finally:
        worker.close()
    return found


def late_catches(course: Course) -> list[Catch]:
    """Kernels that turn wrong while they are timed, and one that does not: their timed outputs tell."""
    with course.crew.candidate_worker(course.fqns, stage=Stage.CHECK) as worker:
        check_outputs(course, worker)  # how rough the baseline is, and so how far apart right outputs may be
    found = []
    for entry in (REFERENCE, *(f"trick:{name}" for name in LATE_TRICKS)):
        own = replace(_with(course, entry), digests={})
        try:
            _time_outputs(own)
        except CandidateFault as caught:
            own.fail(caught.fault)
        found.append(_catch(own, entry, "timing"))
    return found


def _time_outputs(course: Course) -> None:
    """One block beside the baseline, so long that a late trick spoils about half of its steps."""
    assert course.evidence.engagement is not None
    steps = math.ceil(LATE_CALLS / max(1, course.evidence.engagement.calls))
    plan = {AS_SHIPPED: steps, CANDIDATE: steps}
    with course.crew.candidate_worker(course.fqns, stage=Stage.VERDICT) as worker:
        for arm in plan:
            course.crew.ask(worker, "prepare", stage=Stage.VERDICT, arm=arm, profiled=False)
        course.crew.require(worker, "settle")
        _block(course, worker, plan, number=0, block=0)
    count = len(course.digests)
    audit = Audit(steps_timed=count, steps_committed=count, steps_audited=0, mismatches=[], baseline_repeats=None)
    course.learn(audit=audit.model_copy(update=compared(course.digests, course.evidence, dtype=course.crew.cell.dtype)))


def _with(course: Course, entry: str) -> Course:
    """The course with another planted kernel of the same op."""
    (member,) = course.crew.members
    built = planted(member.op, entry)
    return replace(course, crew=replace(course.crew, members=[replace(member, kernel=built.kernel, built=built)]))


def _catch(course: Course, entry: str, stage: Literal["check", "timing"]) -> Catch:
    verdict = judge(course.evidence, course.policy)
    kind, _, name = entry.partition(":")
    return Catch(
        op=course.crew.ops[0],
        kernel=name or entry,
        kind="wrong" if kind in ("mutant", "trick") else "honest",
        stage=stage,
        outcome=verdict.outcome,
        codes=[reason.code for reason in verdict.reasons],
    )


# ---- Times


@dataclass
class Clock:
    """How long workers take here, and the plan that follows from the step."""

    step_s: Seconds
    plan: Mapping[str, int]
    pauses: Mapping[str, Seconds]
    openings: list[Seconds] = field(default_factory=list)
    """Of every worker: until its arms were ready."""
    timings: list[Seconds] = field(default_factory=list)
    """Of every worker: its blocks."""

    @property
    def opening_s(self) -> Seconds:
        """Of a usual worker; 0 before the first."""
        return median(self.openings) if self.openings else 0.0

    @property
    def timed_s(self) -> Seconds:
        """Of a usual worker; 0 before the first."""
        return median(self.timings) if self.timings else 0.0


def pilot(course: Course) -> Seconds:
    """The eager step, which sizes segments and pauses; part of no trial."""
    own = replace(course, digests={})
    with own.crew.candidate_worker(own.fqns, stage=Stage.SCREEN) as worker:
        own.crew.require(worker, "prepare", arm=AS_SHIPPED)
        own.crew.require(worker, "settle")
        for block in range(PILOT_BLOCKS):
            run_block(
                own,
                worker,
                {AS_SHIPPED: own.policy.min_steps},
                phase="pilot",
                worker_number=0,
                block_number=block,
                stage=Stage.SCREEN,
            )
    step_s = stats.step_seconds(own.evidence.segments, AS_SHIPPED)
    assert step_s is not None
    return step_s


def clock_for(course: Course, step_s: Seconds, pauses: Mapping[str, Seconds]) -> Clock:
    """Equal steps for all arms: eager, identical code, and everything planted."""
    steps = steps_for(step_s, segment_s=course.policy.segment_s, min_steps=course.policy.min_steps)
    return Clock(step_s, dict.fromkeys([AS_SHIPPED, SHAM, *pauses], steps), pauses)


def time_run(course: Course, clock: Clock, *, number: int) -> Timed | None:
    """As many fresh workers as the first look needs; None when the time ended before they were done."""
    own = replace(course, digests={}, steps_run=0, steps_committed=0)
    timed = Timed(number)
    workers = own.policy.looks[0]
    for place in range(workers):
        if own.deadline.left_s < (workers - place) * (clock.opening_s + clock.timed_s):
            return None
        own.progress.advance(place, workers, f"run {number + 1}: worker", own.deadline.left_s)
        pauses = _one_worker(own, clock, number=number * workers + place)
        if pauses is None:
            return None
        timed.pauses[number * workers + place] = pauses
    timed.segments = own.evidence.segments
    timed.steadiness, timed.allocations = own.evidence.steadiness, own.evidence.allocations
    timed.digests, timed.steps_run, timed.steps_committed = own.digests, own.steps_run, own.steps_committed
    timed.replays = _replays(own, clock)
    return timed


def _one_worker(course: Course, clock: Clock, *, number: int) -> dict[str, Seconds] | None:
    """All arms in a fresh process, one discarded block, then the counted ones; what the pauses took there.

    None when the time was over before.
    """
    start = time.monotonic()
    with course.crew.candidate_worker(course.fqns, stage=Stage.VERDICT) as worker:
        order = list(clock.plan)
        course.rng.shuffle(order)
        for arm in order:
            if ArmName.parse(arm).role is Role.PLANTED:
                course.crew.require(worker, "plant", arm=arm, pause_s=clock.pauses[arm])
            else:
                course.crew.require(worker, "prepare", arm=arm, profiled=False)
        warm_up(course, worker, order, worker_number=number, stage=Stage.VERDICT)
        ready = time.monotonic()
        for block in range(-1, course.policy.blocks):
            if course.deadline.left_s <= 0:
                return None
            _block(course, worker, clock.plan, number=number, block=block)
        clock.openings.append(ready - start)
        clock.timings.append(time.monotonic() - ready)
        return {arm: _pause_s(course, worker, arm) for arm, pause_s in clock.pauses.items() if pause_s}


def _block(course: Course, worker: Worker, plan: Mapping[str, int], *, number: int, block: int) -> None:
    run_block(
        course,
        worker,
        plan,
        phase="verdict",
        worker_number=number,
        block_number=block,
        stage=Stage.VERDICT,
    )


def _pause_s(course: Course, worker: Worker, arm: str) -> Seconds:
    first = course.seeds.take(PAUSE_STEPS)
    seeds = list(range(first, first + PAUSE_STEPS))
    return float(course.crew.require(worker, "pause", arm=arm, seeds=seeds)["pause_s"])


def _replays(course: Course, clock: Clock) -> list[Replay]:
    """A random few steps of every arm, replayed as eager in the clean process: all of it is the same code."""
    assert course.clean is not None
    found = []
    for arm in clock.plan:
        seeds = [seed for name, seed in course.digests if name == arm]
        chosen = course.rng.sample(seeds, max(1, round(course.policy.audit_fraction * len(seeds))))
        reply = course.crew.require(course.clean, "digests", arm=AS_SHIPPED, seeds=chosen)
        replayed = [Fingerprint.read(value) for value in reply["digests"]]
        found += [Replay(arm, course.digests[(arm, s)], r) for s, r in zip(chosen, replayed, strict=True)]
    return found
