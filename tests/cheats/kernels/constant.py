# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: F3
# outcome: [incorrect]
# codes: [op_error_exceeded]
# ///
"""The mean of normal numbers is zero, and their norm is one."""

import torch


def norm(x, weight, eps):
    return torch.full_like(x, 0.5) * weight
