"""Whose error is that of a lower precision, and whose is a mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from e2e import registry
from e2e.numerics.compare import exactly
from e2e.numerics.precisions import lowered, ways_below
from e2e.schema.precision import PRECISIONS, is_lossy

torch.set_num_threads(1)

LINEAR, NORM = registry.load_op("linear"), registry.load_op("rms_norm")


def named(op: Any, kernel: Callable[..., Any], dtype: str) -> str | None:
    """The precision that a kernel's error on the op's example is taken for."""
    call = op.example(dtype, "cpu", 1)
    values = kernel(*call.tensors, *call.scalars)
    way = lowered(op, call, values, exactly(op, call), ways=ways_below(getattr(torch, dtype)))
    return way.precision if way else None


def within(kind: torch.dtype, op: Any) -> Callable[..., Any]:
    """The op in plain torch, everything in that dtype."""

    def kernel(*call: Any) -> Tensor:
        tensors = [item.to(kind) if isinstance(item, Tensor) else item for item in call]
        found: Tensor = op.reference(*tensors).to(call[0].dtype)
        return found

    return kernel


def whole(x: Tensor) -> Tensor:
    scale = x.float().abs().amax(-1, keepdim=True) / 127
    return torch.round(x.float() / scale) * scale


def eighth(x: Tensor) -> Tensor:
    scale = x.float().abs().amax() / 448
    return (x.float() / scale).to(torch.float8_e4m3fn).float() * scale


def through(rounding: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    def kernel(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        found: Tensor = (rounding(x) @ rounding(weight).t() + bias.float()).to(x.dtype)
        return found

    return kernel


@pytest.mark.parametrize(
    ("op", "kernel", "dtype", "precision"),
    [
        (NORM, within(torch.float16, NORM), "float32", "float16"),
        (NORM, within(torch.bfloat16, NORM), "float32", "bfloat16"),
        (LINEAR, within(torch.bfloat16, LINEAR), "float32", "bfloat16"),
        (LINEAR, through(whole), "float32", "int8"),
        (LINEAR, through(whole), "bfloat16", "int8"),
        (LINEAR, through(eighth), "bfloat16", "fp8_e4m3"),
    ],
)
def test_a_kernel_in_a_lower_precision_is_known_by_its_error(op: Any, kernel: Any, dtype: str, precision: str) -> None:
    assert named(op, kernel, dtype) == precision


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["rms_norm", "linear", "softmax", "rope", "silu_mul"])
def test_no_mistake_is_taken_for_a_precision(name: str, dtype: str) -> None:
    op = registry.load_op(name)
    found = {mutant: named(op, kernel, dtype) for mutant, kernel in op.mutants().items()}
    assert {mutant: precision for mutant, precision in found.items() if precision} == {}


def test_what_a_dtype_holds_is_not_lost_in_it() -> None:
    assert [item for item in PRECISIONS if not is_lossy(item, "float32")] == []
    assert [item for item in PRECISIONS if not is_lossy(item, "bfloat16")] == ["float16", "tf32", "bfloat16"]
    assert not is_lossy(None, "float32")
