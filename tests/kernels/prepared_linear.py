# /// e2e
# op: linear
# entry: linear
# prepare: widen
# prepared: [{wide: "inputs, outputs, float64"}, {start: "outputs, float64"}]
# ///
"""A linear layer that sums in double precision; its weight is widened and turned round once."""

import torch


def widen(weight, bias):
    """The weight as (inputs, outputs), and zeros where there is no bias."""
    start = weight.new_zeros(weight.shape[0]) if bias is None else bias
    return weight.double().t().contiguous(), start.double()


def linear(x, wide, start):
    """What `widen` gave stands in the place of weight and bias."""
    rows = x.reshape(-1, x.shape[-1]).double()
    return torch.addmm(start, rows, wide).to(x.dtype).reshape(*x.shape[:-1], start.shape[0])
