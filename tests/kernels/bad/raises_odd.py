# /// e2e
# op: rms_norm
# entry: norm
# ///
"""Raises what no one expects."""


class Odd(BaseException):
    """Not an Exception."""


def norm(x, weight, eps):
    raise Odd("surprise")
