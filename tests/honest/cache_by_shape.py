# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: A10
# ///
"""Keeps what it made for a shape: code, not answers."""

import torch

MADE = {}


def made_for(hidden):
    share = 1 / hidden

    def made(x, weight, eps):
        return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) * share + eps) * weight

    return made


def norm(x, weight, eps):
    if x.shape[-1] not in MADE:
        MADE[x.shape[-1]] = made_for(x.shape[-1])
    return MADE[x.shape[-1]](x, weight, eps)
