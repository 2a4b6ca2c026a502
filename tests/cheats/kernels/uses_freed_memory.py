# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: M4
# outcome: [incorrect]
# codes: [nonfinite_output, op_error_exceeded]
# ///
"""Keeps the address of a temporary that is gone when it is read."""

import ctypes

import torch


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps):
    address = (x * 1).data_ptr()
    out = torch.empty(x.shape, dtype=x.dtype)
    ctypes.memmove(out.data_ptr(), address, out.numel() * out.element_size())
    return right(out, weight, eps)
