# /// e2e
# op: rms_norm
# entry: norm
# ///
# /// expected
# row: T3
# outcome: [incorrect]
# codes: [wrong_output_layout]
# ///
"""Returns a tensor of a class of its own, which computes when somebody looks."""

import torch


def right(x, weight, eps):
    """The norm as it should be."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


class Lazy(torch.Tensor):
    """Knows its call, not its values."""

    call = None

    @classmethod
    def __torch_function__(cls, function, kinds, args=(), named=None):
        args = [right(*item.call) if isinstance(item, Lazy) and item.call else item for item in args]
        return super().__torch_function__(function, kinds, args, named or {})


def norm(x, weight, eps):
    lazy = torch.empty_like(x).as_subclass(Lazy)
    lazy.call = (x, weight, eps)
    return lazy
