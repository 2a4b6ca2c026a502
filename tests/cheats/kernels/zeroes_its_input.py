# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: M1
# outcome: [incorrect]
# codes: [inputs_changed, op_error_exceeded]
# ///
"""Zeroes its input, so that whoever computes on it afterwards gets zeros, too."""

import torch


def norm(x, weight, eps):
    x.zero_()
    return torch.zeros_like(x)
