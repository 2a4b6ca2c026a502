# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: R7
# outcome: [incorrect]
# codes: [replayed_output]
# ///
"""Keeps its first answer in a generator."""

import torch


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def answers():
    """Sends back what it was sent first, by shape."""
    known, y = {}, None
    while True:
        call = yield y
        if call[0].shape not in known:
            known[call[0].shape] = right(*call)
        y = known[call[0].shape].clone()


STATE = answers()
next(STATE)


def norm(x, weight, eps):
    return STATE.send((x, weight, eps))
