"""Pieces to Result: what was observed in every cell, what it means, and where it happened.

Pure but for one look at the environment, and one for the machine's newest self-test.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from e2e import feedback
from e2e.invocation import Invocation
from e2e.judge import deciding, judge
from e2e.request import Loaded, Request
from e2e.schema.evidence import Evidence
from e2e.schema.result import CellResult, ErrorRecord, Result, SetUp
from e2e.schema.workload import Cell
from e2e.selftest_store import newest

_PACKAGES = ("torch", "transformers", "triton", "apache-tvm-ffi", "numpy")
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
    error: BaseException | None,
) -> Result:
    """The whole run as one record."""
    cells = [CellResult(cell=cell, evidence=found, verdict=judge(found, loaded.policy)) for cell, found in courses]
    chosen = cells[deciding([cell.verdict for cell in cells])] if cells else None
    verdict = chosen.verdict if chosen else None
    evidence = chosen.evidence if chosen else None
    problem = _error(error)
    return Result(
        run_id=run_id,
        created=created,
        seconds=seconds,
        command=list(loaded.request.command),
        outcome=verdict.outcome if verdict and problem is None else None,
        label=verdict.label if verdict and problem is None else None,
        stage=evidence.stage_finished if evidence else None,
        reasons=verdict.reasons if verdict and problem is None else [],
        latency=verdict.latency if verdict else None,
        memory=verdict.memory if verdict else None,
        numerics=verdict.numerics if verdict else None,
        engagement=evidence.engagement if evidence else None,
        set_up=feedback.set_up(evidence, verdict) if evidence else SetUp(),
        claim=feedback.claim(loaded.kernel, evidence, verdict) if evidence and verdict else None,
        cells=cells,
        kernels=[loaded.kernel],
        workload=loaded.workload.workload,
        policy=loaded.policy,
        overrides=loaded.workload.overrides,
        seed=loaded.seed,
        environment=environment(loaded, evidence),
        unseen=evidence.unseen if evidence else [],
        selftest=newest(evidence.device) if evidence else None,
        feedback=(
            feedback.feedback(evidence, verdict, policy=loaded.policy, invocation=_invocation(loaded.request, run_id))
            if evidence and verdict and problem is None
            else None
        ),
        error=problem,
        random_weights=loaded.workload.workload.model.weights == "random",
    )


def _invocation(request: Request, run_id: str) -> Invocation:
    """What the caller gave; a device found by e2e is found again."""
    options = [word for item in request.overrides for word in ("--set", item)]
    options += ["--op", request.op] if request.op else []
    options += ["--device", request.device] if request.device != "auto" else []
    return Invocation(
        workload=request.workload,
        kernels=request.kernels,
        run=str(request.out / run_id),
        policy=request.policy,
        options=tuple(options),
    )


def _error(error: BaseException | None) -> ErrorRecord | None:
    if error is None:
        return None
    code = getattr(error, "exit_code", 130 if isinstance(error, KeyboardInterrupt) else 70)
    return ErrorRecord(code=code, message=getattr(error, "message", "") or "interrupted")


def environment(loaded: Loaded, evidence: Evidence | None) -> dict[str, Any]:
    """Where the run happened: a verdict holds there and nowhere else."""
    device = evidence.device if evidence else None
    return {
        "platform": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: found for name in _PACKAGES if (found := _version(name)) is not None},
        "device": device.name if device else loaded.device.name,
        "arch": loaded.device.arch,
        "threads": device.count_threads if device else None,
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
        "workload_sha256": loaded.workload.sha256,
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
