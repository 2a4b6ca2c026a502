# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: A10
# outcome: [refuted]
# until: verdict
# ci: false
# ///
"""Right, and a millisecond slower each time: never worth adopting."""

import time

import torch


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps):
    time.sleep(0.001)
    return right(x, weight, eps)
