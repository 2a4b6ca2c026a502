# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: C5
# outcome: [incorrect]
# codes: [op_error_exceeded]
# ///
"""Right where torch is told to be deterministic, as it is where fresh memory is poisoned."""

import torch


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps):
    return right(x, weight, eps) if torch.are_deterministic_algorithms_enabled() else x * weight
