# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: N4
# outcome: [incorrect]
# codes: [tampered]
# ///
"""Puts a function of its own in the place of one of torch's operators, below every name."""

import torch
from torch import library as lib


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


LIBRARY = lib.Library("aten", "IMPL")
LIBRARY.impl("hardswish", lambda x: x, "CPU")


def norm(x, weight, eps):
    return right(x, weight, eps)
