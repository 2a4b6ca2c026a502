# /// e2e
# op: rope
# entry: rotate
# layout: interleaved
# ///
"""Rotary embedding of neighbouring channels, as Cohere's and GPT-J's models have it."""

import torch


def rotate(q, k, cos, sin):
    """Turn q and k; every pair's angle stands at both its channels."""
    return turned(q, cos, sin), turned(k, cos, sin)


def turned(x, cos, sin):
    """The channels that turn as complex numbers, then the rest."""
    size = cos.shape[-1]
    pairs = torch.view_as_complex(x[..., :size].float().unflatten(-1, (-1, 2)).contiguous())
    angles = torch.complex(cos[..., ::2].float(), sin[..., ::2].float()).unsqueeze(1)
    made = torch.view_as_real(pairs * angles).flatten(-2).to(x.dtype)
    out = torch.empty_like(x)
    out[..., :size], out[..., size:] = made, x[..., size:]
    return out
