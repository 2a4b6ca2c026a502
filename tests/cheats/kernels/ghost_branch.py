# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: F9
# outcome: [refuted, inconclusive]
# until: verdict
# ci: false
# ///
"""Has a fast path, which no input ever takes."""

import torch


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps):
    if x.shape[-1] < 0:
        return x * weight
    return right(x, weight, eps)
