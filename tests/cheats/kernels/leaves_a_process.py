# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: H6
# outcome: [incorrect]
# codes: [work_outside_step]
# ///
"""A process that has let go of everything takes a processor from whoever runs next."""

import os

import torch


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def leave():
    """Fork twice, in a session of its own: nobody's child."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 64)
            while True:
                pass
        os._exit(0)
    os.wait()


leave()


def norm(x, weight, eps):
    return right(x, weight, eps)
