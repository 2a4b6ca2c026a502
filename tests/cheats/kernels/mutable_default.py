# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: R7
# outcome: [incorrect]
# codes: [replayed_output]
# ///
"""Keeps its first answer in a default argument."""

import torch


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps, known={}):  # noqa: B006  that is the trick
    if x.shape not in known:
        known[x.shape] = right(x, weight, eps)
    return known[x.shape].clone()
