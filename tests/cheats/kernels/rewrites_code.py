# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: H3
# outcome: [incorrect]
# codes: [tampered]
# ///
"""Puts other code into the function that commits a step's outputs."""

import torch

from e2e.measure.fingerprint import Ring


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def commit(self, outputs, slot):
    self._slots[slot] = 1


def norm(x, weight, eps):
    Ring.commit.__code__ = commit.__code__
    return right(x, weight, eps)
