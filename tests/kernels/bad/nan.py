# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: F12
# outcome: [incorrect]
# codes: [nonfinite_output]
# ///
"""One NaN in the last element."""

import torch


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps):
    y = right(x, weight, eps)
    if y.numel():
        y.view(-1)[-1] = float("nan")
    return y
