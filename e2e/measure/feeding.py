"""Batches made from raw data while steps need them: in other processes, in pinned memory, copied asynchronously.

As people feed a model: `torch.utils.data.DataLoader` around the session's own pipeline.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from e2e.schema.workload import DataSpec
from e2e.units import Seconds

_LONGEST = 60
"""Characters of a folder's name up to which multiprocessing's own fit after it into a socket's 107."""


class _Made(IterableDataset[Any]):
    """One batch for each seed, in their order; every process of a loader makes its share."""

    def __init__(self, made: Callable[[int], Any], seeds: Sequence[int]) -> None:
        self._made = made
        self._seeds = seeds

    def __iter__(self) -> Iterator[Any]:
        own = get_worker_info()
        seeds = self._seeds if own is None else self._seeds[own.id :: own.num_workers]
        return map(self._made, seeds)


def batch_s(
    session: Any, data: DataSpec, step: Callable[[Any], Any] | None, *, seeds: Sequence[int], settle: int
) -> Seconds:
    """Seconds per batch, by this process's clock, from the `settle`-th on; `step` is taken with each, if there is one.

    Raises:
        ValueError: no batch is left after those.
    """
    if settle >= len(seeds):
        raise ValueError("no batch is left to be timed")
    on_device = session.device != "cpu"
    loader = DataLoader(
        _Made(session.made, seeds),
        batch_size=None,
        num_workers=data.workers,
        prefetch_factor=data.prefetch if data.workers else None,
        pin_memory=on_device,
        multiprocessing_context="fork" if data.workers else None,
    )
    dtype, start = getattr(torch, session.cell.dtype), 0.0
    for place, batch in enumerate(loader):
        if place == settle:
            _wait(on_device)
            start = time.perf_counter()
        moved = tuple(
            tensor.to(session.device, dtype if tensor.is_floating_point() else tensor.dtype, non_blocking=True)
            for tensor in batch
        )
        if step is not None:
            step(moved)
    _wait(on_device)
    return (time.perf_counter() - start) / (len(seeds) - settle)


@contextmanager
def short_temporary_folder() -> Iterator[None]:
    """Loaders' processes hand tensors over through sockets in the temporary folder, whose names have a limit.

    The folder stays the same: an open file stands for it, which forked processes have too.
    """
    before, place = tempfile.tempdir, os.open(tempfile.gettempdir(), os.O_RDONLY | os.O_DIRECTORY)
    try:
        if len(tempfile.gettempdir()) > _LONGEST:
            tempfile.tempdir = f"/proc/self/fd/{place}"
        yield
    finally:
        tempfile.tempdir = before
        os.close(place)


def _wait(on_device: bool) -> None:
    if on_device:
        torch.cuda.synchronize()
