"""PyTorch's own arms in the process that never held the candidate: what its company costs them.

A candidate can slow its opponents down, or break them, in the processes that it shares with them; it cannot reach
this one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from e2e.arm_names import AS_SHIPPED, ArmName, is_adopted
from e2e.errors import E2EError
from e2e.processes import WorkerFault
from e2e.schema.evidence import ArmRecord, CleanTime
from e2e.schema.words import Mode, Role
from e2e.stages import earlier
from e2e.stages.course import Course
from e2e.stages.timing import clean_block, segment_steps
from e2e.units import Seconds

COMPILE_SHARE = 0.25
"""Of the time left, the most that compiling an arm once more may take: the workers need the rest."""


def make_ready(course: Course, plan: Mapping[str, int]) -> list[str]:
    """The arms of the plan that the clean process has, as far as the time allows, simplest first.

    Eager as shipped is always there, for the audit. Baselines that failed beside the candidate are tried again.
    """
    assert course.clean is not None
    course.crew.make_arena(course.clean)
    course.crew.require(course.clean, "prepare", arm=AS_SHIPPED)
    own = _own(course)
    failed = [arm.name for arm in own if arm.status == "failed"]
    course.learn(clean_works=[name for name in failed if _is_prepared(course, name)])
    planned = sorted((arm for arm in own if arm.name in plan), key=lambda arm: arm.mode.rank)
    names = [arm.name for arm in planned if _is_prepared_in_time(course, arm)]
    names += [_TWIN] if len(names) == 1 and _is_prepared(course, _TWIN) else []
    course.crew.require(course.clean, "settle")
    return names


_TWIN = str(ArmName(Role.SHAM, Mode.EAGER))
"""Identical code, for an arm that would otherwise have none to take turns with."""


def time_losers(course: Course, arms: Sequence[str]) -> None:
    """Before a gain is believed: those of the plan beside those that lost the tournament, which the candidate's
    process held, or were left out of it; its own mode first, then the fastest.
    """
    candidate = next(arm for arm in course.evidence.arms if arm.name == course.evidence.candidate)
    others = [arm for arm in _own(course) if arm.name not in arms]
    lost = [arm for arm in others if arm.step_s is not None or arm.status == "left_out"]
    lost.sort(key=lambda arm: (arm.mode is not candidate.mode, arm.step_s or 0.0))
    names = [arm.name for arm in lost if _is_prepared_in_time(course, arm)]
    if names:
        time_arms(course, [*arms, *names], worker=None, blocks=course.policy.blocks)
    times = {item.arm: item.step_s for item in course.evidence.clean_times if item.worker is None}
    left_out = [times[arm.name] for arm in lost if arm.status == "left_out" and arm.name in times]
    if min(left_out, default=math.inf) < times.get(str(course.evidence.baseline), 0.0):
        earlier.forget(course)


def _own(course: Course) -> list[ArmRecord]:
    return [arm for arm in course.evidence.arms if arm.role is Role.BASELINE and not is_adopted(arm.alternative)]


def time_arms(course: Course, arms: Sequence[str], *, worker: int | None, blocks: int) -> None:
    """One discarded block, then the counted ones; right after a worker's own, both met the machine as it was then."""
    assert course.clean is not None
    plan = {arm: segment_steps(course, arm) for arm in arms}
    times: dict[str, list[Seconds]] = {arm: [] for arm in arms}
    for number in range(-1, blocks if arms else -1):
        if course.deadline.left_s <= 0:
            return
        for arm, found in clean_block(course, course.clean, plan).items():
            times[arm] += found if number >= 0 else []
    own = {arm: found for arm, found in times.items() if ArmName.parse(arm).role is Role.BASELINE}
    records = [CleanTime(arm=arm, step_s=median(steps), worker=worker) for arm, steps in own.items()]
    course.learn(clean_times=[*course.evidence.clean_times, *records])


def _is_prepared_in_time(course: Course, arm: ArmRecord) -> bool:
    """It may have to compile once more."""
    is_short = (arm.first_step_s or 0.0) < COMPILE_SHARE * course.deadline.left_s
    return arm.name == AS_SHIPPED or (is_short and _is_prepared(course, arm.name))


def _is_prepared(course: Course, arm: str) -> bool:
    """Whether the arm works in the clean process; a device that is full by now, for instance, is no fault.

    Raises:
        E2EError: the process itself ended.
    """
    assert course.clean is not None
    try:
        course.clean.call("prepare", timeout_s=course.policy.budgets.compile_s, arm=arm, profiled=False)
    except WorkerFault as fault:
        if fault.kind != "raised":
            raise E2EError(f"a process without the candidate failed: {fault.message}") from fault
        return False
    return True
