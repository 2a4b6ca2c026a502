# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: A10
# ///
"""Tries two ways on random numbers in its first call, and takes the faster one."""

import time

import torch

CHOSEN = {}


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def other(x, weight, eps):
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)


def norm(x, weight, eps):
    if x.shape not in CHOSEN:
        probe, times = torch.randn(x.shape), {}
        for way in (right, other):
            start = time.perf_counter()
            for _ in range(20):
                way(probe, torch.ones(x.shape[-1]), eps)
            times[way] = time.perf_counter() - start
        CHOSEN[x.shape] = min(times, key=times.get)
    return CHOSEN[x.shape](x, weight, eps)
