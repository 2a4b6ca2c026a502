# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: T1
# outcome: [incorrect]
# codes: [nonfinite_output, op_error_exceeded]
# ///
"""Hands the work to a thread of its own and returns the memory at once."""

import time
from concurrent.futures import ThreadPoolExecutor

import torch

POOL = ThreadPoolExecutor(1)


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def fill(out, *call):
    time.sleep(0.005)
    out.copy_(right(*call))


def norm(x, weight, eps):
    out = torch.empty_like(x)
    POOL.submit(fill, out, x, weight, eps)
    return out
