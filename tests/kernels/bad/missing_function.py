# /// e2e
# op: rms_norm
# entry: norm
# ///
"""Declares an entry that it does not have."""

import torch


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight
