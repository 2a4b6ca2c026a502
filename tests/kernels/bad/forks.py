# /// e2e
# op: rms_norm
# entry: norm
# ///
"""Right, and forks as fast as it can; bounded, and none of them does anything."""

import contextlib
import os
import time

import torch

MOST = 200
_HAS_FORKED = []


def fork():
    """Children in sessions of their own, each of them asleep."""
    with contextlib.suppress(OSError):
        for _ in range(MOST):
            if os.fork() == 0:
                os.setsid()
                os.closerange(0, 64)
                time.sleep(3600)
                os._exit(0)


def norm(x, weight, eps):
    if not _HAS_FORKED:
        _HAS_FORKED.append(True)
        fork()
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)
