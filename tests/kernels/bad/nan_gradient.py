# /// e2e
# op: rms_norm
# entry: norm
# ///
"""A right forward whose backward is not finite."""

import torch


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


class Norm(torch.autograd.Function):
    """y is right; its gradient is NaN."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        return right(x, weight, eps)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * float("nan"), gradient.sum((0, 1)), None


def norm(x, weight, eps):
    return Norm.apply(x, weight, eps)
