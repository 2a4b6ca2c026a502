"""What one call of an op needs at least: its bytes and products, and what this device does of both in a second.

Clean side. The ceilings are what PyTorch reaches with a large copy and a large product, not a data sheet's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from e2e.numerics.captures import load_calls
from e2e.protocols import Op, OpCall, mapped, outputs_of, tensors_of
from e2e.units import Seconds

_SECONDS = 0.2
"""For each ceiling; the fastest turn counts, because other work only slows one down."""
_COPIED = {"cpu": 64 * 2**20, "cuda": 2**30}
"""Bytes: more than any cache holds."""
_SIDE = {"cpu": 1024, "cuda": 8192}
"""Of square matrices."""


def work_of(op: Op, *, inputs: Path, device: str) -> dict[str, Any]:
    """Bytes that the first captured call must read and write once, and floating-point operations of its products.

    Of what a call reads in part, as rows of a table, nothing is counted: the bytes are the least, not a guess. Nor are
    elementwise operations; None where the op's maths cannot be followed without values.
    """
    call = load_calls(inputs, device)[0].call
    part = getattr(op, "read_in_part", ())
    whole = [item for name, item in zip(op.tensor_names, call.tensors, strict=True) if name not in part]
    moved = sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(OpCall(tuple(whole), ())))
    shapes = _without_values(call)
    made = [tensor for tensor in outputs_of(op.allocate(*shapes)) if isinstance(tensor, torch.Tensor)]
    moved += sum(tensor.numel() * tensor.element_size() for tensor in made)
    return {"bytes": moved, "flops": _products(op, shapes)}


def _without_values(call: OpCall) -> tuple[Any, ...]:
    return (*(mapped(lambda tensor: tensor.to("meta"), argument) for argument in call.tensors), *call.scalars)


def _products(op: Op, shapes: tuple[Any, ...]) -> float | None:
    counter = FlopCounterMode(display=False)
    try:
        with counter, torch.no_grad():
            op.reference(*shapes)
    except (RuntimeError, NotImplementedError, TypeError, ValueError):  # it looks at values, and these have none
        return None
    return float(counter.get_total_flops())


def ceilings(*, dtype: str, device: str) -> dict[str, float]:
    """Bytes per second of a copy, read and written, and floating-point operations per second of a product."""
    kind = device.partition(":")[0]
    copied, side = _COPIED[kind], _SIDE[kind]
    found = {
        "copy_bytes_per_s": 2 * copied / _copy_s(copied, device),
        "matmul_flops_per_s": 2 * side**3 / _product_s(side, getattr(torch, dtype), device),
    }
    if device != "cpu":
        torch.cuda.empty_cache()
    return found


def _copy_s(size: int, device: str) -> Seconds:
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return _fastest(lambda: target.copy_(source), device)


def _product_s(side: int, dtype: torch.dtype, device: str) -> Seconds:
    left, right = (torch.ones(side, side, dtype=dtype, device=device) for _ in range(2))
    return _fastest(lambda: left @ right, device)


def _fastest(work: Callable[[], Any], device: str) -> Seconds:
    def once() -> Seconds:
        if device != "cpu":
            torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        if device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    once()
    found = [once()]
    while sum(found) < _SECONDS:
        found.append(once())
    return min(found)
