# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: R8
# outcome: [incorrect]
# codes: [op_error_exceeded]
# ///
"""Keeps a copy of the weight by its identity, whatever becomes of the weight."""

import torch

COPIES = {}


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps):
    copy = COPIES.setdefault(id(weight), weight.clone())
    return right(x, copy, eps)
