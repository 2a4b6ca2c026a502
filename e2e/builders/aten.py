"""Functions that are called as ATen calls an operator, as that operator or as the op that means the same here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from e2e.builders._calls import bind_failed, entry_for
from e2e.builders._import import attribute, candidate_module, parsed
from e2e.protocols import BuildTarget, Built, Op
from e2e.schema.kernel import Kernel


@runtime_checkable
class AnyOperator(Protocol):
    """An op that is an operator of ATen."""

    def spread(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that is called as the operator is, as one of the op's call."""
        ...


_SUFFIX = "_kernel_impl"
_Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
CALLS: Mapping[str, _Wrap] = {
    "rms_norm": lambda own: lambda x, weight, eps: own(x, [x.shape[-1]], weight, eps),
    "layer_norm": lambda own: lambda x, weight, bias, eps: own(x, [x.shape[-1]], weight, bias, eps),
    "native_layer_norm": lambda own: lambda x, weight, bias, eps: own(x, [x.shape[-1]], weight, bias, eps)[0],
    "silu": lambda own: own,
    "gelu": lambda own: lambda x, approximate: own(x, approximate="tanh" if approximate else "none"),
    "softmax": lambda own: lambda x, dim: own(x, dim),
    "_softmax": lambda own: lambda x, dim: own(x, dim, False),
    "linear": lambda own: own,
    "embedding": lambda own: lambda ids, weight: own(weight, ids),
}
"""Our op's call from the operator's, by the operator's name.

Source:
    `native_functions.yaml` of PyTorch.
"""


class AtenBuilder:
    """Takes `OPERATOR__OVERLOAD_kernel_impl` from a file."""

    def build(self, kernel: Kernel, target: BuildTarget) -> Built:
        """See `parsed`: nothing is compiled."""
        return parsed(kernel, target, builder="aten")

    def bind(self, built: Built, op: Op, dtype: str) -> Callable[..., Any]:
        """The function, with the op's arguments put where the operator has them.

        Raises:
            CandidateError: `bind_failed`: its name is no operator that is known here.
        """
        entry = entry_for(built, dtype)
        if isinstance(op, AnyOperator):
            return op.spread(attribute(candidate_module(built), entry, built))
        name = entry.removesuffix(_SUFFIX)
        operator = next((known for known in CALLS if name == known or name.startswith(f"{known}__")), None)
        if operator is None:
            raise bind_failed(built, f"entry: {entry!r} is no OPERATOR{_SUFFIX} of: {', '.join(CALLS)}")
        return CALLS[operator](attribute(candidate_module(built), entry, built))


PLUGIN = AtenBuilder()
