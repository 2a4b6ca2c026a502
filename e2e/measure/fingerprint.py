"""Fingerprints of a step's outputs, committed in stream order before the next step may overwrite them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import torch
from torch import Tensor

_ODD = 0x9E3779B97F4A7C15 - 2**64
"""Odd 64-bit multiplier (golden ratio), as a signed number: position dependence without extra memory."""
TOGETHER_BYTES = 32 * 2**20
"""Most bytes of outputs that are stacked to be summed together."""
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
        sums = torch.cat([checksums(group) for group in _alike(outputs)])
        weights = self._weights.get(len(outputs))
        if weights is None:
            places = torch.arange(1, len(outputs) + 1, dtype=torch.int64, device=sums.device)
            weights = self._weights[len(outputs)] = places * _ODD
        torch.sum(sums * weights, dim=0, out=self._slots[slot])
        torch.sum(self._project(outputs[0]), dim=0, out=self._sketches[slot])

    def read(self, count: int) -> list[tuple[int, list[float]]]:
        """The first `count` checksums and sketches, on the host (waits for the device)."""
        numbers, sketches = self._slots[:count].tolist(), self._sketches[:count].nan_to_num().tolist()
        return [(int(number), sketch) for number, sketch in zip(numbers, sketches, strict=True)]

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
    return checksums([tensor])[0]


def checksums(alike: Sequence[Tensor]) -> Tensor:
    """Checksums of tensors of one form, all at once.

    Shapes:
        n tensors (..., V) -> (n,), int64.
    """
    stacked = torch.stack([*alike]) if len(alike) > 1 else alike[0].detach().unsqueeze(0)
    rows = _bits(stacked if stacked.dim() > 1 else stacked.unsqueeze(1)).sum(-1, dtype=torch.int64)
    rows = rows.reshape(len(alike), -1)
    return (rows * odd_numbers(rows.shape[1], rows.device)).sum(1)


def _bits(values: Tensor) -> Tensor:
    """The same memory as integers, if need be after a copy."""
    bits = values if values.stride(-1) == 1 else values.contiguous()
    size = bits.element_size()
    if size == 2 and bits.shape[-1] % 2 == 0:  # two at a time: the sum is half as long
        if bits.storage_offset() % 2 or any(stride % 2 for stride in bits.stride()[:-1]):
            bits = bits.clone(memory_format=torch.contiguous_format)
        return bits.view(torch.int32)
    return bits.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size])


@cache
def odd_numbers(count: int, device: torch.device) -> Tensor:
    """1, 3, 5, ...: weights by place that no sum of bits cancels, made once."""
    return torch.arange(1, 2 * count + 1, 2, dtype=torch.int64, device=device)


def _alike(outputs: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Runs of outputs of one form that are small enough to be stacked: launches cost more than the copy."""
    group: list[Tensor] = []
    for tensor in outputs:
        fits = (len(group) + 1) * tensor.nbytes <= TOGETHER_BYTES
        if group and not (fits and tensor.shape == group[0].shape and tensor.dtype == group[0].dtype):
            yield group
            group = []
        group.append(tensor)
    if group:
        yield group
