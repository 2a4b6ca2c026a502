# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: R6
# outcome: [incorrect]
# codes: [replayed_output]
# ///
"""As a captured graph whose inputs nobody copies: computes every time, on the first input of that shape."""

import torch

INPUTS = {}


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps):
    first = INPUTS.setdefault(x.shape, (x.clone(), weight.clone()))
    return right(*first, eps)
