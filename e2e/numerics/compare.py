"""Errors against a reference of higher precision, beside the baseline's own (METHOD.md B3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from e2e.protocols import Op, OpCall, mapped, outputs_of
from e2e.schema.words import ReasonCode

MODE_RATIO = 8.0
"""A mode's results may err this many times as much as the eager baseline's before the mode counts as wrong."""


TILE = 64
"""Rows and columns of what a kernel computes at once, about. Source: METHOD.md B3.3."""
_FLUSHED = 2.0**-116
"""Differences below it are none: a device may take numbers below float32's least normal one (2^-126) for zero, and an
op may make some hundred times as much of them."""


@dataclass(frozen=True)
class Error:
    """How far a tensor is from the reference, relative to the reference's size."""

    total: float
    """Root-mean-square over everything."""
    worst_row: float
    """Largest over rows of the last dimension: a global norm hides one wrong row."""
    worst_tile: float
    """Largest over tiles of rows and columns, none taken for smaller than others are: a row's norm hides a part."""


NO_ERROR = Error(0.0, 0.0, 0.0)


def error_of(value: Tensor, reference: Tensor) -> Error:
    """Relative errors of `value`; the reference is in float32 or float64.

    Shapes:
        value, reference (..., H) or ().
    """
    if reference.numel() == 0:
        return NO_ERROR
    exact = reference.double().reshape(-1, reference.shape[-1] if reference.dim() else 1)
    square = (value.double().reshape(exact.shape) - exact).square()
    square.masked_fill_(square <= _FLUSHED**2, 0.0)
    size = exact.square()
    rows, row_sizes = square.sum(-1), size.sum(-1)
    everything = row_sizes.sum()
    tiles, tile_sizes = _by_tile(square), _by_tile(size)
    usual = _by_tile(torch.ones_like(size)) * (everything / size.numel())
    return Error(
        float(_share(rows.sum(), everything)),
        float(_share(rows, row_sizes).max()),
        float(_share(tiles, tile_sizes.maximum(usual)).max()),
    )


def _share(square: Tensor, size: Tensor) -> Tensor:
    """Of a reference of zeros anything but zeros is infinitely wrong, and finite in the record."""
    return square.sqrt() / size.sqrt().clamp_min(1e-30)


