# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: F1
# outcome: [incorrect]
# codes: [nonfinite_output]
# device: cuda
# ///
"""The block that somebody just freed, as it is."""

import torch


def norm(x, weight, eps):
    del_me = torch.empty_like(x)
    del del_me
    return torch.empty_like(x)
