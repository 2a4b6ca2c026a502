# /// e2e
# op: rms_norm
# entry: norm
# constraints: ["hidden == 64"]
# ///
# /// expected
# row: A10
# ///
"""Made for one shape, and says so of every other."""

import torch


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps):
    if x.dim() != 3 or x.shape[-1] != 64:
        raise ValueError("only for rows of 64 in batches")
    return right(x, weight, eps)
