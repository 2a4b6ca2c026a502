"""The model one precision higher: what every comparison calls exact."""

from __future__ import annotations

import copy

import torch
from torch import nn


def one_higher(model: nn.Module, dtype: str) -> nn.Module:
    """A copy in float64 where the cell's dtype is float32, in float32 below.

    Grouped matmuls of experts know no float64; Transformers' plain loop over experts does.
    """
    exact: nn.Module = copy.deepcopy(model).to(torch.float64 if dtype == "float32" else torch.float32)
    if getattr(getattr(exact, "config", None), "_experts_implementation", None) not in (None, "eager"):
        exact.set_experts_implementation("eager")
    return exact
