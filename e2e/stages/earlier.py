"""What the pilot of an earlier run on the same workload tells this one: modes that lost by far are not tried again.

Only the choice is taken over, never a time. A pilot's times come from a process that held another kernel, which may
have slowed any arm down: before a gain is confirmed, what was left out is timed in the clean process after all.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from e2e import wording
from e2e.arm_names import ArmName, is_adopted
from e2e.exam import identity_of
from e2e.schema.record import Record
from e2e.schema.words import MODES, Mode, Role
from e2e.stages.course import Course
from e2e.surroundings import packages
from e2e.units import Seconds

FAR = 1.2
"""A mode this much slower than the strongest baseline, also with the op replaced by nothing, is left out. Where the
host is the bottleneck a pilot errs by 7 to 16 % (METHOD.md). Chosen, not measured."""


class PilotTimes(Record):
    """Median pilot steps by arm, on disk."""

    run: str
    steps_s: dict[str, Annotated[Seconds, Field(gt=0)]]


def remember(course: Course) -> None:
    """Keep this pilot's times, unless the kernel stands at some sites only: its headroom is then its own."""
    path = _path(course)
    times = {arm.name: arm.step_s for arm in course.evidence.arms if arm.step_s is not None}
    if path is None or not times or not course.runs_everywhere:
        return
    known = PilotTimes(run=course.folder.name, steps_s={**_recalled(path), **times})
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_text(known.model_dump_json(), encoding="utf-8")
        part.replace(path)


def forget(course: Course) -> None:
    """The choice proved wrong: the next run tries every mode."""
    path = _path(course)
    if path is not None:
        path.unlink(missing_ok=True)


def left_out(course: Course) -> dict[Mode, str]:
    """Modes that an earlier pilot of this workload found far behind, each with the reason in words."""
    path = _path(course)
    if path is None or not course.runs_everywhere:
        return {}
    wanted = {*course.policy.required_modes}
    return {mode: why for mode, why in far_behind(_recalled(path)).items() if mode not in wanted}


def far_behind(times: Mapping[str, Seconds]) -> dict[Mode, str]:
    """Modes in which neither PyTorch nor any kernel for the op comes near the strongest baseline.

    A mode whose headroom is not known is never among them.
    """
    arms = {ArmName.parse(name): step_s for name, step_s in times.items()}
    own = {arm: step_s for arm, step_s in arms.items() if arm.role is Role.BASELINE and not is_adopted(arm.alternative)}
    if not own:
        return {}
    strongest = min(own, key=lambda arm: own[arm])
    found: dict[Mode, str] = {}
    for mode in MODES:
        rivals = [step_s for arm, step_s in own.items() if arm.mode is mode]
        headroom = arms.get(ArmName(Role.HEADROOM, mode))
        best = min([*rivals, *([headroom] if headroom is not None else [])], default=0.0) / own[strongest]
        if rivals and headroom is not None and best > FAR:
            found[mode] = f"in an earlier run's pilot at best {wording.ratio(best)} the step of {strongest}"
    return found


def _recalled(path: Path) -> dict[str, Seconds]:
    """What is on disk is a convenience: damaged, it is as if there were nothing."""
    with contextlib.suppress(OSError, ValidationError, ValueError):
        times = PilotTimes.model_validate_json(path.read_bytes()).steps_s
        if all(ArmName.parse(name) for name in times):
            return times
    return {}


def _path(course: Course) -> Path | None:
    """By all that an arm's time depends on."""
    exam, crew = course.crew.exam, course.crew
    if exam.folder is None:
        return None
    asked = [exam.identity, exam.seed, course.facts["weights"], packages(), sorted(crew.adopted)]
    return exam.folder / f"pilot-{identity_of(asked)}.json"
