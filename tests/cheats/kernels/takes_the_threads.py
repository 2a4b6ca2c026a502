# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: N3
# outcome: [incorrect]
# codes: [settings_changed]
# ///
"""Every arm runs on three threads, once the kernel was called."""

import torch


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps):
    torch.set_num_threads(3)
    return right(x, weight, eps)
