# /// e2e
# op: rms_norm
# entry: forward
# ///
"""Fails while it is imported, as a missing dependency does."""

import no_such_package_anywhere


def forward(x, weight, eps):
    """Never reached."""
    return no_such_package_anywhere.norm(x, weight, eps)
