"""The arms of a run, simplest first, and compiling them ahead of the pilot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from e2e.arm_names import AS_SHIPPED, ArmName, is_adopted
from e2e.crew import MANY_CORES
from e2e.errors import NoRoom
from e2e.measure.machine import thread_count
from e2e.processes import Worker, WorkerFault
from e2e.schema.words import Mode, Role, Stage
from e2e.stages.course import Course
from e2e.wording import count, size

STAGE = Stage.CHECK


def begin_pilot(course: Course, names: Sequence[str]) -> None:
    """Start preparing these arms in a worker of its own, without waiting: compiling takes longest."""
    course.pilot = course.crew.candidate_worker(course.fqns, stage=STAGE)
    for name in names:
        course.pilot.send("prepare", arm=name)


def warm_caches(course: Course) -> list[tuple[Worker, list[str]]]:
    """Compile ahead of the pilot, which then finds the code in the cache: the model's own in clean processes, where no
    kernel can meddle, and not again where an earlier run's did; where cores abound, the kernel's as well.

    There, one process per kind of arm, its modes one after the other: modes of one kind share most of their code.
    What compiles cold does it here, so these first steps are the ones that a user meets.
    """
    is_wide = thread_count() >= MANY_CORES
    arms = [arm for arm in map(ArmName.parse, arm_names(course)) if course.compiles(arm)]
    is_done = course.crew.has_compiled([str(arm) for arm in arms if _is_clean(course, arm)])
    groups: dict[Any, list[str]] = {}
    for arm in arms:
        is_clean = _is_clean(course, arm)
        if (is_clean and not is_done) or (is_wide and not is_clean):
            groups.setdefault((arm.role, arm.alternative) if is_wide else "one at a time", []).append(str(arm))
    if is_done and not groups:
        course.crew.hand_over_compiled(is_earlier=True)
    warmers = []
    for names in groups.values():
        if _is_clean(course, ArmName.parse(names[0])):
            worker = course.crew.worker(clean=True)
            course.crew.make_arena(worker)
        else:
            worker = course.crew.candidate_worker(course.fqns, stage=STAGE)
        for name in names:
            worker.send("prepare", arm=name)
        warmers.append((worker, names))
    return warmers


def _is_clean(course: Course, arm: ArmName) -> bool:
    """Whether a process that never holds the kernel can compile the arm."""
    is_own = arm.role is Role.BASELINE and not is_adopted(arm.alternative)
    return is_own or (arm.role is Role.HEADROOM and course.runs_everywhere)


def wait_for_caches(course: Course) -> None:
    """Until the caches are warm; what failed here fails again in the pilot, where it is recorded."""
    compiled = []
    for worker, names in course.warmers:
        for name in names:
            try:
                reply = worker.answer("prepare", timeout_s=course.policy.budgets.compile_s)
                course.know_first_step(name, reply["first_step_s"], clean=worker.clean)
                compiled += [name] if worker.clean else []
            except WorkerFault as fault:
                if fault.kind != "raised":
                    break
        worker.close()
    course.warmers = []
    if compiled:
        course.crew.know_compiled(compiled)
    course.crew.hand_over_compiled()


def arm_names(course: Course) -> list[str]:
    """The arms of the tournament, simplest first; those of max-autotune come later."""
    return [str(arm) for arm in every_arm(course) if not is_left_out(course, arm)]


def is_left_out(course: Course, arm: ArmName) -> bool:
    """Whether an earlier run's pilot spares us the arm; eager as shipped is wanted in any case."""
    return arm.mode in course.left_out and str(arm) != AS_SHIPPED


def every_arm(course: Course) -> list[ArmName]:
    """Baselines first and simplest first, then candidates, then headroom.

    Without those of max-autotune: they wait until it is known what compiling costs here.
    """
    modes = [mode for mode in course.policy.modes if mode_problem(course, mode) is None]
    modes = [mode for mode in modes if mode is not Mode.MAX_AUTOTUNE]
    alternatives = [None, *course.facts["alternatives"], *course.crew.adopted]
    baselines = [
        ArmName(Role.BASELINE, mode, other)
        for mode in modes
        for other in alternatives
        if other is None or mode in course.policy.alternative_modes
    ]
    candidates = [ArmName(Role.CANDIDATE, mode) for mode in modes]
    return [*baselines, *candidates, *(ArmName(Role.HEADROOM, mode) for mode in modes)]


PROCESSES = 3
"""That hold the model at once, at least: the clean one, the pilot, and the verdict's worker."""
SIZES = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of an element."""


def need_room(course: Course) -> None:
    """In training a process holds the model as it was loaded and one state, which its arms train by turns.

    Raises:
        NoRoom: the device cannot hold them, activations left aside.
    """
    room, cell = course.facts["memory"], course.crew.cell
    if cell.step != "train" or room is None:
        return
    model = int(course.facts["facts"]["parameters"]) * SIZES[cell.dtype]
    is_patch = any(member.kernel.manifest.kind == "patch" for member in course.crew.members)
    states = 2 if is_patch else 1  # of a patch the model that it made is trained as well
    state = model * course.crew.workload.workload.train.copies
    if PROCESSES * (model + states * state) > room:
        raise NoRoom(
            f"{PROCESSES} processes, each with the model of {size(model)} and {count(states, 'training state')} of "
            f"{size(state)}, do not fit into {size(room)}: give it a smaller model, or a device with more memory"
        )


def mode_problem(course: Course, mode: Mode) -> str | None:
    """Why a mode cannot exist in this step or on this device, before anything is tried."""
    if mode is Mode.CUDA_GRAPH and course.crew.cell.step == "train":
        return "a training step is not captured by hand; reduce-overhead captures its forward and backward"
    if mode.is_graphed and mode is not Mode.MAX_AUTOTUNE and course.crew.device == "cpu":
        return "CUDA graphs need a CUDA device"
    return None
