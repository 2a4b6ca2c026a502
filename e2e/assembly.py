"""Pieces to Result: what was observed in every cell, what it means, and where it happened.

Pure but for one look at the environment, and one for the machine's newest self-test.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

from e2e import feedback
from e2e.attribution import attribution
from e2e.errors import exit_code_of
from e2e.invocation import Invocation
from e2e.judge import judge
from e2e.measure.devices import driver_version
from e2e.request import Loaded, Request
from e2e.schema.evidence import Evidence
from e2e.schema.kernel import Kernel
from e2e.schema.policy import Policy
from e2e.schema.result import AttributionLine, CellResult, ErrorRecord, Result, Resumption, SetUp
from e2e.schema.verdict import Verdict
from e2e.schema.workload import Cell
from e2e.selftest_store import newest
from e2e.surroundings import packages
from e2e.sweep import sweep

_VARIABLES = (
    "HF_HUB_OFFLINE",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING",
    "CUBLAS_WORKSPACE_CONFIG",
    "NVIDIA_TF32_OVERRIDE",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "OMP_NUM_THREADS",
    "OMP_PROC_BIND",
    "TRITON_DEFAULT_FP_FUSION",
    "TRITON_INTERPRET",
    "TORCH_COMPILE_DISABLE",
    "TORCHDYNAMO_DISABLE",
)


def assemble(
    loaded: Loaded,
    courses: Sequence[tuple[Cell, Evidence]],
    *,
    run_id: str,
    created: str,
    seconds: float,
    error: ErrorRecord | None,
    resumed: Sequence[Resumption] = (),
) -> Result:
    """The whole run as one record."""
    cells = [CellResult(cell=cell, evidence=found, verdict=judge(found, loaded.policy)) for cell, found in courses]
    whole = sweep(cells, loaded.policy) if cells else None
    chosen = cells[whole.decides] if whole else None
    verdict = chosen.verdict if chosen else None
    evidence = chosen.evidence if chosen else None
    told = whole if error is None else None  # of a run that ended early no cell speaks for the rest
    return Result(
        run_id=run_id,
        created=created,
        seconds=seconds,
        command=list(loaded.request.command),
        outcome=told.outcome if told else None,
        label=told.label if told else None,
        stage=evidence.stage_finished if evidence else None,
        reasons=told.reasons if told else [],
        latency=verdict.latency if verdict else None,
        memory=verdict.memory if verdict else None,
        numerics=verdict.numerics if verdict else None,
        engagement=evidence.engagement if evidence else None,
        set_up=feedback.set_up(evidence, verdict) if evidence else SetUp(),
        time_use=feedback.time_use(evidence) if evidence else None,
        claim=feedback.claim(loaded.kernels, evidence, verdict) if evidence and verdict else None,
        attribution=_attribution(evidence, verdict, loaded.policy) if evidence and verdict else [],
        cells=cells,
        regions=told.regions if told else None,
        mix=told.mix if told else None,
        ablation=verdict.ablation if verdict else [],
        interaction=verdict.interaction if verdict else None,
        kernels=[_near(kernel) for kernel in loaded.kernels],
        workload=loaded.workload.workload,
        policy=loaded.policy,
        overrides=loaded.workload.overrides,
        policy_overrides=loaded.policy_overrides,
        resumed=list(resumed),
        repeats=loaded.request.repeat.run.run_id if loaded.request.repeat else None,
        again=loaded.request.again.run.run_id if loaded.request.again else None,
        seed=loaded.seed,
        environment=environment(loaded, evidence),
        unseen=evidence.unseen if evidence else [],
        selftest=newest(evidence.device) if evidence else None,
        feedback=(
            feedback.feedback(
                chosen.evidence,
                chosen.verdict.model_copy(
                    update={"outcome": told.outcome, "label": told.label, "reasons": told.reasons}
                ),
                cell=chosen.cell,
                policy=loaded.policy,
                invocation=_invocation(loaded.request, run_id),
            )
            if chosen and told
            else None
        ),
        error=error,
        random_weights=loaded.workload.workload.model.weights == "random",
    )


def _attribution(evidence: Evidence, verdict: Verdict, policy: Policy) -> list[AttributionLine]:
    return attribution(evidence, next((row for row in verdict.latency.against if row.opponent == policy.decides), None))


@overload
def near(text: str) -> str: ...
@overload
def near(text: None) -> None: ...
def near(text: str | None) -> str | None:
    """Paths below the working folder as they are from there: a result is read on other machines."""
    return None if text is None else text.replace(f"{Path.cwd()}{os.sep}", "")


def _near(kernel: Kernel) -> Kernel:
    return kernel.model_copy(update={"path": near(kernel.path), "others": [near(other) for other in kernel.others]})


def _invocation(request: Request, run_id: str) -> Invocation:
    """What the caller gave; a device found by e2e is found again."""
    options = ["--op", request.op] if request.op else []
    options += ["--device", request.device] if request.device != "auto" else []
    options += ["--sanitize"] if request.sanitize else []
    beside = ["--out", str(request.out)] if request.out != Request.out else []
    beside += [] if request.traces else ["--no-trace"]
    return Invocation(
        workload=request.workload,
        kernels=request.kernels,
        run=str(request.out / run_id),
        policy=request.policy,
        overrides=request.overrides,
        options=tuple(options),
        beside=tuple(beside),
    )


def error_record(error: BaseException | None, folder: Path | None = None) -> ErrorRecord | None:
    """What ended a run early, if anything did; of one that can go on, in that folder, with the command for it."""
    if error is None:
        return None
    found = ErrorRecord(code=exit_code_of(error), message=getattr(error, "message", "") or "interrupted")
    if folder is None or not found.is_resumable:
        return found
    return found.model_copy(update={"message": f"{found.message}; `e2e validate --resume {folder}` goes on from there"})


def environment(loaded: Loaded, evidence: Evidence | None) -> dict[str, Any]:
    """Where the run happened: a verdict holds there and nowhere else."""
    device = evidence.device if evidence else None
    return {
        "platform": platform.platform(),
        "python": platform.python_version(),
        "packages": packages(),
        "device": device.name if device else loaded.device.name,
        "arch": loaded.device.arch,
        "driver": driver_version() if loaded.device.arch else None,
        "threads": device.count_threads if device else None,
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
        "workload_sha256": loaded.workload.sha256,
        "task_sha256": loaded.workload.task_sha256,
    }
