# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: A10
# ci: false
# ///
"""Compiled by torch at its first call."""

import torch


@torch.compile(dynamic=True)
def norm(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight
