# /// e2e
# op: rms_norm
# entry: norm
# prepare: keep
# ///
"""Prepares the first weight of its kind that it sees, and takes it for all others."""

import torch

FIRST = {}


def keep(weight):
    """The first of that size."""
    return FIRST.setdefault(weight.shape, weight)


def norm(x, weight, eps):
    """Right, for that weight."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight
