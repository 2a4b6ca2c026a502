# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: T7
# outcome: [incorrect]
# codes: [work_outside_step]
# ///
"""A thread looks for the inputs of steps to come, while nothing is timed, and computes on them."""

import gc
import threading

import torch

KNOWN = {}


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def look():
    while True:
        for item in gc.get_objects():
            if type(item) is torch.Tensor and item.dtype == torch.long:
                KNOWN[id(item)] = item.float().mean()


threading.Thread(target=look, daemon=True).start()


def norm(x, weight, eps):
    return right(x, weight, eps)
