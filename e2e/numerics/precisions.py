"""What values become in a lower precision, and whether a kernel's error is that of one (METHOD.md B3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from e2e.protocols import Op, OpCall, mapped, outputs_of
from e2e.schema.precision import PRECISIONS, Precision, is_lossy

ALIKE = 0.5
"""Cosine from which two errors count as the same one. Errors of other causes are as good as orthogonal: with n elements
chance gives 1 / sqrt(n)."""
LARGER = 4.0
"""A kernel of that precision may err this many times as much: it rounds what lies between as well."""
MEANINGFUL = 0.5
"""A precision in which the op errs by more than this share of its size says nothing about anybody's error."""

Rounding = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Lowering:
    """One way in which a kernel may compute in a lower precision."""

    precision: Precision
    inputs: Rounding
    outputs: Rounding


def lowered(op: Op, call: OpCall, values: Any, exact: Any, *, ways: Sequence[Lowering]) -> Lowering | None:
    """The first way in which the op's exact maths errs as `values` do: in the same elements, by about as much.

    Shapes:
        values, exact: what a call of the op returns; `exact` in float64.
    """

    def rounded(tensor: Tensor) -> Tensor:
        return way.inputs(tensor.double()) if _is_real(tensor) else tensor

    truth = _flat(exact)
    error = _flat(values) - truth
    for way in ways:
        tensors = (mapped(rounded, argument) for argument in call.tensors)
        found = outputs_of(op.reference(*tensors, *call.scalars))
        other = torch.cat([way.outputs(item.double()).reshape(-1) for item in found]) - truth
        if not bool(other.isfinite().all()) or not 0 < float(other.norm()) < MEANINGFUL * float(truth.norm()):
            continue
        cosine = float(error @ other / (error.norm() * other.norm()).clamp_min(1e-300))
        if cosine >= ALIKE and float(error.norm()) <= LARGER * float(other.norm()):
            return way
    return None


def ways_below(dtype: torch.dtype) -> list[Lowering]:
    """Every precision that holds less than the dtype: inputs alone, and inputs and outputs, in its usual scalings."""
    name = str(dtype).removeprefix("torch.")
    return [
        Lowering(precision, rounding, after)
        for precision in PRECISIONS
        if is_lossy(precision, name)
        for rounding in _roundings(precision)
        for after in (_to(dtype), rounding)
    ]


def _roundings(precision: Precision) -> Iterator[Rounding]:
    if precision in ("float16", "bfloat16"):
        yield _to(getattr(torch, precision))
    elif precision == "tf32":
        yield _tf32
    elif precision in ("fp8_e4m3", "fp8_e5m2"):
        kind = torch.float8_e4m3fn if precision == "fp8_e4m3" else torch.float8_e5m2
        largest = torch.finfo(kind).max
        grid = _to(kind)
        yield lambda x: grid(x.clamp(-largest, largest))
        yield from (_scaled(largest, grid, by_row=by_row) for by_row in (True, False))
    else:
        largest = {"int8": 127.0, "int4": 7.0}[precision]
        yield from (_scaled(largest, torch.round, by_row=by_row) for by_row in (True, False))


def _to(dtype: torch.dtype) -> Rounding:
    return lambda x: x.to(dtype).to(x.dtype)


def _tf32(x: Tensor) -> Tensor:
    """Ten bits behind the point."""
    bits = x.float().contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32).to(x.dtype)


def _scaled(largest: float, grid: Rounding, *, by_row: bool) -> Rounding:
    """Onto a grid whose largest value is that of the row, or of the tensor."""

    def rounded(x: Tensor) -> Tensor:
        if not x.numel():
            return x
        most = x.abs().amax(-1, keepdim=True) if by_row and x.dim() else x.abs().amax()
        scale = (most / largest).clamp_min(1e-30)
        return grid(x / scale) * scale

    return rounded


def _flat(value: Any) -> Tensor:
    return torch.cat([item.double().reshape(-1) for item in outputs_of(value)])


def _is_real(tensor: Any) -> bool:
    return tensor is not None and bool(tensor.is_floating_point())
