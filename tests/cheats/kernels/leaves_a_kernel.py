# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: H5
# outcome: [refuted, inconclusive]
# until: verdict
# device: cuda
# ///
"""Leaves a kernel that spins on a stream of its own while others run."""

import torch

SIDE = {}


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps):
    side = SIDE.setdefault(x.device, torch.cuda.Stream(x.device))
    with torch.cuda.stream(side):
        torch.cuda._sleep(5_000_000)
    return right(x, weight, eps)
