# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: H6
# outcome: [incorrect]
# codes: [work_outside_step]
# ///
"""A thread takes the processor whenever the kernel itself does not need it."""

import threading
import time

import torch

BUSY = []


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def spin():
    while True:
        while not BUSY:
            pass
        time.sleep(0.0001)


threading.Thread(target=spin, daemon=True).start()


def norm(x, weight, eps):
    BUSY.append(1)
    y = right(x, weight, eps)
    BUSY.clear()
    return y
