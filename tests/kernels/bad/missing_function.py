# /// e2e
# op: rms_norm
# entry: norm
# ///
"""Declares an entry that is gone once the file has run, which its text does not say."""

import torch


def norm(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


right = norm
del norm
