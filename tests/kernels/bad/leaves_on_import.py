# /// e2e
# op: rms_norm
# entry: norm
# ///
"""Ends its process while it is imported."""

import os

os._exit(0)


def norm(x, weight, eps):
    return x
