# /// e2e
# op: linear
# entry: linear
# precision: int8
# constraints: ["outputs % 8 == 0"]
# ///
"""Declares eight bits, and leaves every eighth output out: an error that no rounding makes."""

import torch


def linear(x, weight, bias):
    """Exact where it is not zero."""
    y = torch.nn.functional.linear(x, weight, bias)
    y[..., ::8] = 0
    return y
