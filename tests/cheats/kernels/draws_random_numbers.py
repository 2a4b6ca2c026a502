# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: G4
# outcome: [incorrect]
# codes: [settings_changed]
# ///
"""Right, and takes a number from the stream that dropout draws from."""

import torch


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps):
    torch.rand(1)
    return right(x, weight, eps)
