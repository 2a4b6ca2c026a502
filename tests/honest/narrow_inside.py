# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: A10
# set: [model.dtype=bfloat16]
# ///
"""Sums in single precision what comes and goes in half of that."""

import torch


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps):
    return right(x.float(), weight.float(), eps).to(x.dtype)
