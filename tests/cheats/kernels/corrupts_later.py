# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: C7
# outcome: [incorrect]
# codes: [stale_output, model_error_exceeded]
# until: verdict
# ci: false
# ///
"""Right for its first calls; then one element is not."""

import itertools

import torch

CALLS = itertools.count()


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps):
    y = right(x, weight, eps)
    if next(CALLS) > 400:
        y[..., -1, 0] += 10
    return y
