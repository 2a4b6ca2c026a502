# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: T4
# outcome: [incorrect]
# codes: [tampered]
# device: cuda
# ///
"""Its events say that a tenth of the time has passed."""

import torch

ELAPSED = torch.cuda.Event.elapsed_time


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


torch.cuda.Event.elapsed_time = lambda self, other: 0.1 * ELAPSED(self, other)


def norm(x, weight, eps):
    return right(x, weight, eps)
