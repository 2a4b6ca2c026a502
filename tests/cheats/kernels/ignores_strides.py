# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: C3
# outcome: [incorrect]
# codes: [op_error_exceeded, replayed_output]
# ///
"""Reads memory in order, however the tensor lies in it."""

import torch


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps):
    steps, size = [], 1
    for length in reversed(x.shape):
        steps.insert(0, size)
        size *= length
    if x.storage_offset() + size > x.untyped_storage().nbytes() // x.element_size():
        return right(x, weight, eps)
    return right(x.as_strided(x.shape, steps), weight, eps)
