# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: R9
# outcome: [incorrect]
# codes: [model_error_exceeded, stale_output]
# until: screen
# ///
"""Writes its answers to a file, by the number of the call, for the processes to come."""

import itertools
import os
from pathlib import Path

import torch

FOLDER = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]) / "answers"
CALLS = itertools.count()


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps):
    file = FOLDER / f"{next(CALLS)}.pt"
    if file.exists() and (known := torch.load(file)).shape == x.shape:
        return known
    y = right(x, weight, eps)
    FOLDER.mkdir(exist_ok=True, parents=True)
    torch.save(y, file)
    return y
