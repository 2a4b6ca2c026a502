"""Gaussian error linear unit, exact or by tanh: (x, approximate) -> y."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from e2e.ops._activation import TRIED, Activation, computes
from e2e.ops._inputs import Draw
from e2e.protocols import OpCall


class Gelu(Activation):
    """y = x Phi(x); `approximate`: y = x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), elementwise.

    Phi is the distribution function of the standard normal. Both forms differ by 5e-4 at most. Code that works in 16
    bits step by step, as `gelu_new` does, errs by more than that: against such a baseline the form of a kernel does
    not show, and so it is no mutant.

    Shapes:
        x (...) -> (...); same dtype as x.

    Source:
        Hendrycks and Gimpel 2016, arXiv:1606.08415; torch.nn.functional.gelu.
    """

    name = "gelu"
    scalar_names = ("approximate",)
    schema = "(Tensor x, bool approximate) -> Tensor"
    words = ("gelu",)

    def __init__(self) -> None:
        self.alternatives: Mapping[str, Callable[..., Any]] = {"F.gelu": _torch_gelu}

    def read(self, activation: Any) -> tuple[dict[str, Any], str | None]:
        """Which form it is."""
        for approximate, maths in ((False, exact_gelu), (True, tanh_gelu)):
            if computes(activation, maths):
                return {"approximate": approximate}, None
        return {}, f"{TRIED}, it is neither form of GELU"

    def reference(self, x: Tensor, approximate: bool) -> Tensor:
        """Either form, without the cancellation that 1 + erf or 1 + tanh has on the negative side."""
        return tanh_gelu(x) if approximate else exact_gelu(x)

    def example(self, dtype: str, device: str, seed: int) -> OpCall:
        """What a projection leaves."""
        draw = Draw.of(dtype, device, seed)
        return OpCall((draw.made(draw.normal(4, 64, 1024) * 2),), (False,))

    def variants(self, dtype: str, device: str, seed: int) -> Iterable[tuple[str, OpCall]]:
        """The other form; at a site there is one of them."""
        example = self.example(dtype, device, seed)
        yield "by tanh", OpCall(example.tensors, (True,))
        # where the two forms differ most
        draw = Draw.of(dtype, device, seed)
        yield "by tanh, around 2", OpCall((draw.made(draw.normal(8, 64) * 0.3 - 2.0),), (True,))

    def mutants(self) -> Mapping[str, Callable[..., Any]]:
        """Those of any activation, and a term left out."""
        return {
            **super().mutants(),
            "cubic term left out": lambda x, approximate: _without_cubic(x.double()).to(x.dtype),
            "silu instead": lambda x, approximate: (x.double() * x.double().sigmoid()).to(x.dtype),
        }


def exact_gelu(x: Tensor) -> Tensor:
    """The exact form: x Phi(x)."""
    return x * torch.special.ndtr(x)


def tanh_gelu(x: Tensor) -> Tensor:
    """The approximation: x / 2 (1 + tanh(u)), which is x sigmoid(2 u)."""
    return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x.pow(3)))


def _without_cubic(x: Tensor) -> Tensor:
    return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * x)


def _torch_gelu(x: Tensor, approximate: bool) -> Tensor:
    return torch.nn.functional.gelu(x, approximate="tanh" if approximate else "none")


PLUGIN = Gelu()
