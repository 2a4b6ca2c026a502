"""PARENT: load, build, collect, judge, store. Torch-free; never loads a candidate; owns clock, schedule, verdict."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from e2e import assembly, attempts, guard, registry, reproduction, store
from e2e.again import kernels_of, workload_of
from e2e.arm_names import ADOPTED, is_adopted
from e2e.builders._flags import stated_architectures
from e2e.builders.planted import REFERENCE
from e2e.cache import cache_folder
from e2e.configuration import LoadedWorkload, load_policy, load_workload
from e2e.crew import Crew, Deadline
from e2e.errors import CandidateError, E2EError, NoRoom, UsageError
from e2e.exam import SEED_SPACE, Exam, draw, identity_of
from e2e.judge import judge
from e2e.keeping import Keeper, check_resume
from e2e.measure.devices import Device, cuda_devices, find_device, reserved
from e2e.measure.machine import Watch, thread_count
from e2e.measure.schedule import SeedSource
from e2e.preflight import check_command, check_fit, check_model, check_places, check_repeat, check_task, check_together
from e2e.protocols import BuildTarget, Built, Progress
from e2e.reading import read_kernel
from e2e.request import Loaded, Request, policy_of
from e2e.rules.pins import pins_missed
from e2e.sanitizers import Sanitizers
from e2e.schema.evidence import BuildRecord, Evidence, ExamRecord, Fault, Where
from e2e.schema.kernel import Kernel
from e2e.schema.policy import Policy
from e2e.schema.result import Result
from e2e.schema.words import ReasonCode, Stage
from e2e.schema.workload import Cell, cells_of
from e2e.scratch import scratch_folder
from e2e.sources import relative_name
from e2e.stages import command
from e2e.stages.afterwards import look_back
from e2e.stages.check import check
from e2e.stages.course import Course
from e2e.stages.planted import planted
from e2e.stages.restart import start_again
from e2e.stages.screen import screen
from e2e.stages.verdict import time_verdict
from e2e.sweep import is_final
from e2e.workers import CandidateFault, Member

STAGES = ((Stage.CHECK, check), (Stage.SCREEN, screen), (Stage.VERDICT, time_verdict))
RESERVE_RATIO = 0.08
"""Share of a cell's time kept for traces, memory and the report."""
SITTING_SEEDS = 2**25
"""Of inputs, for each process that a run goes on in: what one that was killed timed last is never timed again."""


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


def load(request: Request) -> Loaded:
    """Read and cross-check everything before the device is touched."""
    check_places(request.workload, request.kernels)
    workload = load_workload(request.workload, request.overrides)
    if request.again is None:
        kernels = tuple(read_kernel(spec, op=request.op) for spec in request.kernels)
    else:
        workload = workload_of(request.again, workload)
        kernels = tuple(kernels_of(request.again, request.op))
    check_together(kernels, op=request.op)
    check_task(workload)
    for kernel in kernels:
        check_fit(workload, kernel)
    if request.repeat is not None:
        check_repeat(request.repeat, workload, kernels)
    policy, policy_overrides = policy_of(request, workload)
    if workload.workload.is_command:
        check_command(workload, kernels, policy)
    check_model(workload)
    device = _device(request, kernels)
    adopted = tuple(_adopted(policy, workload, kernels, device))
    wanted = kernels if request.sanitize else ()
    sanitizers = tuple(Sanitizers(kernel, device=device.name) for kernel in wanted)
    loaded = Loaded(request, workload, policy, kernels, device, _seed(request), adopted, policy_overrides, sanitizers)
    if request.resume is not None:
        check_resume(request.resume, loaded)
    return loaded


def _seed(request: Request) -> int:
    if request.resume is not None:
        return request.resume.result.seed
    return secrets.randbelow(SEED_SPACE) if request.seed is None else request.seed


def load_without_kernel(request: Request, *, policy: str, command: str) -> Loaded:
    """The same for a command that takes no kernel: an honest one of e2e's own has its place.

    `policy` is the one to run under if the caller names none; `command` is for messages.
    """
    check_places(request.workload, request.kernels)
    workload = load_workload(request.workload, request.overrides)
    rules = load_policy(request.policy or policy)
    if request.budget_s is not None:
        rules = rules.model_copy(update={"budgets": rules.budgets.model_copy(update={"cell_s": request.budget_s})})
    check_task(workload)
    if workload.workload.is_command:
        raise UsageError(
            f"`e2e {command}` does not see into a program of your own; `e2e validate` runs a task: command"
        )
    check_model(workload)
    kernel = planted(registry.names("ops")[0], REFERENCE).kernel
    device = find_device(request.device, kernel_device=None)
    return Loaded(request, workload, rules, (kernel,), device, _seed(request))


