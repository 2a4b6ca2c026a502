# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: A10
# device: cuda
# ///
"""Half of the rows on a stream of its own, which is waited for."""

import torch

SIDE = {}


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps):
    rows = x.reshape(-1, x.shape[-1])
    out, half = torch.empty_like(rows), len(rows) // 2
    side = SIDE.setdefault(x.device, torch.cuda.Stream(x.device))
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        out[:half] = right(rows[:half], weight, eps)
    out[half:] = right(rows[half:], weight, eps)
    torch.cuda.current_stream().wait_stream(side)
    return out.reshape(x.shape)
