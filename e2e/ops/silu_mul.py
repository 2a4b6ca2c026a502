"""SwiGLU's product: (gate, up) -> silu(gate) * up."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from e2e.ops._gated import Gated


class SiluMul(Gated):
    """y = gate * sigmoid(gate) * up, elementwise.

    Shapes:
        gate, up (..., F) -> (..., F); one dtype.

    Source:
        Shazeer 2020, arXiv:2002.05202; LlamaMLP in transformers.
    """

    name = "silu_mul"

    def is_kin(self, activation: Any) -> bool:
        """SiLU by whatever name."""
        return isinstance(activation, nn.SiLU) or "silu" in type(activation).__name__.lower()

    def problem_of(self, activation: Any) -> str | None:
        """There is one SiLU only."""
        return None

    def act(self, gate: Tensor) -> Tensor:
        """SiLU."""
        return gate * gate.sigmoid()


PLUGIN = SiluMul()
