# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: A10
# until: verdict
# ci: false
# ///
"""PyTorch's fused function, faster than the model's own."""

import torch


def norm(x, weight, eps):
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)
