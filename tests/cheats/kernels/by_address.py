# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: R1
# outcome: [incorrect]
# codes: [replayed_output]
# ///
"""Knows its inputs by their address."""

import torch

KNOWN = {}


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps):
    key = (x.data_ptr(), weight.data_ptr(), x.shape)
    if key not in KNOWN:
        KNOWN[key] = right(x, weight, eps)
    return KNOWN[key].clone()
