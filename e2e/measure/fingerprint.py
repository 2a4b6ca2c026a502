"""Fingerprints of a step's outputs, committed in stream order before the next step may overwrite them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_ODD = 0x9E3779B97F4A7C15 - 2**64
"""Odd 64-bit multiplier (golden ratio), as a signed number: position dependence without extra memory."""


class Ring:
    """Preallocated 64-bit checksums, one per step; a step costs a few reductions, the same in every arm.

    A checksum proves that this step's work was done on this step's input. That the result is *right* is the
    business of the op and model checks; the two are never confused.
    """

    def __init__(self, slots: int, device: str) -> None:
        self._slots = torch.zeros(slots, dtype=torch.int64, device=device)
        self._weights: dict[int, Tensor] = {}

    def commit(self, outputs: Sequence[Tensor], slot: int) -> None:
        """Write the checksum of `outputs` into `slot`, on the current stream."""
        sums = torch.stack([_checksum(tensor) for tensor in outputs])
        weights = self._weights.get(len(outputs))
        if weights is None:
            places = torch.arange(1, len(outputs) + 1, dtype=torch.int64, device=sums.device)
            weights = self._weights[len(outputs)] = places * _ODD
        torch.sum(sums * weights, dim=0, out=self._slots[slot])

    def read(self, count: int) -> list[int]:
        """The first `count` checksums, on the host (waits for the device)."""
        return [int(value) for value in self._slots[:count].tolist()]


def _checksum(tensor: Tensor) -> Tensor:
    """Sum of the bits, read as integers; the last dimension's sums are weighted by their place."""
    bits = tensor.detach()
    if bits.dim() == 0 or bits.stride(-1) != 1:
        bits = bits.contiguous().reshape(-1)
    size = bits.element_size()
    if size == 2 and bits.shape[-1] % 2 == 0 and bits.storage_offset() % 2 == 0 and _even(bits):
        bits = bits.view(torch.int32)
    else:
        bits = bits.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size])
    rows = bits.sum(-1, dtype=torch.int64).reshape(-1)
    places = torch.arange(1, 2 * rows.numel() + 1, 2, dtype=torch.int64, device=rows.device)
    return (rows * places).sum()


def _even(tensor: Tensor) -> bool:
    return all(stride % 2 == 0 for stride in tensor.stride()[:-1])
