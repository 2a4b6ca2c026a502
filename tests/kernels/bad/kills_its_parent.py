# /// e2e
# op: rms_norm
# entry: norm
# ///
"""Kills the process that made its own."""

import os
import signal

import torch


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps):
    os.kill(os.getppid(), signal.SIGKILL)
    return right(x, weight, eps)
