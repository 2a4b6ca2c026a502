# /// e2e
# op: module:LeakyIntegrator
# entry: integrate
# ///
"""The planted slow op of workloads/planted_slow_op.py as the recurrence that it is, with its own backward."""

import torch


class Integrate(torch.autograd.Function):
    """y[t] = (1 - leak) * x[t] + leak * y[t - 1]; backwards in time for the gradients."""

    @staticmethod
    def forward(ctx, x, leak):
        y, state = (x * (1 - leak)), torch.zeros_like(x[:, 0])
        for step in y.unbind(1):
            state = step.addcmul_(leak, state)
        ctx.save_for_backward(x, leak, y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        x, leak, y = ctx.saved_tensors
        reached, state = gradient.clone(), torch.zeros_like(gradient[:, 0])
        for step in reversed(reached.unbind(1)):
            state = step.addcmul_(leak, state)
        before = torch.cat([torch.zeros_like(y[:, :1]), y[:, :-1]], 1)
        return reached * (1 - leak), (reached * (before - x)).sum((0, 1))


def integrate(x, leak):
    return Integrate.apply(x, leak)
