"""Mistakes that kernels of any op make, for mutants."""

from __future__ import annotations

from torch import Tensor


def without_last_row(y: Tensor) -> Tensor:
    """The tensor with its last row of the last dimension zeroed, as a kernel leaves it that drops its tail."""
    rows = y.reshape(-1, y.shape[-1]).clone()
    rows[-1:] = 0
    return rows.reshape(y.shape)


def without_last_column(y: Tensor) -> Tensor:
    """The tensor with the last element of every row zeroed."""
    kept = y.clone()
    kept[..., -1:] = 0
    return kept


def rows_rolled(y: Tensor) -> Tensor:
    """Every row in the next one's place."""
    return y.reshape(-1, y.shape[-1]).roll(1, 0).reshape(y.shape)
