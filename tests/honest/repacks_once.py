# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: W10
# ///
"""Repacks for a while in its first call, for which it needs a third of a second."""

import time

import torch

READY = []


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps):
    if not READY:
        time.sleep(0.3)
        READY.append(True)
    return right(x, weight, eps)
