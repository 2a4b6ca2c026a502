# /// e2e
# op: rms_norm
# entry: norm
# ///
"""Right for short texts; ends its process with long ones."""

import os

import torch


def norm(x, weight, eps):
    if x.shape[-2] > 16:
        os.abort()
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)