def _device(request: Request, kernels: Sequence[Kernel]) -> Device:
    """Where to run; for CUDA kernels that are only built, and do not have to see their device, nowhere."""
    asked = next((kernel.manifest.device for kernel in kernels if kernel.manifest.device is not None), None)
    only_built = request.until is Stage.BUILD and request.device == "auto" and asked == "cuda"
    if only_built and not cuda_devices():
        return Device("cuda")
    return find_device(request.device, kernel_device=asked)


def _adopted(policy: Policy, workload: LoadedWorkload, kernels: Sequence[Kernel], device: Device) -> Iterator[Kernel]:
    """Opponents that are kernels; each must fit the workload as the candidate does.

    Raises:
        UsageError: one does not, or is for another op or device.
    """
    for opponent in filter(is_adopted, policy.opponents):
        with _said_of_opponent(policy, opponent):
            ops = list(dict.fromkeys(kernel.manifest.op for kernel in kernels))
            found = read_kernel(opponent.removeprefix(ADOPTED), op=ops[0] if len(ops) == 1 else None)
            check_fit(workload, found)
            if found.manifest.op not in ops:
                raise UsageError(f"it is for {found.manifest.op}, and this run for {', '.join(ops)}")
            if "patch" in (kernels[0].manifest.kind, found.manifest.kind):
                raise UsageError("a patch is compared with PyTorch only, not with kernels adopted earlier")
            if found.manifest.device not in (None, device.name.partition(":")[0]):
                raise UsageError(f"it runs on {found.manifest.device}, and this run on {device.name}")
        yield found


@contextlib.contextmanager
def _said_of_opponent(policy: Policy, opponent: str) -> Iterator[None]:
    """Mistakes in a kernel that nobody typed name the policy's field that has it."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"policy {policy.name}, opponents: {opponent}: {error.message}") from error


def compiled(kernel: Kernel, device: Device, *, timeout_s: float, sanitize: bool = False) -> Built | Fault:
    """Compile, or find in the cache; the kernel's own failure is a Fault, not an exception."""
    builder = registry.load("builders", kernel.manifest.binding)
    target = BuildTarget(
        device="cpu" if device.name == "cpu" else "cuda",
        arch=device.arch,
        cache=cache_folder() / "kernels",
        timeout_s=timeout_s,
        sanitize=sanitize,
    )
    try:
        built: Built = builder.build(kernel, target)
    except CandidateError as error:
        where = Where(file=kernel.shown, line=error.line)
        return Fault(code=ReasonCode(error.code), message=error.message, stage=Stage.BUILD, where=where)
    return built


def build(loaded: Loaded, kernel: Kernel, folder: str, run: store.Run, progress: Progress) -> Built | Fault:
    """What `compiled` gives, with sources and log in the run's folder."""
    progress.stage("build", kernel.spec)
    if kernel.path is not None:
        run.write_bytes(f"{folder}/{Path(kernel.path).name}", Path(kernel.path).read_bytes())
        for other in (other for other in kernel.others if not other.endswith(".so")):
            run.write_bytes(f"{folder}/{relative_name(kernel.path, other)}", Path(other).read_bytes())
    for note in (*kernel.notes, *_unknown_target(kernel, loaded.device)):
        progress.note(note)
    built = compiled(kernel, loaded.device, timeout_s=loaded.policy.budgets.build_s)
    if isinstance(built, Fault):
        run.write_text(f"{folder}/build.log", assembly.near(built.message))
        return built
    run.write_text(f"{folder}/build.log", assembly.near("\n".join([*kernel.notes, built.command or "", built.log])))
    progress.note(f"built in {built.seconds:.1f} s" if not built.cached else "found in the cache")
    return built


def _unknown_target(kernel: Kernel, device: Device) -> list[str]:
    is_compiled = kernel.manifest.device == "cuda" and not kernel.manifest.is_python
    if not is_compiled or device.arch is not None or stated_architectures(kernel):
        return []
    return ["no CUDA device here: built for what nvcc takes by default; `arch: sm_90` in its block says another"]


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
            _build(course, loaded, run)
            if not course.evidence.faults and loaded.request.until is not Stage.BUILD:
                _stages(course, command.STAGES if is_command else STAGES)
        except NoRoom as error:
            if course.cells == 1:
                raise
            course.learn(no_room=error.message)
        finally:
            course.crew.close()
    keeper.complete()


