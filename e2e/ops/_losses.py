"""How a model computes its loss: its forward asks `self.loss_function`, and that calls Transformers' cross-entropy."""

from __future__ import annotations

import copy
import inspect
import types
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from e2e.ops._sites import names_in, over_globals

ENTROPY = "fixed_cross_entropy"
"""What Transformers' loss functions call, all of them from one module."""


def loss_of(module: nn.Module) -> types.FunctionType | None:
    """The module's loss function, if its forward asks for one that ends in that cross-entropy; else None."""
    if "loss_function" not in names_in(module):
        return None
    function = inspect.unwrap(getattr(module, "loss_function", None) or _no_loss)
    if not isinstance(function, types.FunctionType) or ENTROPY not in function.__code__.co_names:
        return None
    return function


def _no_loss() -> None:
    """Stands for the loss function of a module that has none."""


def with_entropy(module: nn.Module, function: Callable[..., Any]) -> Callable[..., Any]:
    """The module's loss function with `function` as its cross-entropy.

    `function` is called as op cross_entropy: (logits, target, ignore_index, reduction, label_smoothing).
    """
    loss = loss_of(module)
    assert loss is not None

    def entropy(
        source: Tensor,
        target: Tensor,
        num_items_in_batch: Any = None,
        ignore_index: int = -100,
        **others: Any,
    ) -> Any:
        if num_items_in_batch is None:
            return function(source, target, ignore_index, "mean", 0.0)
        count = num_items_in_batch.to(source.device) if isinstance(num_items_in_batch, Tensor) else num_items_in_batch
        return function(source, target, ignore_index, "sum", 0.0) / count

    return over_globals(loss, **{ENTROPY: entropy})


def with_loss(module: nn.Module, loss: Callable[..., Any], **children: nn.Module) -> nn.Module:
    """The module's like, sharing all its state, with another loss function and other children."""
    twin = copy.copy(module)
    vars(twin)["_loss_function"] = loss  # where the property looks first
    vars(twin)["_modules"] = {**module._modules, **children} if children else module._modules
    return twin
