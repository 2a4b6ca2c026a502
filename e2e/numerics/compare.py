"""Errors against a reference of higher precision, beside the baseline's own (METHOD.md B3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from e2e.protocols import Op, OpCall, mapped, outputs_of
from e2e.schema.words import ReasonCode

MODE_RATIO = 8.0
"""A mode's results may err this many times as much as the eager baseline's before the mode counts as wrong."""


@dataclass(frozen=True)
class Error:
    """How far a tensor is from the reference, relative to the reference's size."""

    total: float
    """Root-mean-square over everything."""
    worst_row: float
    """Largest over rows of the last dimension: a global norm hides one wrong row."""


def error_of(value: Tensor, reference: Tensor) -> Error:
    """Relative errors of `value`; the reference is in float32 or float64.

    Shapes:
        value, reference (..., H) or ().
    """
    if reference.numel() == 0:
        return Error(0.0, 0.0)
    exact = reference.double().reshape(-1, reference.shape[-1] if reference.dim() else 1)
    rows = (value.double().reshape(exact.shape) - exact).norm(dim=-1)
    sizes = exact.norm(dim=-1)
    tiny = 1e-30  # a reference of zeros: anything but zeros is infinitely wrong, and finite in the record
    total = float(rows.norm() / sizes.norm().clamp_min(tiny))
    return Error(total, float((rows / sizes.clamp_min(tiny)).max()))


def floor_of(dtype: torch.dtype) -> float:
    """What rounding alone may add where the baseline happens to be exact: a quarter of the dtype's epsilon.

    Source: rounding to nearest errs by at most eps / 2 and by eps / 4 on average.
    """
    return float(torch.finfo(dtype).eps) / 4


def judge_op(
    value: Tensor, baseline: Tensor, reference: Tensor, *, ratio: float
) -> tuple[ReasonCode | None, Error | None, Error, float]:
    """Whether `value` is as right as the baseline: the reason if not, both errors, and the largest allowed one.

    Units:
        ratio: allowed err(value) / err(baseline); 2 by default (METHOD.md B3.1).
    """
    is_same = value.shape == baseline.shape and value.dtype == baseline.dtype
    sound = torch.isfinite(reference) & torch.isfinite(baseline)
    if not bool(sound.all()):  # where the truth or the baseline is not finite, nothing can be compared
        reference, baseline = reference.where(sound, 0), baseline.where(sound, 0)
        value = value.where(sound, 0) if is_same else value
    base = error_of(baseline, reference)
    # one row's rounding is less averaged than a whole tensor's, so its floor is a whole epsilon
    row_floor = 4 * floor_of(baseline.dtype)
    is_one_row = reference.numel() == (reference.shape[-1] if reference.dim() else 1)
    allowed = ratio * base.total + (row_floor if is_one_row else floor_of(baseline.dtype))
    if not is_same:
        return ReasonCode.WRONG_OUTPUT_LAYOUT, None, base, allowed
    if not bool(torch.isfinite(value).all()):
        return ReasonCode.NONFINITE_OUTPUT, None, base, allowed
    found = error_of(value, reference)
    allowed_row = ratio * base.worst_row + row_floor
    if found.total > allowed or found.worst_row > allowed_row:
        return ReasonCode.OP_ERROR_EXCEEDED, found, base, allowed
    return None, found, base, allowed


def judge_outputs(
    values: Any, baselines: Any, references: Any, *, ratio: float
) -> tuple[ReasonCode | None, Error | None, Error, float]:
    """`judge_op` over all that a call returns: the first wrong output, else the one nearest to being wrong."""
    value, baseline, reference = outputs_of(values), outputs_of(baselines), outputs_of(references)
    if len(value) != len(baseline):
        return ReasonCode.WRONG_OUTPUT_LAYOUT, None, Error(0.0, 0.0), 0.0
    rows = [judge_op(*item, ratio=ratio) for item in zip(value, baseline, reference, strict=True)]
    wrong = [row for row in rows if row[0] is not None]
    return wrong[0] if wrong else max(rows, key=lambda row: row[1].total / row[3] if row[1] else 0.0)


def layout_of(tensor: Tensor) -> tuple[int, ...]:
    """Strides, less those that address nothing."""
    return tuple(stride if size > 1 else 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def exactly(op: Op, call: OpCall) -> Any:
    """The op's exact maths on that call: in float64, from the very values that the call holds."""
    return op.reference(*(mapped(wider, argument) for argument in call.tensors), *call.scalars)


def wider(tensor: Any) -> Any:
    """The tensor in float64; whole numbers, masks and None as they are."""
    return tensor.double() if tensor is not None and tensor.is_floating_point() else tensor


@dataclass(frozen=True)
class Distance:
    """How far a model's answers are from the reference's."""

    error: float
    """Relative root-mean-square error."""
    kl: float | None
    """Mean KL(reference || value), nats per answer; None where answers are no distributions."""
    top1: float | None
    """Share of answers with the reference's most likely class."""


def distance_of(
    value: Tensor, reference: Tensor, *, answers: int | None = None, is_distribution: bool = True
) -> Distance:
    """Distances, row by row in slices, so that a large vocabulary fits; `answers`: of the rows, how many count.

    Shapes:
        value, reference (rows, V), zeros in both where nothing is compared.
    """
    answers = reference.shape[0] if answers is None else answers
    square = scale = kl = 0.0
    same = 0
    step = max(1, 2**26 // reference.shape[-1])
    for start in range(0, reference.shape[0], step):
        exact = reference[start : start + step].double()
        found = value[start : start + step].double()
        square += float((found - exact).pow(2).sum())
        scale += float(exact.pow(2).sum())
        if is_distribution:
            log_p, log_q = exact.log_softmax(-1), found.log_softmax(-1)
            kl += float((log_p.exp() * (log_p - log_q)).sum())
            same += int((exact.argmax(-1) == found.argmax(-1)).sum())
    error = (square / max(scale, 1e-300)) ** 0.5
    if not is_distribution:
        return Distance(error, None, None)
    return Distance(error, max(0.0, kl / answers), (same - (reference.shape[0] - answers)) / answers)
