"""Values for hard inputs: drawn in float64 on the host, so that every process and device sees the same ones."""

from __future__ import annotations

import torch
from torch import Tensor


class Draw:
    """Seeded values in the dtype and on the device of a captured tensor."""

    def __init__(self, seed: int, like: Tensor) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._like = like

    @classmethod
    def of(cls, dtype: str, device: str, seed: int) -> Draw:
        """For calls that nobody captured."""
        return cls(seed, torch.empty(0, dtype=getattr(torch, dtype), device=device))

    def normal(self, *shape: int) -> Tensor:
        """Standard normal values, in float64 on the host."""
        return torch.randn(*shape, generator=self._generator, dtype=torch.float64)

    def integers(self, high: int, *shape: int) -> Tensor:
        """Whole numbers below `high`, on the captured tensor's device."""
        return torch.randint(high, shape, generator=self._generator).to(self._like.device)

    def made(self, values: Tensor) -> Tensor:
        """Those values as the captured tensor's kind."""
        return values.to(device=self._like.device, dtype=self._like.dtype)


def name_of(dtype: torch.dtype) -> str:
    """As workload files and constraints write it."""
    return str(dtype).removeprefix("torch.")
