# /// e2e
# op: rms_norm
# entry: norm
# ///
"""Right, and closes every file that its process has open, the channel to the parent among them."""

import os

import torch


def norm(x, weight, eps):
    os.closerange(0, 4096)
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)
