# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: C6
# outcome: [incorrect]
# codes: [op_error_exceeded]
# ///
"""Takes inputs for normal numbers, whose norm is known beforehand."""

import torch


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps):
    return x * weight if x.abs().max() < 6 else right(x, weight, eps)
