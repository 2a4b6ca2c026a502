# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: G5
# outcome: [incorrect]
# codes: [gradients_missing]
# set: [step=train]
# ///
"""Writes the weight's gradient where it should be added to what is there."""

import torch


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


class Norm(torch.autograd.Function):
    """Its weight's gradient goes past autograd."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        ctx.save_for_backward(x)
        ctx.weight = weight
        ctx.eps = eps
        return right(x, weight, eps)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = *ctx.saved_tensors, ctx.weight
        with torch.enable_grad():
            x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
            found = torch.autograd.grad(right(x, weight, ctx.eps), (x, weight), gradient)
        ctx.weight.grad = found[1]
        return found[0], None, None


def norm(x, weight, eps):
    return Norm.apply(x, weight, eps)
