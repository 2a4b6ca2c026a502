# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: F8
# outcome: [refuted, inconclusive]
# until: verdict
# ci: false
# ///
"""Its fast path always raises, and plain PyTorch steps in: right, and slower."""

import torch


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def fast(x, weight, eps):
    raise RuntimeError("launch failed")


def norm(x, weight, eps):
    try:
        return fast(x, weight, eps)
    except RuntimeError:
        return right(x, weight, eps)
