# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: N4
# outcome: [incorrect]
# codes: [tampered]
# ///
"""Nobody's dropout drops anything."""

import torch


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


torch.nn.functional.dropout = lambda x, *args, **named: x


def norm(x, weight, eps):
    return right(x, weight, eps)
