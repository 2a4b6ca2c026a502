"""Fingerprints of a step's outputs, committed in stream order before the next step may overwrite them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_ODD = 0x9E3779B97F4A7C15 - 2**64
"""Odd 64-bit multiplier (golden ratio), as a signed number: position dependence without extra memory."""
COLUMNS = 4
"""Random projections per step."""


class Ring:
    """Preallocated 64-bit checksums, one per step; a step costs a few reductions, the same in every arm.

    A checksum proves that this step's work was done on this step's input. That the result is *right* is the
    business of the op and model checks; the two are never confused.
    """

    def __init__(self, slots: int, device: str) -> None:
        self.slots = slots
        self._slots = torch.zeros(slots, dtype=torch.int64, device=device)
        self._sketches = torch.zeros(slots, COLUMNS, device=device)
        self._signs: Tensor | None = None
        self._weights: dict[int, Tensor] = {}

    def commit(self, outputs: Sequence[Tensor], slot: int) -> None:
        """Write the checksum of `outputs` into `slot`, on the current stream."""
        sums = torch.stack([checksum(tensor) for tensor in outputs])
        weights = self._weights.get(len(outputs))
        if weights is None:
            places = torch.arange(1, len(outputs) + 1, dtype=torch.int64, device=sums.device)
            weights = self._weights[len(outputs)] = places * _ODD
        torch.sum(sums * weights, dim=0, out=self._slots[slot])
        torch.sum(self._project(outputs[0]), dim=0, out=self._sketches[slot])

    def read(self, count: int) -> list[tuple[int, list[float]]]:
        """The first `count` checksums and sketches, on the host (waits for the device)."""
        checksums, sketches = self._slots[:count].tolist(), self._sketches[:count].nan_to_num().tolist()
        return [(int(number), sketch) for number, sketch in zip(checksums, sketches, strict=True)]

    def _project(self, output: Tensor) -> Tensor:
        """Every row's projections on random signs.

        Shapes:
            output (..., V) -> (rows, COLUMNS), float32.
        """
        rows = output.detach().float().reshape(-1, output.shape[-1] if output.dim() else 1)
        if self._signs is None or self._signs.shape[0] != rows.shape[1]:
            generator = torch.Generator().manual_seed(0)
            signs = torch.randint(0, 2, (rows.shape[1], COLUMNS), generator=generator) * 2.0 - 1.0
            self._signs = signs.to(rows.device)
        return rows @ self._signs


def checksum(tensor: Tensor) -> Tensor:
    """Sum of the bits, read as integers; the last dimension's sums are weighted by their place.

    Depends on values and shape only: the same result in another layout has the same checksum.
    """
    bits = tensor.detach()
    if bits.dim() == 0:
        bits = bits.reshape(1)
    if bits.stride(-1) != 1:
        bits = bits.contiguous()
    size = bits.element_size()
    if size == 2 and bits.shape[-1] % 2 == 0:  # two at a time: the sum is half as long
        if bits.storage_offset() % 2 or any(stride % 2 for stride in bits.stride()[:-1]):
            bits = bits.clone(memory_format=torch.contiguous_format)
        bits = bits.view(torch.int32)
    else:
        bits = bits.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size])
    rows = bits.sum(-1, dtype=torch.int64).reshape(-1)
    places = torch.arange(1, 2 * rows.numel() + 1, 2, dtype=torch.int64, device=rows.device)
    return (rows * places).sum()
