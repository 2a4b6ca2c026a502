# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: A10
# ///
"""Two threads of its own, both done when it returns."""

from concurrent.futures import ThreadPoolExecutor

import torch

POOL = ThreadPoolExecutor(2)


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps):
    parts = x.reshape(-1, x.shape[-1]).chunk(2)
    return torch.cat(list(POOL.map(lambda part: right(part, weight, eps), parts))).reshape(x.shape)
