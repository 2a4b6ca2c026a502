# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: C7
# outcome: [incorrect]
# codes: [stale_output]
# until: verdict
# ci: false
# ///
"""Right for its first calls, then it returns what it returned before."""

import torch

HONEST_CALLS = 60
_SEEN = {}


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def norm(x, weight, eps):
    calls, last = _SEEN.get(x.shape, (0, None))
    y = right(x, weight, eps) if calls < HONEST_CALLS else last.clone()
    _SEEN[x.shape] = (calls + 1, y)
    return y
