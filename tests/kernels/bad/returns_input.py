# /// e2e
# op: rms_norm
# entry: norm
# ///
"""Hands its input back."""


def norm(x, weight, eps):
    return x
