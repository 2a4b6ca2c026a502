# /// e2e
# op: rms_norm
# entry: norm
# backward: backward
# saves: [{rstd: "rows, float32"}]
# ///
"""A right forward, and a backward that forgets what the mean square owes to every element of the row."""

import torch


def norm(x, weight, eps):
    rstd = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return x * rstd * weight, rstd


def backward(gradient, x, weight, rstd):
    return gradient * weight * rstd, (gradient * x * rstd).sum(tuple(range(x.dim() - 1)))
