"""Elementwise activations: modules without state, each named for its kind; which function one is, a trial says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from e2e.ops._inputs import Draw, name_of
from e2e.ops._mistakes import without_last_column, without_last_row
from e2e.ops._sites import InModules, takes_one_tensor
from e2e.protocols import OpCall, Site

TRIED = "tried on values from -12 to 12"
_TOLERANCE = 1e-6
"""Constants are written to ten digits in some places; the nearest two functions, both forms of GELU, are 5e-4 apart."""


class Activation(InModules):
    """y = f(x), elementwise.

    Shapes:
        x (...) -> (...); same dtype as x.
    """

    tensor_names = ("x",)
    scalar_names: tuple[str, ...] = ()
    words: tuple[str, ...]
    """What modules of this kind have in their name."""

    def read(self, activation: Any) -> tuple[dict[str, Any], str | None]:
        """The site's scalars, and why it is no site after all."""
        raise NotImplementedError

    def reference(self, x: Tensor, *scalars: Any) -> Tensor:
        """Plain maths in the precision it is given."""
        raise NotImplementedError

    def find_sites(self, model: nn.Module) -> list[Site]:
        """Modules without parameters that take one tensor and are named for this activation."""
        return [
            Site(fqn, module, *self.read(module))
            for fqn, module in model.named_modules()
            if is_called(module, *self.words) and _is_bare(module) and takes_one_tensor(module)
        ]

    def allocate(self, x: Tensor, *scalars: Any) -> Tensor:
        """An uninitialised y, as elementwise code leaves it."""
        return torch.empty_like(x)

    def dims(self, call: OpCall) -> dict[str, int | str]:
        """`rows` (product of the leading dimensions), `hidden` (the last), `dtype`."""
        x = call.tensors[0]
        hidden = int(x.shape[-1])
        return {"rows": x.numel() // max(1, hidden), "hidden": hidden, "dtype": name_of(x.dtype)}

    def edge_calls(self, call: OpCall, seed: int) -> Iterable[tuple[str, OpCall]]:
        """Both tails, the bend between them, few rows, odd sizes, and rows with gaps between them."""
        x = call.tensors[0]
        hidden, draw = x.shape[-1], Draw(seed, x)

        def made(values: Tensor) -> OpCall:
            return OpCall((draw.made(values),), call.scalars)

        yield "random values", made(draw.normal(5, hidden) * 2)
        yield "one row", made(draw.normal(1, hidden))
        yield "near the bend", made(draw.normal(4, hidden) * 0.3)
        # approximations of one function differ where it is small: by parts in a hundred here, by far less elsewhere
        yield "the negative tail", made(-2.2 - 1.3 * draw.normal(4, hidden).sigmoid())
        yield "far out on both sides", made(draw.normal(4, hidden) * 6)
        yield "large, of both signs", made(draw.normal(3, hidden).sign() * 40 + draw.normal(3, hidden))
        yield "zeros", made(draw.normal(2, hidden) * 0)
        yield "an odd number of everything", made(draw.normal(3, 5, 61))
        yield "no rows", made(draw.normal(0, hidden))
        yield "half of wider rows", OpCall((draw.made(draw.normal(3, 2 * hidden)).chunk(2, -1)[1],), call.scalars)

    def mutants(self) -> Mapping[str, Callable[..., Any]]:
        """Wrong activations, one mistake each."""
        exact = self.reference

        def wrong(change: Callable[..., Tensor]) -> Callable[..., Any]:
            return lambda x, *scalars: change(x.double(), *scalars).to(x.dtype)

        return {
            "zeros": lambda x, *scalars: torch.zeros_like(x),
            "copy of the input": lambda x, *scalars: x.clone(),
            "relu instead": wrong(lambda x, *scalars: x.relu()),
            "tanh instead": wrong(lambda x, *scalars: x.tanh()),
            "sigmoid instead": wrong(lambda x, *scalars: x.sigmoid()),
            "applied twice": wrong(lambda x, *scalars: exact(exact(x, *scalars), *scalars)),
            "sign lost": wrong(lambda x, *scalars: exact(x.abs(), *scalars)),
            "negative side dropped": wrong(lambda x, *scalars: exact(x, *scalars).relu()),
            "twice as large": wrong(lambda x, *scalars: 2 * exact(x, *scalars)),
            "one column late": wrong(lambda x, *scalars: exact(x.roll(1, -1), *scalars)),
            "last column dropped": wrong(lambda x, *scalars: without_last_column(exact(x, *scalars))),
            "last row dropped": wrong(lambda x, *scalars: without_last_row(exact(x, *scalars))),
        }


def is_called(activation: Any, *words: str) -> bool:
    """Whether one of its classes, a function's own name, or the layer that Transformers marks it as has such a word."""
    names = [*(kind.__name__ for kind in type(activation).__mro__), getattr(activation, "__name__", "")]
    names.append(str(getattr(activation, "kernel_layer_name", None) or ""))
    return any(word in name.lower() for word in words for name in names)


def computes(activation: Callable[[Tensor], Tensor], maths: Callable[[Tensor], Tensor]) -> bool:
    """Whether it gives what the maths give, on values of either sign; False too where it cannot be tried here."""
    values = torch.linspace(-12, 12, 481, dtype=torch.float64)
    with torch.no_grad():
        try:
            found = activation(values)
        except (RuntimeError, TypeError, ValueError):  # made for one device or dtype, or for more than one tensor
            return False
        return bool(torch.allclose(found, maths(values), rtol=0, atol=_TOLERANCE))


def _is_bare(module: nn.Module) -> bool:
    return not any(True for _ in module.parameters()) and not any(True for _ in module.children())
