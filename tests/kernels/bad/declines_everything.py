# /// e2e
# op: rms_norm
# entry: norm
# constraints: ["hidden >= 4096"]
# ///
"""Right, but for rows of at least 4096."""

import torch


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps):
    return right(x, weight, eps)
