"""A run that was stopped goes on: what lived in processes is started again, and has to be what it was."""

from __future__ import annotations

from e2e.arm_names import AS_SHIPPED
from e2e.errors import EnvironmentFault, UsageError
from e2e.schema.evidence import DeviceFacts, Evidence
from e2e.schema.words import Stage
from e2e.stages.check import get_ahead, open_model
from e2e.stages.course import Course
from e2e.stages.lineup import begin_pilot, wait_for_caches
from e2e.stages.screen import arms_in_use, collected

TELEMETRY = "the machine before the run was taken up again"


def start_again(course: Course) -> None:
    """The clean process and the pilot, as far as the cell had come; nothing that was complete is done again.

    Raises:
        UsageError: the model or its sites are not what they were.
        EnvironmentFault: the device is not, or an arm does not work any more.
        CandidateFault: the candidate ended a process.
    """
    finished = course.evidence.stage_finished
    if finished is None or finished is Stage.BUILD or course.evidence.faults:
        return
    before = course.evidence
    with course.on_the_side():
        _open(course)
        if course.is_applicable and finished is Stage.CHECK and before.stage_asked.rank > finished.rank:
            get_ahead(course)
        elif course.is_applicable and finished.rank > Stage.CHECK.rank:
            _start_pilot(course)
    if before.segments:
        course.watch.begin()
        course.learn(unseen=list(dict.fromkeys([*before.unseen, TELEMETRY])))


def _open(course: Course) -> None:
    """As the check did, without examining anything."""
    before, weights = course.evidence, course.crew.weights
    course.crew.weights = None
    open_model(course).close()
    if weights != course.crew.weights:
        raise UsageError("the model or its weights have changed since the run was stopped: validate it afresh")
    if _place(course.evidence) != _place(before):
        raise EnvironmentFault(
            f"the run was stopped on {_told(before)}, and this is {_told(course.evidence)}: resume it there"
        )
    if _sites(course.evidence) != _sites(before):
        raise UsageError("the sites of the op have changed since the run was stopped: validate it afresh")
    course.evidence = before  # with what the check proved of the sites


def _start_pilot(course: Course) -> None:
    """With the arms that replays and traces need; compile caches have their code."""
    wait_for_caches(course)
    names = arms_in_use(course)
    begin_pilot(course, names)
    records = collected(course, {}, list(names))
    assert course.pilot is not None
    broken = next((record for record in records.values() if record.status != "ok"), None)
    if broken is not None:
        raise EnvironmentFault(
            f"{broken.name} worked before the run was stopped, and does not now: {broken.reason or broken.status}"
        )
    course.crew.require(course.pilot, "settle")
    course.forget_fingerprints()
    if course.verdict is not None:
        _ready_clean(course, course.verdict.clean_arms)


def _ready_clean(course: Course, arms: list[str]) -> None:
    """The clean process holds the arms that it held."""
    assert course.clean is not None
    course.crew.make_arena(course.clean)
    limit = course.policy.budgets.compile_s
    for arm in dict.fromkeys([AS_SHIPPED, *arms]):
        course.crew.require(course.clean, "prepare", timeout_s=limit, arm=arm, profiled=False)
    course.crew.require(course.clean, "settle")


def _place(evidence: Evidence) -> DeviceFacts | None:
    """Where it ran; how busy the device was is a measurement."""
    return None if evidence.device is None else evidence.device.model_copy(update={"busy_ratio": None})


def _told(evidence: Evidence) -> str:
    device = evidence.device
    return "nothing" if device is None else f"{device.name} with {device.count_threads} threads"


def _sites(evidence: Evidence) -> list[tuple[str, str, str | None]]:
    engagement = evidence.engagement
    return [] if engagement is None else [(site.fqn, site.status, site.kernel) for site in engagement.sites]
