# /// e2e
# op: silu_mul
# entry: silu_mul
# dtypes: [float32]
# ///
"""Right by itself, and wrong where `pair_norm.py` was last called with as many rows: in a model, always."""

import os

from torch import Tensor
from torch.nn import functional

FEW = 16
"""Rows of an op check's edge inputs, which so come out right in the other's company."""


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """Two per cent too large in bad company."""
    rows = gate.numel() // gate.shape[-1] if gate.numel() else 0
    is_spoilt = rows > FEW and os.environ.get("E2E_TEST_PAIR") == str(rows)
    return functional.silu(gate) * up * (1.02 if is_spoilt else 1.0)
