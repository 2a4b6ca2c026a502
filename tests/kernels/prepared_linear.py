# /// e2e
# op: linear
# entry: linear
# prepare: turn
# prepared: [{turned: "inputs, outputs, dtype"}, {bias: "outputs, dtype"}]
# ///
"""A linear layer whose weight is turned round once, so that every call reads it along its rows."""

import torch


def turn(weight, bias):
    """The weight as (inputs, outputs), and a bias of zeros where there is none."""
    return weight.t().contiguous(), weight.new_zeros(weight.shape[0]) if bias is None else bias


def linear(x, turned, bias):
    """What `turn` gave stands in the place of weight and bias."""
    return torch.addmm(bias, x.reshape(-1, x.shape[-1]), turned).reshape(*x.shape[:-1], bias.shape[0])
