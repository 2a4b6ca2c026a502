# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: C2
# outcome: [incorrect]
# codes: [op_error_exceeded]
# ///
"""Does rows in blocks of sixteen, and forgets what is left."""

import torch


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps):
    rows = x.reshape(-1, x.shape[-1])
    out = torch.zeros(rows.shape, dtype=x.dtype, device=x.device)
    whole = len(rows) // 16 * 16
    out[:whole] = right(rows[:whole], weight, eps)
    return out.reshape(x.shape)