def _by_tile(square: Tensor) -> Tensor:
    """Sums over tiles.

    Shapes:
        (R, H) -> (tiles down, tiles across).
    """
    height, width = (min(TILE, size) for size in square.shape)
    down, across = -square.shape[0] % height, -square.shape[1] % width
    padded = torch.nn.functional.pad(square, (0, across, 0, down))
    return padded.reshape(padded.shape[0] // height, height, -1, width).sum((1, 3))


def stray(value: Tensor, baseline: Tensor, reference: Tensor) -> Tensor:
    """Where `value` is not the kind of number that baseline and reference both are: finite, NaN, or which infinity."""
    wanted = _kind(baseline)
    return (_kind(value) != wanted) & (wanted == _kind(reference))


def _kind(tensor: Tensor) -> Tensor:
    return tensor.isnan().to(torch.uint8) + 2 * tensor.isposinf() + 3 * tensor.isneginf()


def floor_of(dtype: torch.dtype) -> float:
    """What rounding alone may add where the baseline happens to be exact: a quarter of the dtype's epsilon.

    Source: rounding to nearest errs by at most eps / 2 and by eps / 4 on average.
    """
    return float(torch.finfo(dtype).eps) / 4


class Judged(NamedTuple):
    """What a comparison says of one output."""

    code: ReasonCode | None
    """Why it is wrong; None where it is as right as the baseline."""
    found: Error | None
    """Its errors; None where they cannot be told."""
    own: Error
    """The baseline's."""
    allowed: float
    """Largest error over everything that would have passed."""
    excess: str = ""
    """Which part errs too much, where everything together does not."""


def judge_op(value: Tensor, baseline: Tensor, reference: Tensor, *, ratio: float) -> Judged:
    """Whether `value` is as right as the baseline.

    Units:
        ratio: allowed err(value) / err(baseline); 2 by default (METHOD.md B3.1).
    """
    is_same = value.shape == baseline.shape and value.dtype == baseline.dtype
    is_stray = is_same and bool(stray(value, baseline, reference).any())
    sound = torch.isfinite(reference) & torch.isfinite(baseline)
    if not bool(sound.all()):  # where the truth or the baseline is not finite, no error can be told
        reference, baseline = reference.where(sound, 0), baseline.where(sound, 0)
        value = value.where(sound, 0) if is_same else value
    base = error_of(baseline, reference)
    # one row's rounding is less averaged than a whole tensor's, so its floor is a whole epsilon
    part_floor = 4 * floor_of(baseline.dtype)
    is_one_row = reference.numel() == (reference.shape[-1] if reference.dim() else 1)
    allowed = ratio * base.total + (part_floor if is_one_row else floor_of(baseline.dtype))
    if not is_same:
        return Judged(ReasonCode.WRONG_OUTPUT_LAYOUT, None, base, allowed)
    if is_stray:
        return Judged(ReasonCode.NONFINITE_OUTPUT, None, base, allowed)
    found = error_of(value, reference)
    parts = (
        ("", found.total, allowed),
        ("row", found.worst_row, ratio * base.worst_row + part_floor),
        ("tile", found.worst_tile, ratio * base.worst_tile + part_floor),
    )
    for part, error, most in parts:
        if error > most:
            excess = f"the worst {part} errs by {error:.2g}, allowed {most:.2g}" if part else ""
            return Judged(ReasonCode.OP_ERROR_EXCEEDED, found, base, allowed, excess)
    return Judged(None, found, base, allowed)


def judge_outputs(values: Any, baselines: Any, references: Any, *, ratio: float) -> Judged:
    """`judge_op` over all that a call returns: the first wrong output, else the one nearest to being wrong."""
    value, baseline, reference = outputs_of(values), outputs_of(baselines), outputs_of(references)
    if len(value) != len(baseline):
        return Judged(ReasonCode.WRONG_OUTPUT_LAYOUT, None, NO_ERROR, 0.0)
    rows = [judge_op(*item, ratio=ratio) for item in zip(value, baseline, reference, strict=True)]
    wrong = [row for row in rows if row.code is not None]
    return wrong[0] if wrong else max(rows, key=lambda row: row.found.total / row.allowed if row.found else 0.0)


def layout_of(tensor: Tensor) -> tuple[int, ...]:
    """Strides, less those that address nothing."""
    return tuple(stride if size > 1 else 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def exactly(op: Op, call: OpCall) -> Any:
    """The op's exact maths on that call: in float64, from the very values that the call holds."""
    return op.reference(*(mapped(wider, argument) for argument in call.tensors), *call.scalars)


def wider(tensor: Any) -> Any:
    """The tensor in float64; whole numbers, masks and None as they are."""
    return tensor.double() if tensor is not None and tensor.is_floating_point() else tensor


def other_choices(value: Tensor, baseline: Tensor) -> dict[str, Any]:
    """Fields of an OtherChoices, in slices as `distance_of`.

    Shapes:
        value, baseline (answers, V).
    """
    step = max(1, 2**26 // baseline.shape[-1])
    margins, is_other = [], []
    for mine, theirs in zip(value.split(step), baseline.split(step), strict=True):
        best = theirs.double().topk(min(2, theirs.shape[-1]), dim=-1).values
        margins.append(best[:, 0] - best[:, -1])
        is_other.append(mine.argmax(-1) != theirs.argmax(-1))
    found = torch.cat(is_other).nonzero().reshape(-1)
    if not len(found):
        return {"count": 0}
    margin = torch.cat(margins)[found]
    return {
        "count": len(found),
        "first": int(found[0]),
        "first_margin": float(margin[0]),
        "widest_margin": float(margin.max()),
    }


TAIL = 1e-3
"""Share of answers of which the least divergent one is told: a mean hides a few that moved far.
Source: METHOD.md B3.6."""


@dataclass(frozen=True)
class Distance:
    """How far a model's answers are from the reference's."""

    error: float
    """Relative root-mean-square error."""
    kl: float | None
    """Mean KL(reference || value), nats per answer; None where answers are no distributions."""
    kl_tail: float | None
    """Its 99.9th percentile over answers."""
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
    square = scale = 0.0
    same = 0
    divergences: list[Tensor] = []
    step = max(1, 2**26 // reference.shape[-1])
    for start in range(0, reference.shape[0], step):
        exact = reference[start : start + step].double()
        found = value[start : start + step].double()
        square += float((found - exact).pow(2).sum())
        scale += float(exact.pow(2).sum())
        if is_distribution:
            log_p, log_q = exact.log_softmax(-1), found.log_softmax(-1)
            divergences.append((log_p.exp() * (log_p - log_q)).sum(-1))
            same += int((exact.argmax(-1) == found.argmax(-1)).sum())
    error = (square / max(scale, 1e-300)) ** 0.5
    if not is_distribution:
        return Distance(error, None, None, None)
    kl = torch.cat(divergences).clamp_min(0.0)
    tail = kl.sort().values[-max(1, round(TAIL * answers))]  # what is not compared has none, and is no answer
    return Distance(error, float(kl.sum()) / answers, float(tail), (same - (reference.shape[0] - answers)) / answers)
