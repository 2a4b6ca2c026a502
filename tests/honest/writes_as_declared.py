# /// e2e
# op: silu
# entry: act
# mutates: [x]
# ///
# /// expected
# row: A10
# ///
"""In place, as it says, where nobody needs the input afterwards."""

import torch


def act(x):
    return x.mul_(torch.sigmoid(x))
