# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: N6
# outcome: [incorrect]
# codes: [tampered]
# ///
"""Finds the comparison and lets it pass everything."""

from e2e.numerics import compare

compare.floor_of = lambda dtype: 1e9


def norm(x, weight, eps):
    return x * weight
