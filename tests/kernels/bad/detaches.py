# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: G1
# outcome: [incorrect]
# codes: [gradients_missing, gradient_error_exceeded]
# set: [step=train]
# ///
"""Right, and cuts the graph for training."""

import torch


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps):
    return right(x.detach(), weight, eps)
