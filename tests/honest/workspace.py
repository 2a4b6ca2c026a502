# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: A10
# ///
"""Uses one workspace for all calls, and returns memory of its own each time."""

import torch

SPACE = {}


def norm(x, weight, eps):
    key = (x.shape, x.dtype)
    squares = SPACE.setdefault(key, torch.empty(x.shape, dtype=x.dtype, device=x.device))
    torch.mul(x, x, out=squares)
    return x * torch.rsqrt(squares.mean(-1, keepdim=True) + eps) * weight
