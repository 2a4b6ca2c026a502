"""PARENT: kernels to built ones, with their sources and logs in the run's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from e2e import assembly, registry, store
from e2e.arm_names import ADOPTED
from e2e.builders._flags import stated_architectures
from e2e.cache import cache_folder
from e2e.errors import CandidateError, UsageError
from e2e.loading import said_of_opponent
from e2e.measure.devices import Device
from e2e.protocols import BuildTarget, Built, Progress
from e2e.request import Loaded
from e2e.schema.evidence import BuildRecord, Fault, Where
from e2e.schema.kernel import Kernel
from e2e.schema.words import ReasonCode, Stage
from e2e.sources import relative_name
from e2e.stages.course import Course


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


def build_all(course: Course, loaded: Loaded, run: store.Run) -> None:
    """The run's kernels, and those adopted earlier that they must beat; the first that does not build ends the run."""
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
            with said_of_opponent(course.policy, name):
                opponent = build(loaded, kernel, f"opponents/{number}", run, course.progress)
                if isinstance(opponent, Fault):
                    raise UsageError(f"it does not build: {opponent.message}")
            course.crew.adopted[name] = opponent
    if not is_known:
        course.finish(Stage.BUILD)


def _build_record(built: Built) -> BuildRecord:
    fields: dict[str, Any] = built.model_dump(include={"seconds", "cached", "compiler", "resources"})
    said = {"command": assembly.near(built.command), "log": assembly.near(built.log)}
    return BuildRecord(kernel=built.kernel.sha256, **fields, **said)
