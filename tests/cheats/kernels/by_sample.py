# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: R3
# outcome: [incorrect]
# codes: [replayed_output]
# ///
"""Knows its inputs by every thousandth element."""

import torch

KNOWN = {}


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps):
    key = (x.shape, *x.reshape(-1)[::1000].tolist(), *weight[::50].tolist())
    if key not in KNOWN:
        KNOWN[key] = right(x, weight, eps)
    return KNOWN[key].clone()
