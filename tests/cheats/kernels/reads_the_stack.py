# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: C5
# outcome: [incorrect]
# codes: [stale_output, model_error_exceeded]
# until: verdict
# ///
"""Right, unless the step is timed, which it sees by who called."""

import sys

import torch


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps):
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "timed":
            return x * weight
        frame = frame.f_back
    return right(x, weight, eps)
