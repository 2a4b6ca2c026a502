# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: H2
# outcome: [incorrect]
# codes: [tampered]
# ///
"""There is another torch.nn.functional for whoever imports it from now on."""

import sys
import types

import torch


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


sys.modules["torch.nn.functional"] = types.ModuleType("torch.nn.functional")


def norm(x, weight, eps):
    return right(x, weight, eps)
