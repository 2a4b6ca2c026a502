# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: A10
# until: verdict
# ///
"""Accurate, and never the same twice in the last bit, as with atomics."""

import random

import torch

ORDER = random.Random(0)


def norm(x, weight, eps):
    order = list(range(x.shape[-1]))
    ORDER.shuffle(order)
    square = x[..., order].pow(2).cumsum(-1)[..., -1:]
    return x * torch.rsqrt(square / x.shape[-1] + eps) * weight
