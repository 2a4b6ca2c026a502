# /// e2e
# entry: swiglu_mlp
# ///
"""A kernel for examples/swiglu_mlp.py, in plain torch. Its block names no op: whoever validates it does."""

import torch
from torch.nn import functional as F


def swiglu_mlp(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)
