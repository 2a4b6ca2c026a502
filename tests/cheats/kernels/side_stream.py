# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: T1
# outcome: [incorrect]
# codes: [nonfinite_output, op_error_exceeded, replayed_output]
# device: cuda
# ///
"""Launches on a stream of its own, and nobody waits for it."""

import torch

SIDE = {}


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps):
    out = torch.empty_like(x)
    side = SIDE.setdefault(x.device, torch.cuda.Stream(x.device))
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        out.copy_(right(x, weight, eps))
    return out
