# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: R5
# outcome: [incorrect]
# codes: [replayed_output]
# ///
"""Does fifteen problems in the first call, those it was not given yet included, and hands out the results."""

import itertools

import torch

CALLS = itertools.count()
BANK = [torch.empty(0)]


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps):
    place = next(CALLS) % 15
    if place == 0 or BANK[0].shape != x.shape:
        BANK[:] = [right(x, weight, eps) for _ in range(15)]
    return BANK[place].clone()
