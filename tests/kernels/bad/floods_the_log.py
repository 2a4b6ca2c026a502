# /// e2e
# op: rms_norm
# entry: norm
# ///
"""Right, and prints a gigabyte."""

import os

import torch

LINE = b"x" * 1023 + b"\n"
_HAS_PRINTED = []


def norm(x, weight, eps):
    if not _HAS_PRINTED:
        _HAS_PRINTED.append(True)
        for place in range(1024):
            os.write(1 + place % 2, LINE * 1024)
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)
