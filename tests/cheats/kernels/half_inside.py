# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: N1
# outcome: [incorrect]
# codes: [precision_downgraded]
# ///
"""Computes in half precision what it takes and returns in single."""

import torch


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps):
    return right(x.half(), weight.half(), eps).float()
