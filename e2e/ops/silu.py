"""Sigmoid linear unit, also called swish: (x) -> y."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from e2e.ops._activation import TRIED, Activation, computes
from e2e.ops._inputs import Draw
from e2e.protocols import OpCall


class Silu(Activation):
    """y = x sigmoid(x), elementwise.

    Shapes:
        x (...) -> (...); same dtype as x.

    Source:
        Hendrycks and Gimpel 2016, arXiv:1606.08415; torch.nn.functional.silu.
    """

    name = "silu"
    schema = "(Tensor x) -> Tensor"
    words = ("silu", "swish")
    alternatives: Mapping[str, Callable[..., Any]] = {}
    """What models call is torch's own already."""

    def read(self, activation: Any) -> tuple[dict[str, Any], str | None]:
        """There is one form only."""
        return {}, None if computes(activation, self.reference) else f"{TRIED}, it is not SiLU"

    def reference(self, x: Tensor) -> Tensor:
        """Plain maths in the precision it is given."""
        return x * x.sigmoid()

    def example(self, dtype: str, device: str, seed: int) -> OpCall:
        """What a projection leaves."""
        draw = Draw.of(dtype, device, seed)
        return OpCall((draw.made(draw.normal(4, 64, 1024) * 2),), ())

    def mutants(self) -> Mapping[str, Callable[..., Any]]:
        """Those of any activation, and a wrong slope."""
        return {
            **super().mutants(),
            "quick gelu instead": lambda x: (x.double() * (1.702 * x.double()).sigmoid()).to(x.dtype),
        }


PLUGIN = Silu()
