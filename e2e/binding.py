"""A candidate's callable as the three kinds of arm need it: direct, inside torch.compile, and in training."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import library as lib

from e2e.protocols import Op, outputs_of

NO_BACKWARD = "e2e: this kernel has no backward"


def registered(op: Op, kernel: Callable[..., Any], *, sha256: str, device: str) -> Any:
    """The kernel as an op registered with torch, opaque to the compiler but not a break in its graph.

    `define/impl` and not `custom_op`, whose wrapper costs several times more per call; no autograd formula,
    which would cost as much again even under no_grad. The name holds the kernel's hash, because a name can be
    defined only once in a process.
    """
    namespace = f"e2e_{sha256[:16]}"
    name = re.sub(r"\W", "_", op.name)
    own = lib.Library(namespace, "FRAGMENT")
    own.define(name + op.schema)
    own.impl(name, _plain(kernel), device.partition(":")[0].upper())  # a dispatch key has no device number
    lib.register_fake(f"{namespace}::{name}", op.allocate, lib=own)
    _KEPT.append(own)  # a library that is collected takes its op with it
    return getattr(getattr(torch.ops, namespace), name).default


_KEPT: list[lib.Library] = []


def trainable(op: Op, kernel: Callable[..., Any], backward: str | None) -> Callable[..., Any]:
    """The kernel with a backward, or with one that raises.

    Without this, an op that records no gradient trains silently: same loss, most parameters without a gradient,
    and a step that looks far faster.
    """

    class Trained(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            ctx.save_for_backward(*[item for item in args if isinstance(item, torch.Tensor)])
            ctx.call = [None if isinstance(item, torch.Tensor) else (item,) for item in args]
            return kernel(*args)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            if backward != "reference":
                raise RuntimeError(NO_BACKWARD)
            # in float32 at least: the rounding of a borrowed backward is not the kernel's to answer for
            with torch.enable_grad():
                saved = iter([_wider(tensor) for tensor in ctx.saved_tensors])
                call = [next(saved) if item is None else item[0] for item in ctx.call]
                needed = [item for item in call if isinstance(item, torch.Tensor) and item.requires_grad]
                outputs = outputs_of(op.reference(*call))
                found = iter(torch.autograd.grad(outputs, needed, [_wider(item).detach() for item in gradients]))
            own = iter(ctx.saved_tensors)
            return tuple(_gradient(item, next(own), found) if _is_tensor(item) else None for item in call)

    function: Callable[..., Any] = Trained.apply
    return function


def differentiable(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A Python kernel as it is, refused where its output forgot that its inputs need a gradient."""

    def checked(*args: Any) -> Any:
        output = kernel(*args)
        needed = any(isinstance(item, torch.Tensor) and item.requires_grad for item in args)
        known = all(item.requires_grad for item in outputs_of(output))
        if needed and torch.is_grad_enabled() and not known:
            raise RuntimeError(NO_BACKWARD)
        return output

    return checked


def _gradient(item: torch.Tensor, own: torch.Tensor, found: Iterator[torch.Tensor]) -> torch.Tensor | None:
    return next(found).to(own.dtype) if item.requires_grad else None


def _is_tensor(item: Any) -> bool:
    return isinstance(item, torch.Tensor)


def _wider(tensor: Any) -> Any:
    """Detached, in float32 at least, and asking for a gradient; whole numbers have none."""
    detached = tensor.detach()
    if not detached.is_floating_point():
        return detached
    wide = detached if detached.dtype == torch.float64 else detached.float()
    return wide.detach().requires_grad_()


def _plain(kernel: Callable[..., Any]) -> Callable[..., Any]:
    def implementation(*args: Any) -> Any:
        return kernel(*args)

    return implementation
