"""Memory of the chosen arms, each alone in fresh processes; nothing here is timed."""

from __future__ import annotations

from collections.abc import Iterator

from e2e.errors import EnvironmentFault
from e2e.measure.schedule import steps_for
from e2e.processes import WorkerFault
from e2e.schema.evidence import MemoryRecord
from e2e.schema.words import Stage
from e2e.stages.course import Course
from e2e.weighing import find_arm
from e2e.workers import CandidateFault

SPAN_S, LEAST_STEPS, MOST_STEPS = 1.0, 8, 64
"""Seconds of steps per process, and their number: enough that a leak of some kilobytes a step is seen."""


def measure_memory(course: Course, *, stage: Stage) -> None:
    """One process per arm, or as many as a memory outcome needs; one after the other.

    What a device has left is counted over all processes, so two at once would see each other.
    """
    course.progress.stage("memory", "each arm alone in a process of its own")
    steps = _steps(course)
    try:
        for arm, process in _turns(course):
            if course.deadline.left_s <= 0:
                course.learn(unseen=[*course.evidence.unseen, "memory: the time was used up"])
                return
            with course.crew.candidate_worker(course.fqns, stage=stage) as worker:
                reply = worker.call("memory", timeout_s=course.policy.budgets.compile_s, arm=arm, steps=steps)
            record = MemoryRecord.model_validate({**reply, "arm": arm, "process": process})
            course.learn(memory=[*course.evidence.memory, record])
    except (WorkerFault, CandidateFault, EnvironmentFault) as fault:
        course.learn(unseen=[*course.evidence.unseen, f"memory: {fault.message}"])


def _turns(course: Course) -> Iterator[tuple[str, int]]:
    """Arm and number of its process, in pairs; the arm that goes first alternates, as what is cached may matter."""
    arms = [str(course.evidence.baseline), str(course.evidence.candidate)]
    for process in range(course.policy.memory.processes if course.policy.objective == "memory" else 1):
        yield from ((arm, process) for arm in (arms if process % 2 == 0 else reversed(arms)))


def _steps(course: Course) -> int:
    """The same for both arms, by the baseline's pilot time."""
    baseline = find_arm(course.evidence, course.evidence.baseline)
    assert baseline is not None and baseline.step_s is not None
    return min(MOST_STEPS, steps_for(baseline.step_s, segment_s=SPAN_S, min_steps=LEAST_STEPS))
