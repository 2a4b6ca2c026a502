# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: T8
# outcome: [refuted, inconclusive]
# until: verdict
# ci: false
# ///
"""Slow in its first calls, so that a harness that sizes its loops by them measures few; right, and no faster."""

import itertools
import time

import torch

CALLS = itertools.count()


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps):
    if next(CALLS) < 10:
        time.sleep(0.01)
    return right(x, weight, eps)
