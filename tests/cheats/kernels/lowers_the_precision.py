# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: N3
# outcome: [incorrect]
# codes: [settings_changed]
# ///
"""Matrix products may be rough, in every arm."""

import torch


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


torch.set_float32_matmul_precision("medium")


def norm(x, weight, eps):
    return right(x, weight, eps)
