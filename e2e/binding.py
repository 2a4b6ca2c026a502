"""A candidate's callable as the three kinds of arm need it: direct, inside torch.compile, and in training."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
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


def sparing(kernel: Callable[..., Any], places: Collection[int]) -> Callable[..., Any]:
    """The kernel on copies of the arguments that it writes to: a compiler may count on an op's inputs staying."""
    if not places:
        return kernel

    def call(*args: Any) -> Any:
        return kernel(
            *(item.clone() if place in places and item is not None else item for place, item in enumerate(args))
        )

    return call


def trainable(op: Op, kernel: Callable[..., Any], *, borrowed: bool = False) -> Callable[..., Any]:
    """The kernel with its own backward, with the op's (`borrowed`), or with one that raises.

    Without this, an op that records no gradient trains silently: same loss, most parameters without a gradient,
    and a step that looks far faster.
    """
    own = getattr(kernel, "backward", None)
    saving: Callable[..., Any] = kernel.saving if own is not None else lambda *args: (kernel(*args), ())  # type: ignore[attr-defined]

    class Trained(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            output, saved = saving(*args)
            tensors = [item for item in args if isinstance(item, torch.Tensor)]
            ctx.save_for_backward(*tensors, *saved)
            ctx.count = len(tensors)
            ctx.call = [None if isinstance(item, torch.Tensor) else (item,) for item in args]
            return output

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            tensors, saved = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
            given = iter(tensors)
            call = [next(given) if item is None else item[0] for item in ctx.call]
            if borrowed:
                return _borrowed(op, call, gradients)
            if own is None:
                raise RuntimeError(NO_BACKWARD)
            count = len(op.tensor_names)
            found = own(gradients, call[:count], saved)
            return (*found, *(None for _ in call[count:]))

    function: Callable[..., Any] = Trained.apply
    return function


def _borrowed(op: Op, call: list[Any], gradients: Sequence[Any]) -> tuple[Any, ...]:
    """Gradients of the op's maths, in float32 at least: its rounding is not the kernel's to answer for."""
    with torch.enable_grad():
        wide = [_wider(item) if isinstance(item, torch.Tensor) else item for item in call]
        needed = [item for item in wide if isinstance(item, torch.Tensor) and item.requires_grad]
        outputs = outputs_of(op.reference(*wide))
        found = iter(torch.autograd.grad(outputs, needed, [_wider(item).detach() for item in gradients]))
    return tuple(
        next(found).to(mine.dtype) if isinstance(item, torch.Tensor) and item.requires_grad else None
        for mine, item in zip(call, wide, strict=True)
    )


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
