"""Timed segments: planned and stamped by the parent, run by a worker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from e2e.errors import E2EError
from e2e.measure.audit import Fingerprint
from e2e.measure.schedule import Turn, block, steps_for
from e2e.processes import Worker, WorkerFault
from e2e.schema.evidence import Allocations, Segment, Steadiness
from e2e.schema.words import Stage
from e2e.stages.course import Course
from e2e.units import Seconds

Phase = Literal["pilot", "ceiling", "verdict"]


def run_block(
    course: Course,
    worker: Worker,
    plan: Mapping[str, int],
    *,
    phase: Phase,
    worker_number: int,
    block_number: int,
    stage: Stage,
) -> None:
    """One mirrored block of all arms in `plan`; one with a number below 0 only warms up.

    Raises:
        CandidateFault: the process that holds the candidate died or hung.
    """
    turns = block(plan, settle=course.policy.settle_steps, rng=course.rng, seeds=course.seeds)
    segments = []
    with course.spending("timed"):
        for turn in turns:
            span = _segment(course, worker, turn, stage=stage, keep=block_number >= 0)
            if block_number >= 0:
                clock_hz, throttled = course.watch.during(span.start_ns, span.end_ns)
                segments.append(
                    Segment(
                        phase=phase,
                        worker=worker_number,
                        block=block_number,
                        position=turn.position,
                        arm=turn.arm,
                        steps=turn.steps,
                        seconds=span.seconds,
                        seed=turn.seed,
                        clock_hz=clock_hz,
                        throttled=throttled,
                        device_s=span.device_s,
                    )
                )
    course.learn(segments=[*course.evidence.segments, *segments])
    course.watch.look()


def warm_up(course: Course, worker: Worker, arms: Iterable[str], *, worker_number: int, stage: Stage) -> None:
    """Every arm until its steps are steady, or known not to be; then the process is made quiet.

    The same rule for every arm, so that a candidate's speed does not choose how warm its opponents are.

    Raises:
        CandidateFault: the process that holds the candidate died or hung.
    """
    rules = {name: getattr(course.policy, name) for name in ("warm_steps", "warm_s", "warm_most_s")}
    found = []
    with course.spending("warm-up"):
        for arm in arms:
            limit = course.policy.budgets.call_s + course.policy.warm_most_s
            reply = course.crew.ask(worker, "warm_up", stage=stage, timeout_s=limit, arm=arm, **rules)
            found.append(Steadiness.model_validate({"worker": worker_number, "arm": arm, **reply}))
        course.crew.require(worker, "settle", stage=stage)
    course.learn(steadiness=[*course.evidence.steadiness, *found])


@dataclass(frozen=True)
class Span:
    """One timed segment between two marks, stamped by the parent."""

    start_ns: int
    end_ns: int
    device_s: Seconds | None
    """The same by the device's clock, as the worker says."""

    @property
    def seconds(self) -> Seconds:
        """Between the marks."""
        return (self.end_ns - self.start_ns) / 1e9


def segment_steps(course: Course, arm: str) -> int:
    """Counted steps of a segment, from the arm's pilot time; as few as may be where it has none."""
    step_s = next((record.step_s for record in course.evidence.arms if record.name == arm), None)
    least = course.policy.min_steps
    return least if step_s is None else steps_for(step_s, segment_s=course.policy.segment_s, min_steps=least)


def rough_step_s(course: Course, worker: Worker, arm: str, *, stage: Stage) -> Seconds:
    """Seconds of a step by the parent's clock, to size segments; part of nothing else."""
    settle = course.policy.settle_steps
    turn = Turn(arm, 0, ROUGH_STEPS, settle, course.seeds.take(ROUGH_STEPS + settle))
    return _segment(course, worker, turn, stage=stage, keep=False).seconds / ROUGH_STEPS


ROUGH_STEPS = 3


def clean_block(course: Course, worker: Worker, plan: Mapping[str, int]) -> dict[str, list[Seconds]]:
    """Seconds per step of every segment of a block in the clean process; part of no interval and no audit.

    A block like any other, because arms that take turns find colder caches than one that runs alone.
    """
    found: dict[str, list[Seconds]] = {arm: [] for arm in plan}
    for turn in block(plan, settle=course.policy.settle_steps, rng=course.rng, seeds=course.seeds):
        course.crew.require(worker, "stage", arm=turn.arm, seeds=turn.seeds, settle=turn.settle)
        try:
            stamps, _ = worker.stamps("go", marks=2, timeout_s=course.policy.budgets.call_s)
        except WorkerFault as fault:
            raise E2EError(f"a process without the candidate failed: {fault.message}") from fault
        found[turn.arm].append((stamps[1] - stamps[0]) / 1e9 / turn.steps)
    return found


def _segment(course: Course, worker: Worker, turn: Turn, *, stage: Stage, keep: bool) -> Span:
    """The counted steps: from the sync before the first to the sync after the last."""
    limit = course.policy.budgets.call_s
    try:
        worker.call("stage", timeout_s=limit, arm=turn.arm, seeds=turn.seeds, settle=turn.settle)
        stamps, reply = worker.stamps("go", marks=2, timeout_s=limit)
    except WorkerFault as fault:
        raise course.crew.blame(fault, stage=stage, worker=worker) from fault
    if keep:
        _keep(course, turn, reply)
    return Span(stamps[0], stamps[1], reply["device_s"] or None)


def _keep(course: Course, turn: Turn, reply: dict[str, Any]) -> None:
    """Fingerprints and what disturbed the segment, as the worker reports them."""
    if reply["recompiled"] and turn.arm not in course.evidence.recompiles:
        course.learn(recompiles=[*course.evidence.recompiles, turn.arm])
    if reply["allocations"]:
        counts = {item.arm: item.count for item in course.evidence.allocations}
        counts[turn.arm] = counts.get(turn.arm, 0) + reply["allocations"]
        course.learn(allocations=[Allocations(arm=arm, count=count) for arm, count in counts.items()])
    found = [Fingerprint.read(value) for value in reply["digests"]]
    known = {(turn.arm, seed): item for seed, item in zip(turn.seeds, found, strict=False) if item is not None}
    course.digests |= known
    course.steps_run += len(turn.seeds)
    course.steps_committed += len(known)
