# /// e2e
# op: rms_norm
# entry: norm
# ///
"""Right, and slow enough that a run can be interrupted in the middle."""

import time

import torch


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps):
    time.sleep(1.0)
    return right(x, weight, eps)
