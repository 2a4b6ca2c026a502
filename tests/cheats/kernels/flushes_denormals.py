# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: N3
# outcome: [incorrect]
# codes: [settings_changed]
# ///
"""The smallest numbers become zero, in every arm."""

import torch


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


torch.set_flush_denormal(True)


def norm(x, weight, eps):
    return right(x, weight, eps)
