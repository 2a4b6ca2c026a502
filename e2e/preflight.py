"""What can be known before anything starts: does the model exist, can it be reached, does the kernel fit."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from e2e import registry
from e2e.arm_names import is_adopted
from e2e.commands import search_path
from e2e.configuration import YAML_SUFFIXES, LoadedWorkload
from e2e.errors import EnvironmentFault, UsageError
from e2e.fetching import fetch
from e2e.formats._names import SUFFIXES as KERNEL_SUFFIXES
from e2e.model_files import is_needed, place_of
from e2e.request import Repeat
from e2e.schema.kernel import Kernel
from e2e.schema.policy import FEWEST_WORKERS, MOST_WORKERS, Policy
from e2e.schema.words import Outcome
from e2e.schema.workload import HUB, SYNTHETIC, ModelSpec, cells_of
from e2e.yaml_lines import printable

REACH_S = 3.0
"""A hub that does not accept a connection in this time counts as unreachable."""


def check_places(workload: str, kernels: Sequence[str]) -> None:
    """A kernel is behind `--kernel` and a workload before it.

    Raises:
        UsageError: one stands in the other's place; says what to type.
    """
    is_kernel = workload.endswith(KERNEL_SUFFIXES)
    files = [kernel for kernel in kernels if kernel.endswith(YAML_SUFFIXES)]
    if not is_kernel and not files:
        return
    typed = f"e2e validate {files[0] if files else 'WORKLOAD'} --kernel {workload if is_kernel else 'FILE'}"
    if is_kernel and files:
        problem = "workload and kernel are swapped"
    elif is_kernel:
        problem = f"{workload} is a kernel file, and a workload is a YAML file or a name"
    else:
        problem = f"--kernel {files[0]} is a YAML file, and a kernel is not"
    raise UsageError(f"{printable(problem)}: type `{printable(typed, 300)}`")


def check_fit(workload: LoadedWorkload, kernel: Kernel) -> None:
    """The kernel's declared dtypes against the workload's, and a patch against its choice of sites.

    Raises:
        UsageError: they do not fit.
    """
    sites = workload.workload.sites
    if kernel.manifest.kind == "patch" and sites != ["*"]:
        raise UsageError(
            f"{workload.path.name}: sites: {', '.join(sites)}: {kernel.spec} is a patch, which goes everywhere"
        )
    for dtype in {cell.dtype: None for cell in cells_of(workload.workload)}:
        if dtype in kernel.manifest.dtypes:
            continue
        field = "cells.dtype=[{}]" if workload.workload.cells.dtype else "model.dtype={}"
        raise UsageError(
            f"{kernel.spec} declares dtypes {', '.join(kernel.manifest.dtypes)}, but {workload.path.name} runs in "
            f"{dtype}; try --set {field.format(kernel.manifest.dtypes[0])}"
        )


def check_together(kernels: Sequence[Kernel], *, op: str | None) -> None:
    """Whether several kernels can be meant together, as far as their files say.

    Raises:
        UsageError: they cannot; says which two, and why.
    """
    if not kernels:
        raise UsageError("give at least one --kernel")
    if len(kernels) > 1 and op is not None:
        raise UsageError(f"--op {printable(op)} names the op of one kernel; of several each file names its own")
    seen: dict[tuple[str, str], Kernel] = {}
    for kernel in kernels:
        first = seen.setdefault((kernel.sha256, kernel.manifest.op), kernel)
        if first is not kernel:
            raise UsageError(f"{first.spec} and {kernel.spec} are the same kernel: give it once")
        if kernel.manifest.kind == "patch" and len(kernels) > 1:
            raise UsageError(f"{kernel.spec} is a patch, which goes everywhere: validate it without other kernels")
    placed = {kernel.manifest.device: kernel for kernel in kernels if kernel.manifest.device is not None}
    if len(placed) > 1:
        (one, first), (other, second) = placed.items()
        raise UsageError(f"{first.spec} runs on {one} and {second.spec} on {other}: no step can use both")


def check_repeat(repeat: Repeat, workload: LoadedWorkload, kernels: Sequence[Kernel]) -> None:
    """A repeat answers the question that the first run left open, so it must be the same question.

    Raises:
        UsageError: the run was decided, or workload, kernel or op are not what they were.
    """
    run = repeat.run
    if run.outcome is not Outcome.INCONCLUSIVE or not run.cells:
        ended = run.outcome.upper() if run.outcome else "without a verdict"
        raise UsageError(f"run {run.run_id} ended {ended}; --repeat is for INCONCLUSIVE runs: validate afresh instead")
    if not FEWEST_WORKERS <= repeat.workers <= MOST_WORKERS:
        bounds = f"a verdict needs at least {FEWEST_WORKERS}, and a repeat takes at most {MOST_WORKERS}"
        raise UsageError(f"--workers {repeat.workers}: {bounds}")
    then: str | None = run.environment.get("workload_sha256")
    stored: list[tuple[str, str | None, str | None]] = [(f"workload {workload.path.name}", then, workload.sha256)]
    for earlier, kernel in zip(run.kernels, kernels, strict=True):
        stored.append((f"kernel {kernel.spec}", earlier.sha256, kernel.sha256))
        stored.append((f"op {kernel.manifest.op}", earlier.op_sha256, kernel.op_sha256))
    for what, before, now in stored:
        if before != now:
            hashes = f"sha256 {str(before)[:12]} then, {str(now)[:12]} now"
            raise UsageError(f"{what} has changed since run {run.run_id} ({hashes}): validate it afresh instead")


def check_task(workload: LoadedWorkload) -> None:
    """The task exists, and has the steps of all cells.

    Raises:
        UsageError: it does not.
    """
    task = workload.workload.task
    try:
        steps = registry.steps_of(task, workload.path.parent)
    except UsageError as error:
        raise UsageError(f"{workload.path}: task: {error.message}") from error
    for step in {cell.step: None for cell in cells_of(workload.workload)}:
        if steps is not None and step not in steps:
            raise UsageError(f"{workload.path}: step: the task {task} has no {step}; it has: {', '.join(steps)}")


def check_command(workload: LoadedWorkload, kernels: Sequence[Kernel], policy: Policy) -> None:
    """The program exists, and nothing is asked that e2e could only do from inside it.

    Raises:
        UsageError: it does not; or something is.
    """
    where = f"{workload.path}: task: command"
    if len(kernels) > 1:
        raise UsageError(f"{where}: it takes one kernel, and {len(kernels)} are given")
    if kernels[0].manifest.kind == "patch":
        raise UsageError(f"{where}: {kernels[0].spec} is a patch, which goes into a model that e2e has built")
    if policy.objective != "latency":
        raise UsageError(
            f"{where}: policy {policy.name}, objective: {policy.objective}: only `latency` can be compared"
        )
    if others := [name for name in policy.opponents if is_adopted(name)]:
        raise UsageError(
            f"{where}: policy {policy.name}, opponents: {others[0]}: the command runs one kernel at a time"
        )
    program = workload.workload.command.argv[0]
    beside = workload.path.parent / program
    if "/" in program and not os.access(beside, os.X_OK):
        raise UsageError(f"{workload.path}: command.argv: no program {beside} that could be run")
    if "/" not in program and shutil.which(program, path=search_path()) is None:
        raise UsageError(f"{workload.path}: command.argv: no program {program!r} on the PATH")


def check_model(workload: LoadedWorkload) -> None:
    """Local files exist; a hub model is cached, or its hub answers. Seconds, not minutes.

    Raises:
        UsageError: a local file is missing.
        EnvironmentFault: a package is missing, or a hub model is neither cached nor reachable.
    """
    spec, root = workload.workload.model, workload.path.parent
    data = root / workload.workload.data.path
    path = workload.workload.data.path
    if path.startswith(HUB):
        _reach_data(path.removeprefix(HUB))
    elif path != SYNTHETIC and not os.path.exists(data):
        raise UsageError(f"{workload.path}: data.path: no file {data}")
    home = spec.factory.rpartition(":")[0] if spec.factory else ""
    if home.endswith(".py") and not os.path.isfile(root / home):
        raise UsageError(f"{workload.path}: model.factory: no file {root / home}")
    if is_needed(spec) and not workload.workload.is_command:
        place = place_of(spec, root)
        if place.hub is not None:
            _reach_hub(place.hub, spec)


def _reach_hub(repository: str, spec: ModelSpec) -> None:
    """The model's files are in the cache afterwards: no process that could hold a candidate has to ask for them."""
    from huggingface_hub import constants, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(repository, "config.json", revision=spec.revision or "main")
    except HFValidationError as error:
        raise UsageError(f"model.id: {repository!r} is neither a folder nor a hub id") from error
    if isinstance(cached, str) and Path(cached).is_file():
        return
    remedy = (
        "run once with a network, point model.id at a local folder, "
        "or use the same shapes without weights: --set model.weights=random"
    )
    if constants.HF_HUB_OFFLINE or os.environ.get("TRANSFORMERS_OFFLINE") == "1":
        raise EnvironmentFault(f"offline, and config.json of {repository} is not in the cache; {remedy}")
    _connect(repository, remedy)
    fetch(repository, spec)


def _reach_data(name: str) -> None:
    """The package that reads it asks an unreachable hub for half a minute."""
    from huggingface_hub import constants

    if not constants.HF_HUB_OFFLINE:
        _connect(
            name,
            "if it is in the cache, set HF_HUB_OFFLINE=1; else run once with a network, or point data.path at a file",
        )


def _connect(what: str, remedy: str) -> None:
    from huggingface_hub import constants

    address = urlsplit(constants.ENDPOINT)
    port = address.port or (443 if address.scheme == "https" else 80)
    try:
        socket.create_connection((address.hostname or "", port), timeout=REACH_S).close()
    except OSError as error:
        message = f"{what} is not known to be in the cache, and its hub cannot be reached ({error}); {remedy}"
        raise EnvironmentFault(message) from error
