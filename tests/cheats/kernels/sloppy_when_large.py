# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: C1
# outcome: [incorrect]
# codes: [precision_downgraded, op_error_exceeded, nonfinite_output]
# ///
"""Exact for small inputs, half precision for those of the workload."""

import torch


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps):
    if x.numel() <= 1024:
        return right(x, weight, eps)
    return right(x.half(), weight.half(), eps).float()
