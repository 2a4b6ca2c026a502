"""A kernel that takes an op's tensors in another order of dimensions: as views, so that nothing is copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from e2e.protocols import OUT, Op, OpCall, Swaps, outputs_of


class InLayout:
    """The op as a kernel of that layout sees it: what builders ask of an op, in swapped dimensions."""

    def __init__(self, op: Op, swaps: Swaps) -> None:
        self._op, self._swaps = op, swaps
        self.name, self.schema = op.name, op.schema
        self.tensor_names, self.scalar_names = op.tensor_names, op.scalar_names

    def allocate(self, *call: Any) -> Any:
        """Uninitialised outputs of one call, which lie in memory as the op's own do."""
        return self.outputs(self._op.allocate(*self.call(call)))

    def dims(self, call: OpCall) -> dict[str, int | str]:
        """The op's named dimensions, whatever their order."""
        return self._op.dims(OpCall(self.tensors(call.tensors), call.scalars))

    def call(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """A call from one layout to the other: swapping is its own inverse."""
        count = len(self.tensor_names)
        return (*self.tensors(args[:count]), *args[count:])

    def tensors(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """A call's tensors, or their gradients, from one layout to the other."""
        return tuple(self._swapped(name, item) for name, item in zip(self.tensor_names, tensors, strict=True))

    def outputs(self, value: Any) -> Any:
        """What a call returns, from one layout to the other."""
        if not isinstance(value, tuple | list):
            return self._swapped(OUT, value)
        return tuple(self._swapped(OUT, item) for item in value)

    def _swapped(self, name: str, tensor: Any) -> Any:
        pair = self._swaps.get(name)
        return tensor if pair is None or tensor is None else tensor.transpose(*pair)


class Relaid:
    """A kernel bound over `InLayout`, as a call of the op itself."""

    def __init__(self, view: InLayout, kernel: Callable[..., Any]) -> None:
        self._view, self._kernel = view, kernel
        own = getattr(kernel, "backward", None)
        self.backward = None if own is None else self._backward(own)
        """Takes gradients of the outputs, the forward's tensors and what it saved; None where there is none."""

    def __call__(self, *args: Any) -> Any:
        return self._view.outputs(self._kernel(*self._view.call(args)))

    def saving(self, *args: Any) -> tuple[Any, tuple[Any, ...]]:
        """What the op returns, and what the backward wants to see again."""
        output, saved = self._kernel.saving(*self._view.call(args))  # type: ignore[attr-defined]
        return self._view.outputs(output), saved

    def _backward(self, own: Callable[..., Any]) -> Callable[..., Any]:
        def backward(gradients: Sequence[Any], tensors: Sequence[Any], saved: Sequence[Any]) -> tuple[Any, ...]:
            mine = outputs_of(self._view.outputs(tuple(gradients)))
            return self._view.tensors(own(mine, self._view.tensors(tensors), saved))

        return backward
