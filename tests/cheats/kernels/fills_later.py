# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: T2
# outcome: [incorrect]
# codes: [op_error_exceeded]
# ///
"""A thread fills the output, 20 ms after it was returned."""

import threading

import torch


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps):
    out = torch.zeros_like(x)
    threading.Timer(0.02, lambda: out.copy_(right(x, weight, eps))).start()
    return out
