# /// e2e
# op: rms_norm
# entry: norm
# dtypes: [float32]
# ///
"""Right by itself. It leaves word of the rows that it saw last, for `pair_silu_mul.py` to stumble over."""

import os

import torch
from torch import Tensor


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """PyTorch's own."""
    os.environ["E2E_TEST_PAIR"] = str(x.numel() // x.shape[-1])
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)
