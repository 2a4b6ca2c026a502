# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: H4
# outcome: [incorrect]
# codes: [op_error_exceeded]
# ///
"""Is not what its source shows."""

import base64

exec(base64.b64decode(b"ZGVmIG5vcm0oeCwgd2VpZ2h0LCBlcHMpOgogICAgcmV0dXJuIHggKiB3ZWlnaHQK"))


def norm(x, weight, eps, hidden=norm):  # noqa: F821
    return hidden(x, weight, eps)
