"""Stage `check`: the op's sites, proof of engagement, and correctness against higher precision."""

from __future__ import annotations

from e2e.processes import Worker
from e2e.schema.words import Stage
from e2e.stages import earlier
from e2e.stages.apart import tried_apart
from e2e.stages.correctness import check_mutants, check_op, check_outputs, check_training, compare_outputs, engage
from e2e.stages.course import Course
from e2e.stages.lineup import need_room, warm_caches
from e2e.stages.sanitizing import sanitize
from e2e.stages.survey import know_device, scouted, survey

STAGE = Stage.CHECK


def check(course: Course) -> None:
    """Survey the model, begin to compile beside it what an earlier run did not, and judge the candidate's outputs."""
    begun = open_model(course)
    if not course.is_applicable:
        begun.close()
        course.finish(STAGE)
        return
    if course.evidence.stage_asked.rank > STAGE.rank:
        get_ahead(course)
    worker = course.crew.candidate_worker(course.fqns, stage=STAGE, begun=begun)
    course.learn(bind_s=course.crew.bind_s)
    try:
        course.progress.stage("check", "the op on the model's own activations, against float64")
        with tried_apart(course, check_op, stage=STAGE):
            check_op(course, worker)  # first: a wrong dtype or shape would only raise somewhere in the model
        check_mutants(course)
        if course.crew.cell.step == "train":
            with tried_apart(course, check_training, stage=STAGE):
                check_training(course, worker)
        else:
            with tried_apart(course, compare_outputs, stage=STAGE):
                engage(course, worker)
                check_outputs(course, worker)
        course.crew.see_rest(worker, stage=STAGE)
        sanitize(course)
    finally:
        worker.close()
    course.finish(STAGE)


def open_model(course: Course) -> Worker:
    """The clean process with the model open, and what it says of the sites; gives the process begun for the kernels."""
    course.progress.stage("check", "loading the model, looking for the op's sites")
    with course.spending("load"):
        clean = course.crew.begin(clean=True)
        early = None if course.crew.has_to_fetch else course.crew.begin(clean=False)
        course.crew.warm()
        course.clean = course.crew.opened(clean)
        begun = early or course.crew.begin(clean=False)
    know_device(course)
    named = None
    if any(member.kernel.manifest.kind == "patch" for member in course.crew.members):
        named = scouted(course, begun)
        begun = course.crew.begin(clean=False)
    survey(course, named)
    return begun


def get_ahead(course: Course) -> None:
    """Begin to compile what the screen will need.

    Raises:
        EnvironmentFault: the device cannot hold it.
    """
    need_room(course)
    course.left_out = earlier.left_out(course)
    course.warmers = warm_caches(course)
