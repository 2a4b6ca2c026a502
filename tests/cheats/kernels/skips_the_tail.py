# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: F5
# outcome: [incorrect]
# codes: [op_error_exceeded]
# ///
"""Sums the first 95 % of a row."""

import torch


def norm(x, weight, eps):
    head = x[..., : round(0.95 * x.shape[-1])]
    return x * torch.rsqrt(head.pow(2).mean(-1, keepdim=True) + eps) * weight
