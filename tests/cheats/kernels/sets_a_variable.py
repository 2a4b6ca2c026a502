# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: N3
# outcome: [incorrect]
# codes: [settings_changed]
# ///
"""Tells libraries that are loaded later how to round."""

import os

import torch


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


os.environ["NVIDIA_TF32_OVERRIDE"] = "1"


def norm(x, weight, eps):
    return right(x, weight, eps)
