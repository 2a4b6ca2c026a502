"""A candidate's callable as the three kinds of arm need it: direct, inside torch.compile, and in training."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import library as lib

from e2e.protocols import Op

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
    lib.register_fake(f"{namespace}::{name}", op.fake, lib=own)
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
            ctx.scalars = [item for item in args if not isinstance(item, torch.Tensor)]
            return kernel(*args)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            if backward != "reference":
                raise RuntimeError(NO_BACKWARD)
            # in float32 at least: the rounding of a borrowed backward is not the kernel's to answer for
            with torch.enable_grad():
                tensors = [_wider(tensor).requires_grad_() for tensor in ctx.saved_tensors]
                output = op.reference(*tensors, *ctx.scalars)
                found = torch.autograd.grad(output, tensors, [_wider(gradient) for gradient in gradients])
            narrow = [value.to(own.dtype) for value, own in zip(found, ctx.saved_tensors, strict=True)]
            return (*narrow, *(None for _ in ctx.scalars))

    function: Callable[..., Any] = Trained.apply
    return function


def differentiable(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A Python kernel as it is, refused where its output forgot that its inputs need a gradient."""

    def checked(*args: Any) -> Any:
        output = kernel(*args)
        needed = any(isinstance(item, torch.Tensor) and item.requires_grad for item in args)
        if needed and torch.is_grad_enabled() and not output.requires_grad:
            raise RuntimeError(NO_BACKWARD)
        return output

    return checked


def _wider(tensor: Any) -> Any:
    detached = tensor.detach()
    return detached if detached.dtype == torch.float64 else detached.float()


def _plain(kernel: Callable[..., Any]) -> Callable[..., Any]:
    def implementation(*args: Any) -> Any:
        return kernel(*args)

    return implementation
