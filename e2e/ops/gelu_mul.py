"""GeGLU's product, by tanh: (gate, up) -> gelu(gate) * up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from e2e.ops._activation import TRIED, computes, is_called
from e2e.ops._gated import Gated
from e2e.ops.gelu import exact_gelu, tanh_gelu


class GeluMul(Gated):
    """y = gate / 2 (1 + tanh(sqrt(2 / pi) (gate + 0.044715 gate^3))) * up, elementwise.

    Shapes:
        gate, up (..., F) -> (..., F); one dtype.

    Source:
        Shazeer 2020, arXiv:2002.05202; GemmaMLP and T5DenseGatedActDense in transformers.
    """

    name = "gelu_mul"

    def __init__(self) -> None:
        self.alternatives: Mapping[str, Callable[..., Any]] = {"F.gelu": _torch_gelu_mul}

    def is_kin(self, activation: Any) -> bool:
        """GELU by whatever name."""
        return is_called(activation, "gelu")

    def problem_of(self, activation: Any) -> str | None:
        """Only the approximation by tanh is this op's."""
        if computes(activation, tanh_gelu):
            return None
        if computes(activation, exact_gelu):
            return "its activation is the exact GELU; gelu_mul is the approximation by tanh"
        return f"{TRIED}, its activation is not GELU by tanh"

    def act(self, gate: Tensor) -> Tensor:
        """GELU by tanh."""
        return tanh_gelu(gate)


def _torch_gelu_mul(gate: Tensor, up: Tensor) -> Tensor:
    return nn.functional.gelu(gate, approximate="tanh") * up


PLUGIN = GeluMul()
