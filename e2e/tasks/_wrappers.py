"""What people put around a model or its modules: what is taken off, and what a workload cannot have."""

from __future__ import annotations

from torch import nn

from e2e.errors import UsageError
from e2e.patch import copy_sharing_weights

_UNCOPYABLE = (AssertionError, AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError)
"""What copying raises, by what it meets: locks, process groups, tensors with a history, wrappers that refuse."""


def uncompiled(model: nn.Module, fqn: str = "") -> tuple[nn.Module, list[str]]:
    """The model without `torch.compile`, around it or inside, and the names of the modules that had it.

    Arms say how they are compiled: one that is called eager has to be.
    """
    inner = model._modules.get("_orig_mod")
    found = [fqn] if inner is not None or model._compiled_call_impl is not None else []
    model = inner if inner is not None else model
    model._compiled_call_impl = None
    for name, child in model._modules.items():
        if child is not None:
            model._modules[name], others = uncompiled(child, f"{fqn}.{name}".lstrip("."))
            found += others
    return model, found


def need_bare(model: nn.Module, source: str) -> None:
    """Refuse a model that no arm can be a whole copy of, or that is hidden in a wrapper.

    Raises:
        UsageError: it is, with `source`, the field that gave it.
    """
    kind = type(model).__name__
    hint = "give the model as it is before that; a loop of several processes is `task: command`"
    if not hasattr(model, "config") and isinstance(getattr(model, "module", None), nn.Module):
        raise UsageError(f"{source} gave a {kind} around the model, and a workload's step runs in one process: {hint}")
    if hung := [name for name, item in model.named_parameters() if item._backward_hooks]:
        raise UsageError(f"{source} left a hook on the parameter {hung[0]}, which no arm's copy would have: {hint}")
    try:
        copy_sharing_weights(model)
    except _UNCOPYABLE as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        message = f"{source} gave a {kind} that cannot be copied, and every arm is a copy over the same weights ({why})"
        raise UsageError(f"{message}: {hint}") from error