def _build(course: Course, loaded: Loaded, run: store.Run) -> None:
    is_known = course.evidence.stage_finished is not None  # of a run that goes on: the cache has it
    with course.on_the_side() if is_known else course.spending("build"):
        for number, member in enumerate(course.crew.members):
            folder = "kernel" if len(course.crew.members) == 1 else f"kernel/{number + 1}"
            built = build(loaded, member.kernel, folder, run, course.progress)
            if isinstance(built, Fault):
                course.fail(built)
                return
            member.built = built
            course.learn(builds=[*course.evidence.builds, _build_record(built)])
        for member, sanitizers in zip(course.crew.members, loaded.sanitizers, strict=False):
            timeout_s = course.policy.budgets.build_s
            built = compiled(member.kernel, loaded.device, timeout_s=timeout_s, sanitize=True)
            if isinstance(built, Fault):
                course.fail(built)
                return
            course.sanitizing.append((member, sanitizers, built))
        for number, kernel in enumerate(loaded.adopted):
            name = f"{ADOPTED}{kernel.spec}"
            with _said_of_opponent(course.policy, name):
                opponent = build(loaded, kernel, f"opponents/{number}", run, course.progress)
                if isinstance(opponent, Fault):
                    raise UsageError(f"it does not build: {opponent.message}")
            course.crew.adopted[name] = opponent
    if not is_known:
        course.finish(Stage.BUILD)


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


def course_of(
    loaded: Loaded,
    cell: Cell,
    run: store.Run,
    progress: Progress,
    scratch: Path,
) -> Course:
    """The way through one cell, nothing started yet."""
    exam = exam_of(loaded, cell)
    crew = Crew(
        workload=loaded.workload,
        cell=cell,
        device=loaded.device.name,
        seed=loaded.seed,
        exam=exam,
        policy=loaded.policy,
        scratch=scratch,
        members=[Member(kernel) for kernel in loaded.kernels],
        compiles=loaded.request.until.rank > Stage.CHECK.rank,
    )
    budget = loaded.policy.budgets.cell_s
    return Course(
        crew=crew,
        policy=loaded.policy,
        progress=progress,
        deadline=Deadline(budget),
        folder=run.folder,
        evidence=Evidence(
            origin=loaded.origin,
            stage_asked=loaded.request.until,
            stage_finished=None,
            exam=ExamRecord(seed=exam.seed, run=exam.run),
            guard=[found for kernel in loaded.kernels for found in guard.findings(kernel)],
            kernels=[kernel.spec for kernel in loaded.kernels] if len(loaded.kernels) > 1 else [],
        ),
        traces=loaded.request.traces and loaded.policy.traces,
        rng=random.Random(loaded.seed),
        seeds=SeedSource((loaded.seed + 1) * SEED_SPACE + loaded.sitting * SITTING_SEEDS),
        reserve_s=RESERVE_RATIO * budget,
        watch=Watch(loaded.device.name),
        cells=len(cells_of(loaded.workload.workload)),
    )


def exam_of(loaded: Loaded, cell: Cell) -> Exam:
    """Inputs of the model-level check: of the caller's seed, else of the one in use here; fresh where that is asked."""
    policy, workload = loaded.policy, loaded.workload
    if (
        workload.workload.is_command
        or not policy.numerics.reuse
        or policy.pins.fresh_seed
        or loaded.request.until is Stage.BUILD
    ):
        return Exam(loaded.seed)
    asked = [
        workload.workload.model_dump(mode="json"),
        workload.task_sha256,
        str(workload.path.parent),
        cell.model_dump(mode="json", exclude={"weight"}),
        [kernel.manifest.op for kernel in loaded.kernels],
        loaded.device.name,
        loaded.device.arch,
        thread_count(),
    ]
    folder = cache_folder() / "references"
    if (known := loaded.exam_before(cell)) is not None:
        return Exam(known.seed, folder, identity_of(asked), known.run)
    if loaded.request.seed is not None:
        return Exam(loaded.seed, folder, identity_of(asked))
    return draw(folder, asked)


def _build_record(built: Built) -> BuildRecord:
    fields: dict[str, Any] = built.model_dump(include={"seconds", "cached", "compiler", "resources"})
    said = {"command": assembly.near(built.command), "log": assembly.near(built.log)}
    return BuildRecord(kernel=built.kernel.sha256, **fields, **said)
