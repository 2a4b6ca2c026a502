"""Where an output is wrong, and in what pattern: what a kernel's author looks at first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from e2e.numerics.compare import judge_op, stray
from e2e.protocols import outputs_of

MUCH = 4.0
"""Times the allowed relative error: a number that errs more is wrong, whatever its neighbours do. Chosen, not
measured."""
_MOST = 0.5
"""Share of a row, or of everything, from which it is called wrong as a whole. Chosen, not measured."""


@dataclass(frozen=True)
class Place:
    """Wrong numbers of one output."""

    first: tuple[int, ...]
    """Index of the first of them."""
    pattern: str
    """How they lie, in words."""

    def __str__(self) -> str:
        return f"first at {list(self.first)}, {self.pattern}"


def first_wrong(values: Any, baselines: Any, references: Any, *, ratio: float) -> str | None:
    """Where the first wrong output of a call is wrong, in words; None where that cannot be told."""
    outputs = [outputs_of(item) for item in (values, baselines, references)]
    for number, (value, baseline, reference) in enumerate(zip(*outputs, strict=False)):
        judged = judge_op(value, baseline, reference, ratio=ratio)
        place = place_of(value, baseline, reference, allowed=judged.allowed) if judged.code else None
        if place is not None:
            return f"output {number}, {place}" if len(outputs[0]) > 1 else str(place)
    return None


def place_of(value: Tensor, baseline: Tensor, reference: Tensor, *, allowed: float) -> Place | None:
    """The wrong numbers of an output that was rejected; None where it has none, or not the baseline's shape.

    Shapes:
        value, baseline, reference (..., H) or ().
    """
    if value.shape != reference.shape or not value.numel():
        return None
    odd = stray(value, baseline, reference)
    is_odd = bool(odd.any())
    wrong = odd if is_odd else _far(value.double(), reference.double(), allowed)
    if not bool(wrong.any()):
        return None
    at = int(wrong.reshape(-1).to(torch.uint8).argmax())
    lying = _lying(wrong.reshape(-1, value.shape[-1] if value.dim() else 1))
    index = torch.unravel_index(torch.tensor(at), value.shape)
    return Place(tuple(map(int, index)), f"not finite as the baseline is: {lying}" if is_odd else lying)


def _far(value: Tensor, reference: Tensor, allowed: float) -> Tensor:
    """Numbers that err by much more than is allowed; where none does by itself, those that err most."""
    error = (value - reference).abs()
    error = error.where(error.isfinite(), 0.0)
    size = reference.abs().where(reference.isfinite(), 0.0)
    share = error / size.clamp_min(float(size.square().mean().sqrt())).clamp_min(1e-30)
    return share > min(MUCH * allowed, 0.5 * float(share.max()))


def _lying(wrong: Tensor) -> str:
    """Shapes: wrong (R, H), with something in it."""
    rows, columns = wrong.any(1), wrong.any(0)
    if float(wrong.double().mean()) > _MOST:
        return "nearly everywhere"
    share_of_row = wrong[rows].double().mean()
    if float(share_of_row) > _MOST or wrong.shape[1] == 1:
        return f"{_run(rows)} of {len(rows)} rows"
    if bool(rows.all()) or float(wrong[:, columns].double().mean()) > _MOST:
        return f"{_run(columns)} of {len(columns)} columns"
    height, width = _span(rows), _span(columns)
    if float(wrong[height, width].double().mean()) > _MOST:
        return f"a tile: rows {_ends(height)}, columns {_ends(width)}"
    return f"{int(wrong.sum())} of {wrong.numel()} numbers, scattered"


def _run(marks: Tensor) -> str:
    """`the last 3`, `the first 8`, `number 17`, `5 (17 to 90)`."""
    span, count = _span(marks), int(marks.sum())
    if count == span.stop - span.start < len(marks):
        if span.stop == len(marks):
            return f"the last {count}"
        if span.start == 0:
            return f"the first {count}"
        if count == 1:
            return f"number {span.start}"
    return f"{count} ({_ends(span)})"


def _span(marks: Tensor) -> slice:
    places: Sequence[int] = marks.nonzero().reshape(-1).tolist()
    return slice(places[0], places[-1] + 1)


def _ends(span: slice) -> str:
    return f"{span.start} to {span.stop - 1}"
