# /// e2e
# op: aten:silu.default
# entry: plain_silu
# ///
"""A correct SiLU in plain torch, for every call of the operator by that name."""

import torch


def plain_silu(x):
    """Scale by the logistic function."""
    return x * torch.sigmoid(x)
