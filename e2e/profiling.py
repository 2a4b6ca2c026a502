"""PARENT: `e2e profile`: without any candidate, where a step goes, and what a kernel for each op could win."""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Sequence
from datetime import UTC, datetime

from e2e import assembly, outside, profile_store, registry, store
from e2e.cache import cache_folder
from e2e.errors import E2EError, UsageError
from e2e.formats._names import check_op
from e2e.invocation import Invocation
from e2e.kernel_template import Language, templates
from e2e.loading import load_without_kernel
from e2e.measure.devices import reserved
from e2e.outset import course_of
from e2e.protocols import Progress
from e2e.request import Loaded, Request
from e2e.schema.kernel import OF_MODELS, PATCH
from e2e.schema.profile import OpProfile, ProfileReport
from e2e.schema.result import METHOD
from e2e.schema.workload import Cell, cells_of
from e2e.scratch import scratch_folder
from e2e.stages.course import Course
from e2e.stages.profile import Found, Look, Profiler
from e2e.yaml_lines import printable

POLICY = "profile"
LOOK_SHARE = 0.35
"""Of the budget, what looking for ops may take; the rest is for measuring them."""
_SUGGESTED = 3
"""Ops for which commands are suggested."""


def profile(request: Request, *, ops: tuple[str, ...], progress: Progress) -> ProfileReport:
    """Look at the step and at every op that occurs in it, measure as many as the budget allows, and store it all.

    Only `ops` where any are named.

    Raises:
        UsageError: the caller's mistake.
        EnvironmentFault: this machine cannot run it, or the report cannot be stored.
    """
    started = time.monotonic()
    for name in ops:
        _check(name)
    loaded = load_without_kernel(request, policy=POLICY, command="profile")
    cells = cells_of(loaded.workload.workload)
    run = store.Run.create(request.out, loaded.workload.workload.name)
    progress.stage("run", str(run.folder))
    found, error = Found(), None
    with scratch_folder() as scratch:
        course = course_of(loaded, cells[0], run, progress, scratch)
        try:
            with reserved(loaded.device, cache_folder() / "locks", progress.note):
                course.crew.start(sides=[True])
                _collect(course, found, ops)
        except (E2EError, KeyboardInterrupt) as caught:
            error = caught
            if not found.steps:  # nothing is known
                shutil.rmtree(run.folder, ignore_errors=True)
                raise
        finally:
            course.crew.close()
    report = _report(loaded, cells, course, found, run_id=run.run_id, seconds=time.monotonic() - started, error=error)
    profile_store.keep(report, run)
    return report


def _check(op: str) -> None:
    """Refuse what is no op.

    Raises:
        UsageError: there is none of that name, its file cannot be read, or it lacks what it stands for.
    """
    if op in OF_MODELS or op.startswith(PATCH):
        raise UsageError(f"--op {printable(op)}: no op by itself; module:CLASS and aten:NAME.OVERLOAD are")
    place = outside.place_of(op)
    if place is None:
        check_op(op)
    else:
        outside.sha256_of(place)


def _collect(course: Course, found: Found, ops: tuple[str, ...]) -> None:
    profiler, budget_s = Profiler(course, found), course.policy.budgets.cell_s
    course.progress.stage("profile", "loading the model")
    profiler.open()
    names = list(dict.fromkeys(ops)) or [name for name in registry.names("ops") if name not in OF_MODELS]
    places = {op: profiler.places(op) for op in names}  # first: a name that is none ends the run before there is one
    course.progress.stage("profile", "the step: memory and traces")
    profiler.look_at_step()
    names = sorted((op for op in names if places[op]), key=lambda op: places[op])  # looking takes as long as its calls
    looks: list[Look] = []
    for place, op in enumerate(names):
        course.progress.stage("profile", f"looking for {op} ({place + 1} of {len(names)})")
        if not ops and course.deadline.left_s < (1 - LOOK_SHARE) * budget_s:
            found.ops[op] = OpProfile(op=op, status="not_looked_at", reason="the time for looking was used up")
            continue
        with profiler.guarded(op):
            looks += profiler.look_for(op)
    course.progress.stage("profile", "the model as it is, in every mode")
    profiler.choose_mode()
    looks.sort(key=lambda look: -(found.ops[look.op].stopwatch_ratio or 0.0))
    for place, look in enumerate(looks):
        if course.deadline.left_s <= 0:
            break
        course.progress.stage("profile", f"{look.op} replaced by nothing ({place + 1} of {len(looks)})")
        with profiler.guarded(look.op):
            profiler.measure(look)


def _report(
    loaded: Loaded,
    cells: Sequence[Cell],
    course: Course,
    found: Found,
    *,
    run_id: str,
    seconds: float,
    error: BaseException | None,
) -> ProfileReport:
    assert found.device is not None
    ops = sorted(found.ops.values(), key=_order)
    return ProfileReport(
        run_id=run_id,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=seconds,
        command=list(loaded.request.command),
        error=assembly.error_record(error),
        workload=loaded.workload.workload,
        cell=cells[0],
        cells=len(cells),
        overrides=loaded.workload.overrides,
        policy=loaded.policy,
        random_weights=loaded.workload.workload.model.weights == "random",
        seed=loaded.seed,
        method=METHOD,
        device=found.device,
        model=found.model,
        modes=found.modes,
        strongest=found.strongest,
        steps=found.steps,
        memory=found.memory,
        ops=ops,
        absent=found.absent,
        next=_next(loaded, ops, run_id),
        environment=assembly.environment(loaded, course.evidence),
        unseen=found.unseen,
    )


def _order(op: OpProfile) -> tuple[int, bool, float]:
    """By worth, then by ceiling; those without one by their share of the step, then by the stopwatch."""
    most = op.ceiling or op.share
    rank = ("yes", "maybe", None, "no").index(op.worth)
    return rank, op.share is None, -(most.point_estimate if most else op.stopwatch_ratio or 0.0)


def _next(loaded: Loaded, ops: Sequence[OpProfile], run_id: str) -> list[str]:
    """For the ops worth a kernel: write one, check it on this model's own inputs, validate it."""
    request = loaded.request
    language = Language.CPP if loaded.device.name == "cpu" else Language.CU
    worth = [op for op in ops if op.worth in ("yes", "maybe") and op.op in templates(language)]
    commands = []
    for op in worth[:_SUGGESTED]:
        file = f"{op.op}.{language}"
        options = ["--device", request.device] if request.device != "auto" else []
        typed = Invocation(
            workload=request.workload,
            kernels=(file,),
            run=str(request.out / run_id),
            overrides=request.overrides,
            options=tuple(options),
        )
        commands += [shlex.join(["e2e", "new", "kernel", op.op, "--lang", language.value])]
        if op is worth[0]:
            commands += [shlex.join(["e2e", "check", file, "--captures", typed.run]), typed.validate()]
    return commands
