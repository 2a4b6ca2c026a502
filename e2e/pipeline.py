"""PARENT: load, build, collect, judge, store. Torch-free; never loads a candidate; owns clock, schedule, verdict."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from e2e import assembly, attempts, registry, reproduction, store
from e2e.building import build_all
from e2e.cache import cache_folder
from e2e.errors import E2EError, NoRoom
from e2e.judge import judge
from e2e.keeping import Keeper
from e2e.loading import load
from e2e.measure.devices import reserved
from e2e.outset import course_of
from e2e.protocols import Progress
from e2e.request import Loaded, Request
from e2e.rules.pins import pins_missed
from e2e.schema.result import Result
from e2e.schema.words import Stage
from e2e.schema.workload import Cell
from e2e.scratch import scratch_folder
from e2e.stages import command
from e2e.stages.afterwards import look_back
from e2e.stages.check import check
from e2e.stages.course import Course
from e2e.stages.restart import start_again
from e2e.stages.screen import screen
from e2e.stages.verdict import time_verdict
from e2e.sweep import is_final
from e2e.workers import CandidateFault

STAGES = ((Stage.CHECK, check), (Stage.SCREEN, screen), (Stage.VERDICT, time_verdict))


def validate(request: Request, progress: Progress) -> Result:
    """Run a workload with and without the kernel, as far as `request.until`, and say what came of it.

    Raises:
        UsageError: the caller's mistake, found before anything ran.
        EnvironmentFault: this machine cannot run it, found before anything ran; or the result cannot be stored.
    """
    loaded = load(request)
    run = _folder(loaded)
    progress.stage("run", str(run.folder))
    with run.held():
        keeper, error = Keeper(loaded, run), None
        try:
            with reserved(loaded.device, cache_folder() / "locks", progress.note):
                for cell in keeper.waiting():
                    collect(loaded, cell, run, progress, keeper)
        except (E2EError, KeyboardInterrupt) as caught:
            error = caught
        return _stored(keeper.result(assembly.error_record(error, run.folder)), run, loaded)


def _folder(loaded: Loaded) -> store.Run:
    """A fresh one, or that of the run that goes on."""
    before = loaded.request.resume
    if before is not None:
        return store.Run(loaded.request.out / before.run_id)
    return store.Run.create(loaded.request.out, loaded.workload.workload.name)


def _stored(result: Result, run: store.Run, loaded: Loaded) -> Result:
    """The result with its reports on disk, and with its place among the attempts."""
    stored = run.finish(result)  # before the ledger, which others write too: nothing there may cost a result
    if (counted := attempts.enter(stored, loaded.request.out)) is not None:
        stored = run.finish(stored.model_copy(update={"attempts": counted}))
    for style in ("md", "html"):
        run.write_text(f"report.{style}", registry.load("reports", style).render(stored))
    text, _ = reproduction.script(stored, assembly.near(f"{loaded.workload.path.parent}{os.sep}"))
    if text is not None:
        run.write_text(reproduction.NAME, text)
    if stored.error is None or not stored.error.is_resumable:
        run.end()
    return stored


def collect(loaded: Loaded, cell: Cell, run: store.Run, progress: Progress, keeper: Keeper) -> None:
    """Every stage in order, until one ends the cell or the asked one is reached; the keeper sees what comes of it."""
    with scratch_folder() as scratch:
        course = course_of(loaded, cell, run, progress, scratch)
        keeper.follow(course)
        for missed in pins_missed(course.evidence, course.policy.pins):
            progress.note(f"this run cannot count under policy {course.policy.name}: {missed}")
        try:
            is_command = loaded.workload.workload.is_command
            if loaded.request.until is not Stage.BUILD and not is_command:
                course.crew.start()  # before the compiler, whose time the imports then share
            build_all(course, loaded, run)
            if not course.evidence.faults and loaded.request.until is not Stage.BUILD:
                _stages(course, command.STAGES if is_command else STAGES)
        except NoRoom as error:
            if course.cells == 1:
                raise
            course.learn(no_room=error.message)
        finally:
            course.crew.close()
    keeper.complete()


def _stages(course: Course, stages: Sequence[tuple[Stage, Callable[[Course], None]]]) -> None:
    try:
        if stages is STAGES:
            start_again(course)  # a command has its processes made for every request
        for stage, work in stages:
            finished = course.evidence.stage_finished
            if finished is not None and stage.rank <= finished.rank:
                continue
            if stage.rank > course.evidence.stage_asked.rank or _is_final(course):
                break
            if course.deadline.left_s <= 0:
                course.learn(budget_exhausted=True)
                break
            course.draw_for(stage)
            with course.spending("check" if stage is Stage.CHECK else "other"):
                work(course)
    except CandidateFault as caught:
        course.fail(caught.fault)
    telemetry, unseen = course.watch.end()
    unseen += course.crew.remarks()
    course.learn(telemetry=telemetry, unseen=[*course.evidence.unseen, *unseen], trust=course.crew.trust)
    if not course.evidence.faults:
        try:
            with course.spending("afterwards"):
                look_back(course)
        except CandidateFault as caught:
            course.fail(caught.fault)


def _is_final(course: Course) -> bool:
    """Whether what is known now, taken as all that was asked, has an outcome that stands."""
    finished = course.evidence.stage_finished
    if finished is None or finished is Stage.BUILD:
        return False
    so_far = course.evidence.model_copy(update={"stage_asked": finished})
    return is_final(judge(so_far, course.policy).outcome, course.policy, cells=course.cells)
