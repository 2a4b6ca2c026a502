# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: N4
# outcome: [incorrect]
# codes: [tampered]
# ///
"""Every Llama's feed-forward part does nothing, the baseline's too."""

import torch
from transformers.models.llama import modeling_llama


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


modeling_llama.LlamaMLP.forward = lambda self, x: x


def norm(x, weight, eps):
    return right(x, weight, eps)
