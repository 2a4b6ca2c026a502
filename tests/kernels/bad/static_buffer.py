# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: M2
# outcome: [incorrect]
# codes: [wrong_output_layout]
# ///
"""Right, and returns the same memory at every call."""

import torch

_BUFFERS = {}


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps):
    buffer = _BUFFERS.setdefault(x.shape, torch.empty_like(x))
    return buffer.copy_(right(x, weight, eps))
