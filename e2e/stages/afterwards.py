"""After the timing: memory of the chosen arms, traces, and proof from the traces. Nothing here is timed."""

from __future__ import annotations

from e2e.arm_names import AS_SHIPPED, ArmName
from e2e.profile import causes, timeline
from e2e.profile.timeline import Timeline
from e2e.schema.words import Mode, Role, Stage
from e2e.stages.course import Course
from e2e.stages.fed import measure_fed
from e2e.stages.memory import measure_memory

TRACE_STEPS = 3
_EAGER = str(ArmName(Role.CANDIDATE, Mode.EAGER))


def look_back(course: Course) -> None:
    """Memory and traces of the strongest baseline and the best candidate arm, as far as the time allows."""
    arms = [arm for arm in (course.evidence.baseline, course.evidence.candidate) if arm is not None]
    if len(arms) < 2 or course.pilot is None or not course.pilot.alive:
        return
    stage = course.evidence.stage_finished or Stage.SCREEN
    if course.deadline.left_s <= 0:
        course.learn(unseen=[*course.evidence.unseen, "memory and traces: the time was used up"])
        measure_fed(course, arms, stage=stage)
        return
    if course.traces:
        course.progress.stage("traces", "one profiled, untimed pass per arm")
        _look_at_traces(course, _traced(course, [*arms, AS_SHIPPED, *_for_names(course, arms[1])], stage))
    if not course.evidence.memory:  # a screen for a memory outcome has it already
        measure_memory(course, stage=stage)
    measure_fed(course, arms, stage=stage)


def _for_names(course: Course, candidate: str) -> list[str]:
    """The eager candidate, beside one whose trace does not say which device kernels are the candidate's own."""
    is_on_device = course.evidence.device is not None and course.evidence.device.kind == "cuda"
    is_traced = ArmName.parse(candidate).mode is Mode.EAGER or course.crew.cell.step == "train"
    return [_EAGER] if is_on_device and not is_traced else []


def _traced(course: Course, arms: list[str], stage: Stage) -> dict[str, Timeline]:
    assert course.pilot is not None
    found: dict[str, Timeline] = {}
    for arm in dict.fromkeys(arms):
        raw = course.handed_over("trace.json")
        reply = course.crew.ask(course.pilot, "trace", stage=stage, arm=arm, path=str(raw), steps=TRACE_STEPS)
        try:
            found[arm] = timeline.store(raw, course.folder / "traces", arm=arm, steps=int(reply["steps"]))
        except (ValueError, OSError, KeyError, TypeError) as error:
            course.learn(unseen=[*course.evidence.unseen, f"trace of {arm}: {error}"])
    return found


def _look_at_traces(course: Course, found: dict[str, Timeline]) -> None:
    course.learn(traces=[item.record for item in found.values()])
    baseline, candidate = (found.get(str(arm)) for arm in (course.evidence.baseline, course.evidence.candidate))
    if candidate is None:
        return
    shipped, eager = found.get(AS_SHIPPED), found.get(_EAGER)
    kernels = causes.own_kernels(eager, shipped) if eager is not None and shipped is not None else set()
    opponents = [seen for seen in (baseline, shipped if shipped is not baseline else None) if seen is not None]
    differences = [causes.difference_of(seen, candidate, kernels=kernels) for seen in opponents]
    course.learn(trace_differences=[item for item in differences if item is not None])
    if baseline is None:
        return
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
