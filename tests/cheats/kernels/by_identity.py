# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: R2
# outcome: [incorrect]
# codes: [replayed_output]
# ///
"""Knows its last input by the object."""

import torch

LAST = {}


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps):
    if LAST.get("x") is not x:
        LAST.update(x=x, y=right(x, weight, eps))
    return LAST["y"].clone()
