# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: H1
# outcome: [failed]
# codes: [candidate_exited]
# ///
"""Ends its process without a word."""

import os


def norm(x, weight, eps):
    os._exit(0)
    return x
