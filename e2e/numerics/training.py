"""Clean side of the training check: gradients of two arms against one precision higher."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from e2e.errors import UsageError
from e2e.numerics.captures import read_outputs
from e2e.numerics.compare import error_of, floor_of
from e2e.patch import Occurrence, put_references
from e2e.schema.words import ReasonCode


def compare(
    session: Any, occurrences: Sequence[Occurrence], baseline: Path, candidate: Path, *, ratio: float, seed: int
) -> dict[str, Any]:
    """The set of parameters with gradients, and the worst parameter's error beside the baseline's own."""
    higher = torch.float64 if session.cell.dtype == "float32" else torch.float32
    model = copy.deepcopy(session.model).to(higher)
    put_references(model, occurrences)
    session.loss(model, session.batch(seed)).backward()
    exact = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    own, theirs = load_file(baseline, device=session.device), read_outputs(candidate, session.device)
    return worst_gradient(own, theirs, exact, ratio=ratio)


def worst_gradient(
    own: Mapping[str, Tensor], theirs: Mapping[str, Tensor], exact: Mapping[str, Tensor], *, ratio: float
) -> dict[str, Any]:
    """Which of the baseline's gradients are missing, and the one that is furthest from exact beside the baseline's.

    Raises:
        UsageError: the baseline's own gradients are not finite.
    """
    missing = sorted(set(own) - set(theirs))
    worst: tuple[float, str, float | None, float] | None = None
    code: ReasonCode | None = None
    for name, mine in own.items():
        if not bool(torch.isfinite(mine).all() and torch.isfinite(exact[name]).all()):
            raise UsageError(f"PyTorch's own gradient of {name} is not finite in {mine.dtype}")
        if name not in theirs:
            continue
        if theirs[name].shape != mine.shape:
            worst, code = (math.inf, name, None, 0.0), ReasonCode.WRONG_OUTPUT_LAYOUT
            break
        base = error_of(_rows(mine), _rows(exact[name])).total
        if not bool(torch.isfinite(theirs[name]).all()):
            worst, code = (math.inf, name, None, base), ReasonCode.NONFINITE_OUTPUT
            break
        found = error_of(_rows(theirs[name]), _rows(exact[name])).total
        if found > ratio * base + floor_of(mine.dtype):
            code = ReasonCode.GRADIENT_ERROR_EXCEEDED
        excess = found / max(base, 1e-30)
        if worst is None or excess > worst[0]:
            worst = (excess, name, found, base)
    code = ReasonCode.GRADIENTS_MISSING if missing else code
    return {
        "missing": missing,
        "worst_parameter": worst[1] if worst else None,
        "worst_error_candidate": worst[2] if worst else None,
        "worst_error_baseline": worst[3] if worst else None,
        "status": "wrong" if code else "passed",
        "code": code,
    }


def _rows(gradient: Tensor) -> Tensor:
    return gradient.reshape(1, -1)
