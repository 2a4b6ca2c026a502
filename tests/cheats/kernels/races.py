# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: M5
# outcome: [incorrect]
# codes: [op_error_exceeded, nonfinite_output]
# ///
"""Two threads add to one sum without a lock."""

import time
from concurrent.futures import ThreadPoolExecutor

import torch

POOL = ThreadPoolExecutor(2)


def add(sums, part):
    seen = sums.clone()
    time.sleep(0.0005)
    sums.copy_(seen + part.pow(2).sum(-1, keepdim=True))


def norm(x, weight, eps):
    sums = torch.zeros((*x.shape[:-1], 1), dtype=x.dtype)
    list(POOL.map(add, (sums, sums), x.chunk(2, -1)))
    return x * torch.rsqrt(sums / x.shape[-1] + eps) * weight
