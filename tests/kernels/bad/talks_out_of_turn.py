# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: H1
# outcome: [incorrect]
# codes: [tampered]
# ///
"""Writes into the channel that belongs to its worker."""

import os

import torch


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps):
    os.write(3, b"\xff" * 64)
    return right(x, weight, eps)
