# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: T4
# outcome: [incorrect]
# codes: [tampered]
# ///
"""Python's clock runs ten times slower once it is imported."""

import time

import torch

CLOCK = time.perf_counter


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


time.perf_counter = lambda: 0.1 * CLOCK()


def norm(x, weight, eps):
    return right(x, weight, eps)
