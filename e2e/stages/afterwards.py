"""After the timing: memory of the chosen arms, traces, and proof from the traces. Nothing here is timed."""

from __future__ import annotations

from e2e.arm_names import AS_SHIPPED
from e2e.profile import timeline
from e2e.schema.words import Stage
from e2e.stages.course import Course
from e2e.stages.memory import measure_memory

TRACE_STEPS = 3


def look_back(course: Course) -> None:
    """Memory and traces of the strongest baseline and the best candidate arm, as far as the time allows."""
    arms = [arm for arm in (course.evidence.baseline, course.evidence.candidate) if arm is not None]
    if len(arms) < 2 or course.pilot is None or not course.pilot.alive:
        return
    if course.deadline.left_s <= 0:
        course.learn(unseen=[*course.evidence.unseen, "memory and traces: the time was used up"])
        return
    stage = course.evidence.stage_finished or Stage.SCREEN
    if course.traces:
        course.progress.stage("traces", "one profiled, untimed pass per arm")
        _trace(course, arms, stage)
    if not course.evidence.memory:  # a screen for a memory outcome has it already
        measure_memory(course, stage=stage)


def _trace(course: Course, arms: list[str], stage: Stage) -> None:
    assert course.pilot is not None
    found = {}
    for arm in dict.fromkeys([*arms, AS_SHIPPED]):
        raw = course.path("trace.json")
        reply = course.crew.ask(course.pilot, "trace", stage=stage, arm=arm, path=str(raw), steps=TRACE_STEPS)
        try:
            found[arm] = timeline.store(raw, course.folder / "traces", arm=arm, steps=int(reply["steps"]))
        except (ValueError, OSError, KeyError, TypeError) as error:
            course.learn(unseen=[*course.evidence.unseen, f"trace of {arm}: {error}"])
    course.learn(traces=[item.record for item in found.values()])
    if arms[0] in found and arms[1] in found:
        baseline, candidate = found[arms[0]], found[arms[1]]
        course.learn(kernel_times=timeline.difference(baseline, candidate))
        _engaged(course, timeline.new_names(baseline, candidate))
        if course.evidence.device is not None:
            device = course.evidence.device.model_copy(update={"busy_ratio": baseline.busy_ratio})
            course.learn(device=device)
            if baseline.busy_ratio is None and device.kind == "cuda":
                course.learn(unseen=[*course.evidence.unseen, "device events: shares of the step are unknown"])


def _engaged(course: Course, names: list[str]) -> None:
    engagement = course.evidence.engagement
    if engagement is None:
        return
    proof = engagement.proof
    if names:
        proof += "; the candidate's trace shows kernels that the baseline's does not"
    course.learn(engagement=engagement.model_copy(update={"device_kernels": names[:20], "proof": proof}))
