"""The workers of a verdict, made ready side by side where cores and memory allow.

On the way to its first block a process opens the workload, loads the kernel and traces its compiled arms: seconds
each, outside everything that is timed. What is ready then waits, while one after the other is timed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from e2e.arm_names import ArmName
from e2e.crew import MANY_CORES
from e2e.measure.machine import thread_count
from e2e.processes import Worker
from e2e.schema.words import Stage
from e2e.stages.course import Course
from e2e.stages.screen import record_of

STAGE = Stage.VERDICT
ROOM_SHARE = 0.5
"""Of the memory that is free, what waiting workers may take together. Chosen, not measured."""


def workers_at_once(course: Course) -> int:
    """How many fit beside each other, if each holds as much as the pilot with all its arms.

    Raises:
        CandidateFault: the pilot is gone, by the candidate's fault.
    """
    if thread_count() < MANY_CORES or course.pilot is None:
        return 1
    room = course.crew.ask(course.pilot, "room", stage=STAGE)
    return max(1, int(ROOM_SHARE * (room["free_bytes"] or 0) / max(1, room["held_bytes"])))


@contextmanager
def ready(course: Course, plans: Sequence[Mapping[str, int]]) -> Iterator[list[Worker]]:
    """A fresh process for each plan, its arms prepared; all of them end with the block.

    Raises:
        CandidateFault: the candidate could not be loaded, or ended a process.
    """
    with ExitStack() as started:
        with course.spending("start"):
            begun = [started.enter_context(course.crew.begin(clean=False)) for _ in plans]
            workers = [course.crew.candidate_worker(course.fqns, stage=STAGE, begun=worker) for worker in begun]
        with course.spending("prepare"):
            orders = [course.rng.sample(list(plan), len(plan)) for plan in plans]
            for worker, order in zip(workers, orders, strict=True):
                for arm in order:
                    course.crew.send(worker, "prepare", stage=STAGE, arm=arm, profiled=False)
            limit = course.policy.budgets.compile_s * len(workers)
            for worker, order in zip(workers, orders, strict=True):
                for arm in order:
                    reply = course.crew.hear(worker, "prepare", stage=STAGE, timeout_s=limit)
                    _know_arm(course, ArmName.parse(arm), reply)
        yield workers


def _know_arm(course: Course, arm: ArmName, reply: Mapping[str, object]) -> None:
    """What a prepared arm proved in this worker; one that was sound in the pilot and is not here is void."""
    record = record_of(course, arm, dict(reply))
    known = {item.name: item for item in course.evidence.arms}
    before = known.get(record.name)
    if before is None or record.status != "ok":
        course.learn(arms=[*({**known, record.name: record}).values()])
