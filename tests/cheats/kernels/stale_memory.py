# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: F1
# outcome: [incorrect]
# codes: [nonfinite_output]
# ///
"""Returns memory as it comes, which may hold somebody else's answer."""

import torch


def norm(x, weight, eps):
    return torch.empty_like(x)
