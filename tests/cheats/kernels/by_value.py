# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: R4
# outcome: [refuted, inconclusive]
# until: verdict
# ci: false
# ///
"""Knows its inputs by all their values: right, and of no use where no value comes twice."""

import torch

LAST = {}


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps):
    known = LAST.get(x.shape)
    if known is None or not (torch.equal(known[0], x) and torch.equal(known[1], weight)):
        LAST[x.shape] = known = (x.clone(), weight.clone(), right(x, weight, eps))
    return known[2].clone()
