# /// e2e
# op: attention
# entry: attend
# layout: bshd
# ///
"""Attention over tensors with positions before heads, as many kernels want them."""

import torch


def attend(q, k, v, mask, scale, causal, softcap, window):
    """q (batch, positions, heads, channels), and so are k, v and the output."""
    if softcap is not None or window is not None or (causal and q.shape[1] != k.shape[1]):
        raise NotImplementedError
    group = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    scores = torch.einsum("bshd,bthd->bhst", q.float(), k.float()) * scale
    if causal:
        seen = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    weights = scores.softmax(-1).nan_to_num(0.0)
    return torch.einsum("bhst,bthd->bshd", weights, v.float()).to(q.dtype).contiguous()
