"""PARENT: read and cross-check everything that a run is asked for, before a device is touched."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Sequence

from e2e import registry
from e2e.again import kernels_of, workload_of
from e2e.arm_names import ADOPTED, is_adopted
from e2e.builders.planted import REFERENCE
from e2e.configuration import LoadedWorkload, load_policy, load_workload
from e2e.errors import UsageError
from e2e.exam import SEED_SPACE
from e2e.keeping import check_resume
from e2e.measure.devices import Device, cuda_devices, find_device
from e2e.preflight import check_command, check_fit, check_model, check_places, check_repeat, check_task, check_together
from e2e.reading import read_kernel
from e2e.request import Loaded, Request, policy_of
from e2e.sanitizers import Sanitizers
from e2e.schema.kernel import Kernel
from e2e.schema.policy import Policy
from e2e.schema.words import Stage
from e2e.stages.planted import planted


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
        with said_of_opponent(policy, opponent):
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
def said_of_opponent(policy: Policy, opponent: str) -> Iterator[None]:
    """Mistakes in a kernel that nobody typed name the policy's field that has it."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"policy {policy.name}, opponents: {opponent}: {error.message}") from error
