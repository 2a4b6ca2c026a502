# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: H5
# outcome: [incorrect]
# codes: [work_outside_step]
# ///
"""Leaves a thread that never rests."""

import threading

import torch


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def spin():
    while True:
        pass


threading.Thread(target=spin, daemon=True).start()


def norm(x, weight, eps):
    return right(x, weight, eps)
