# /// e2e
# op: rms_norm
# entry: plain_norm
# dtypes: [float32]
# ///
"""A correct rms_norm in plain torch."""

import torch


def plain_norm(x, weight, eps):
    """Scale each row to unit root-mean-square, then by `weight`."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight
