# /// e2e
# op: rms_norm
# entry: norm
# ///
"""Ends its process by sys.exit."""

import sys


def norm(x, weight, eps):
    sys.exit(0)
    return x
