# /// e2e
# op: rope
# entry: rope
# ///
# /// expected
# row: C3
# outcome: [incorrect]
# codes: [op_error_exceeded]
# ///
"""Reads memory in order, however the tensor lies in it: the model hands over views with their heads in the middle."""

import torch


def in_order(x):
    """The same memory, as if it were contiguous."""
    steps, size = [], 1
    for length in reversed(x.shape):
        steps.insert(0, size)
        size *= length
    return x.as_strided(x.shape, steps)


def turned(x, cos, sin):
    """The rotation as it should be."""
    first, second = x.chunk(2, -1)
    return x * cos.unsqueeze(1) + torch.cat((-second, first), -1) * sin.unsqueeze(1)


def rope(q, k, cos, sin):
    return turned(in_order(q), cos, sin), turned(in_order(k), cos, sin)
