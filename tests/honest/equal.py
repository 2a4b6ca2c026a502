# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: A10
# ///
"""The same maths as the model's own."""

import torch


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps):
    return right(x, weight, eps)
