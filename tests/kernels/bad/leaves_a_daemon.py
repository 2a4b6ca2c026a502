# /// e2e
# op: rms_norm
# entry: norm
# ///
"""Right, and leaves a process behind that has let go of everything."""

import os
import time

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
            time.sleep(3600)
        os._exit(0)
    os.wait()


leave()


def norm(x, weight, eps):
    return right(x, weight, eps)
