"""Steps fed by their data pipeline, in a process of their own; explains, never decides, and accuses nobody."""

from __future__ import annotations

from collections.abc import Sequence

from e2e.errors import EnvironmentFault
from e2e.measure.schedule import steps_for
from e2e.processes import WorkerFault
from e2e.schema.evidence import Fed
from e2e.schema.words import Stage
from e2e.stages.course import Course
from e2e.weighing import find_arm
from e2e.workers import CandidateFault

SPAN_S, LEAST_STEPS, MOST_STEPS = 0.5, 8, 256
"""Seconds of fed steps at a time, if the pipeline keeps up, and their number."""


def measure_fed(course: Course, arms: Sequence[str], *, stage: Stage) -> None:
    """The pipeline alone, then both arms fed by it, in mirrored order, where the workload includes its data."""
    if "data" not in course.crew.workload.workload.include:
        return
    if course.deadline.left_s <= 0:
        course.learn(unseen=[*course.evidence.unseen, "the data pipeline: the time was used up"])
        return
    course.progress.stage("pipeline", "steps fed by their data pipeline")
    try:
        found = _timed(course, arms, stage)
    except (WorkerFault, CandidateFault, EnvironmentFault) as fault:
        course.learn(unseen=[*course.evidence.unseen, f"the data pipeline: {fault.message}"])
        return
    course.learn(fed=found)


def _timed(course: Course, arms: Sequence[str], stage: Stage) -> list[Fed]:
    data, budgets = course.crew.workload.workload.data, course.policy.budgets
    baseline = find_arm(course.evidence, arms[0])
    step_s = baseline.step_s if baseline is not None and baseline.step_s is not None else SPAN_S
    settle = 2 + data.workers * data.prefetch  # made ahead while nobody waited
    steps = settle + min(MOST_STEPS, steps_for(step_s, segment_s=SPAN_S, min_steps=LEAST_STEPS))
    order: list[str | None] = [None, *arms]
    times: dict[str | None, list[float]] = {arm: [] for arm in order}
    with course.crew.candidate_worker(course.fqns, stage=stage) as worker:
        for arm in arms:
            worker.call("prepare", timeout_s=budgets.compile_s, arm=arm, profiled=False)
        for fed in (*order, *reversed(order)):
            first = course.seeds.take(steps)
            seeds = list(range(first, first + steps))
            reply = worker.call("feed", timeout_s=budgets.call_s, arm=fed, seeds=seeds, settle=settle)
            times[fed].append(reply["batch_s"])
    return [
        Fed(arm=arm, batch_s=min(values), spread_ratio=max(values) / min(values) - 1) for arm, values in times.items()
    ]
