"""A candidate's callable as the three kinds of arm need it: direct, inside torch.compile, and in training."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import fx
from torch import library as lib

from e2e.protocols import Op, output_count, outputs_of

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


def compiled_training(
    op: Op,
    kernel: Callable[..., Any],
    *,
    sha256: str,
    device: str,
    is_python: bool,
    borrowed: bool,
    writes: Collection[int] = (),
) -> tuple[Callable[..., Any], Any]:
    """The kernel as a compiled training step calls it, and the operator that tells its calls in a traced graph.

    Python is traced like any other code, as it would be for its user, with a mark before every call. All else is two
    ops that the compiler cannot look into, a forward and its backward.
    """
    if is_python and not borrowed and getattr(kernel, "backward", None) is None:
        mark = _define_mark(sha256)
        spared = differentiable(sparing(kernel, writes))

        def marked(*args: Any) -> Any:
            mark()
            return spared(*args)

        return marked, mark
    return _registered_pair(op, kernel, sha256=sha256, device=device, borrowed=borrowed, writes=writes)


def erase_marks(graph: fx.GraphModule) -> None:
    """Take the marks out of a traced graph, once they have been counted."""
    marks = [node for node in graph.graph.nodes if node.target in _MARKS.values()]
    for node in marks:
        graph.graph.erase_node(node)
    if marks:
        graph.recompile()


_MARKS: dict[str, Any] = {}
"""By the kernel's hash."""


def _define_mark(sha256: str) -> Any:
    """An op that does nothing, which a graph holds all the same until it is erased."""
    if sha256 not in _MARKS:
        name, own = f"mark_{sha256[:16]}", lib.Library("e2e_marks", "FRAGMENT")
        own.define(f"{name}() -> ()")
        own.impl(name, lambda: None, "CompositeExplicitAutograd")
        lib.register_fake(f"e2e_marks::{name}", lambda: None, lib=own)
        _KEPT.append(own)
        _MARKS[sha256] = fx.node.has_side_effect(getattr(torch.ops.e2e_marks, name).default)
    return _MARKS[sha256]


def _registered_pair(
    op: Op, kernel: Callable[..., Any], *, sha256: str, device: str, borrowed: bool, writes: Collection[int]
) -> tuple[Callable[..., Any], Any]:
    namespace, name = f"e2e_{sha256[:16]}", re.sub(r"\W", "_", op.name)
    forward, backward = f"{name}_forward", f"{name}_backward"
    count, outputs, key = len(op.tensor_names), output_count(op), device.partition(":")[0].upper()
    takes = [item.strip() for item in op.schema.partition("(")[2].rpartition(") ->")[0].split(",")]
    own = getattr(kernel, "backward", None)
    saved_like: Any = getattr(kernel, "saved_like", None) if own is not None else lambda *args: []
    if saved_like is None:
        raise RuntimeError("a kernel with a backward that prepares parameters or takes another layout has no such arm")
    saving = sparing(kernel.saving if own is not None else lambda *args: (kernel(*args), ()), writes)  # type: ignore[attr-defined]
    library = lib.Library(namespace, "FRAGMENT")
    _KEPT.append(library)

    def made(*args: Any) -> list[Any]:
        return [*outputs_of(op.allocate(*args)), *saved_like(*args)]

    def computed(*args: Any) -> list[Any]:
        found, saved = saving(*args)
        return [*outputs_of(found), *saved]

    def gradients(upstream: list[Any], tensors: list[Any], saved: list[Any], *scalars: Any) -> list[Any]:
        if own is not None:
            found = own(upstream, tensors, saved)
        elif borrowed:
            found = _borrowed(op, [*tensors, *scalars], upstream)
        else:
            raise RuntimeError(NO_BACKWARD)
        pairs = [(mine, item) for mine, item in zip(found, tensors, strict=False) if _is_real(item)]
        return [
            torch.zeros_like(item) if mine is None else _dense(mine.to(item.dtype), upstream) for mine, item in pairs
        ]

    def gradients_like(upstream: list[Any], tensors: list[Any], saved: list[Any], *scalars: Any) -> list[Any]:
        return [torch.empty(item.shape, dtype=item.dtype, device=item.device) for item in tensors if _is_real(item)]

    library.define(f"{forward}({', '.join(takes)}) -> Tensor[]")
    rest = "".join(f", {item}" for item in takes[count:])
    library.define(f"{backward}(Tensor[] upstream, Tensor?[] tensors, Tensor[] saved{rest}) -> Tensor[]")
    for function, real, fake in ((forward, computed, made), (backward, gradients, gradients_like)):
        library.impl(function, real, key)
        lib.register_fake(f"{namespace}::{function}", fake, lib=library)
    ops = getattr(torch.ops, namespace)
    first, second = getattr(ops, forward).default, getattr(ops, backward).default

    class Trained(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            found = first(*args)
            ctx.save_for_backward(*[item for item in args[:count] if item is not None], *found[outputs:])
            ctx.call = args
            return found[0] if outputs == 1 else tuple(found[:outputs])

        @staticmethod
        def backward(ctx: Any, *upstream: Any) -> Any:
            known, place, tensors = ctx.saved_tensors, 0, []
            for item in ctx.call[:count]:
                tensors.append(None if item is None else known[place])
                place += item is not None
            given, place, found = second([*upstream], tensors, [*known[place:]], *ctx.call[count:]), 0, []
            for item in tensors:
                is_real = item is not None and item.is_floating_point()
                found.append(given[place] if is_real else None)
                place += is_real
            return (*found, *[None for _ in ctx.call[count:]])

    call: Callable[..., Any] = Trained.apply
    return call, first


def _dense(gradient: Any, upstream: list[Any]) -> Any:
    """In memory of its own, as an op's outputs have to be."""
    shared = {item.untyped_storage().data_ptr() for item in upstream}
    dense = gradient.contiguous()
    return dense.clone() if dense.untyped_storage().data_ptr() in shared else dense


def _is_real(tensor: Any) -> bool:
    return tensor is not None and bool(tensor.is_floating_point())


def sparing(kernel: Callable[..., Any], places: Collection[int]) -> Callable[..., Any]:
    """The kernel on copies of the arguments that it writes to: a compiler may count on an op's inputs staying."""
    if not places:
        return kernel

    def call(*args: Any) -> Any:
        return kernel(
            *(item.clone() if place in places and item is not None else item for place, item in enumerate(args))
        )

    return call


def in_training(
    op: Op, kernel: Callable[..., Any], *, is_python: bool, borrowed: bool, writes: Collection[int] = ()
) -> Callable[..., Any]:
    """The kernel as eager training calls it: autograd sees through Python; all else is `trainable`.

    `writes`: places of the arguments that the kernel writes to; a backward needs them as they were.
    """
    if is_python and not borrowed and getattr(kernel, "backward", None) is None:
        return differentiable(sparing(kernel, writes))
    return trainable(op, kernel, borrowed=borrowed, writes=writes)


def trainable(
    op: Op, kernel: Callable[..., Any], *, borrowed: bool = False, writes: Collection[int] = ()
) -> Callable[..., Any]:
    """The kernel with its own backward, with the op's (`borrowed`), or with one that raises.

    Without this, an op that records no gradient trains silently: same loss, most parameters without a gradient,
    and a step that looks far faster.
    """
    own = getattr(kernel, "backward", None)
    forward: Callable[..., Any] = kernel.saving if own is not None else lambda *args: (kernel(*args), ())  # type: ignore[attr-defined]
    saving = sparing(forward, writes)

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
