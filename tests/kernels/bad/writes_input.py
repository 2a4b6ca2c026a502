# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: M1
# outcome: [incorrect]
# codes: [inputs_changed]
# ///
"""Right, and uses its input as scratch memory."""

import torch


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps):
    y = right(x, weight, eps)
    x.mul_(0.5)
    return y
