# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: F6
# outcome: [incorrect]
# codes: [wrong_output_layout, op_error_exceeded]
# ///
"""Hands its input back."""


def norm(x, weight, eps):
    return x
