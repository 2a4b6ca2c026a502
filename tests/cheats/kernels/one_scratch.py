# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: G3
# outcome: [incorrect]
# codes: [gradient_error_exceeded]
# set: [step=train]
# ///
"""All sites save their input in one scratch memory."""

import torch

SCRATCH = {}


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


class Norm(torch.autograd.Function):
    """Saves what the next call overwrites."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        ctx.weight = weight
        SCRATCH["x"] = SCRATCH.get("x", torch.empty_like(x)).resize_as_(x).copy_(x)
        ctx.eps = eps
        return right(x, weight, eps)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = SCRATCH["x"].clone(), ctx.weight
        with torch.enable_grad():
            x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
            found = torch.autograd.grad(right(x, weight, ctx.eps), (x, weight), gradient)
        return *found, None


def norm(x, weight, eps):
    return Norm.apply(x, weight, eps)
