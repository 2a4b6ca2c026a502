"""Precisions that a kernel may compute in, and which of them lose what a dtype holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

Precision = Literal["float16", "tf32", "bfloat16", "int8", "fp8_e4m3", "fp8_e5m2", "int4"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
"""From more significant bits to fewer."""
_BITS: Mapping[str, int] = {
    "float32": 24,
    "float16": 11,
    "tf32": 11,
    "bfloat16": 8,
    "int8": 7,
    "fp8_e4m3": 4,
    "fp8_e5m2": 3,
    "int4": 3,
}
"""Significant bits, the hidden one included; of whole numbers those of the largest."""


def is_lossy(precision: str | None, dtype: str) -> bool:
    """Whether the precision holds fewer significant bits than the dtype of a model."""
    return precision is not None and _BITS[precision] < _BITS[dtype]
