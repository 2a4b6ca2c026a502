"""Timed segments: planned and stamped by the parent, run by a worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from e2e.errors import E2EError
from e2e.measure.audit import Fingerprint
from e2e.measure.schedule import Turn, block
from e2e.processes import Worker, WorkerFault
from e2e.schema.evidence import Segment
from e2e.schema.words import Stage
from e2e.stages.course import Course
from e2e.units import Seconds

Phase = Literal["pilot", "ceiling", "verdict"]


def run_block(
    course: Course,
    worker: Worker,
    plan: Mapping[str, int],
    *,
    phase: Phase | None,
    worker_number: int,
    block_number: int,
    stage: Stage,
) -> None:
    """One mirrored block of all arms in `plan`; with `phase=None` it only warms up.

    Raises:
        CandidateFault: the process that holds the candidate died or hung.
    """
    turns = block(plan, settle=course.policy.settle_steps, rng=course.rng, seeds=course.seeds)
    segments = []
    for turn in turns:
        seconds = _segment(course, worker, turn, stage=stage, keep=phase is not None)
        if phase is not None:
            segments.append(
                Segment(
                    phase=phase,
                    worker=worker_number,
                    block=block_number,
                    position=turn.position,
                    arm=turn.arm,
                    steps=turn.steps,
                    seconds=seconds,
                    seed=turn.seed,
                )
            )
    course.learn(segments=[*course.evidence.segments, *segments])
    course.watch.look()


def clean_segment(course: Course, worker: Worker, arm: str, *, steps: int) -> Seconds:
    """Seconds per step of one segment in the clean process; part of no interval and no audit."""
    turn = Turn(arm, 0, steps, course.policy.settle_steps, course.seeds.take(steps + course.policy.settle_steps))
    limit = course.policy.budgets.call_s
    course.crew.require(worker, "stage", arm=arm, seeds=turn.seeds, settle=turn.settle)
    try:
        stamps, _ = worker.stamps("go", marks=2, timeout_s=limit)
    except WorkerFault as fault:
        raise E2EError(f"a process without the candidate failed: {fault.message}") from fault
    return (stamps[1] - stamps[0]) / 1e9 / steps


def _segment(course: Course, worker: Worker, turn: Turn, *, stage: Stage, keep: bool) -> Seconds:
    """Seconds of the counted steps: from the sync before the first to the sync after the last."""
    limit = course.policy.budgets.call_s
    try:
        worker.call("stage", timeout_s=limit, arm=turn.arm, seeds=turn.seeds, settle=turn.settle)
        stamps, reply = worker.stamps("go", marks=2, timeout_s=limit)
    except WorkerFault as fault:
        raise course.crew.blame(fault, stage=stage, worker=worker) from fault
    if reply.get("recompiled") and keep and turn.arm not in course.evidence.recompiles:
        course.learn(recompiles=[*course.evidence.recompiles, turn.arm])
    if keep:
        found = [Fingerprint.read(value) for value in reply.get("digests", [])]
        known = {(turn.arm, seed): item for seed, item in zip(turn.seeds, found, strict=False) if item is not None}
        course.digests |= known
        course.steps_run += len(turn.seeds)
        course.steps_committed += len(known)
    return (stamps[1] - stamps[0]) / 1e9
