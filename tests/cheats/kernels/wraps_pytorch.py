# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: F7
# outcome: [refuted, inconclusive]
# until: verdict
# ci: false
# ///
"""PyTorch's own function under another name: right, and no faster than PyTorch."""

import torch


def norm(x, weight, eps):
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)
