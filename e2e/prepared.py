"""Kernels that prepare a site's parameters once, to repack a weight say, and are handed what that gave instead."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from e2e.errors import CandidateError
from e2e.measure.fingerprint import checksum
from e2e.protocols import Op, OpCall, parameters_of
from e2e.units import Seconds

Tensors = tuple[Any, ...]


class InPrepared:
    """The op as a kernel sees it that was handed prepared tensors in the place of the site's parameters.

    What builders ask of an op, it answers from the parameters that the tensors were made of.
    """

    def __init__(self, op: Op, names: Sequence[str]) -> None:
        """`names`: what stands in the parameters' place, where the first of them is; none: they keep their own."""
        parameters = parameters_of(op)
        names = names or parameters
        self._op, self._count = op, len(names)
        self.name, self.schema, self.scalar_names = op.name, op.schema, op.scalar_names
        self.start = op.tensor_names.index(parameters[0])
        self.end = self.start + len(parameters)
        """Where a call of the op has its parameters: side by side."""
        if op.tensor_names[self.start : self.end] != tuple(parameters):
            raise ValueError(f"parameters of {op.name} do not stand side by side in its calls")
        self.tensor_names = (*op.tensor_names[: self.start], *names, *op.tensor_names[self.end :])
        self.sources: dict[int, Tensors] = {}
        """Parameters by the identity of the first tensor that was made of them."""

    def allocate(self, *call: Any) -> Any:
        """Uninitialised outputs of one call."""
        return self._op.allocate(*self._original(call))

    def dims(self, call: OpCall) -> dict[str, int | str]:
        """The op's named dimensions."""
        count, args = len(self._op.tensor_names), self._original((*call.tensors, *call.scalars))
        return self._op.dims(OpCall(args[:count], args[count:]))

    def _original(self, call: Tensors) -> Tensors:
        parameters = self.sources[id(call[self.start])]
        return (*call[: self.start], *parameters, *call[self.start + self._count :])


@dataclass(frozen=True)
class _Kept:
    """What was made of a site's parameters; it holds them, so that no other tensor takes their addresses."""

    parameters: Tensors
    made: Tensors
    counted: Sequence[Tensor]
    versions: Sequence[int]
    """Torch counts changes of a tensor, but not those through `.data` or by a kernel."""
    checksums: tuple[int, ...]

    def is_of(self, parameters: Tensors) -> bool:
        """Whether it was made of these very objects, and they have not changed since by torch's count."""
        return all(map(operator.is_, self.parameters, parameters)) and self.is_current()

    def is_current(self) -> bool:
        """Whether the parameters have not changed since, by torch's count."""
        return [tensor._version for tensor in self.counted] == self.versions


class Prepared:
    """A kernel bound over `InPrepared`, as a call of the op itself.

    Parameters that changed, by torch's own count, are prepared again; those that are being trained, in every call.
    """

    def __init__(
        self, view: InPrepared, kernel: Callable[..., Any], make: Callable[..., Tensors], *, shown: str
    ) -> None:
        """`make` takes a call of the op, and prepares its parameters."""
        self._view, self._kernel, self._make, self._shown = view, kernel, make, shown
        self._kept: dict[Any, _Kept] = {}
        """By the parameters' places in memory: from a compiled graph they come as other objects."""
        self._seen: dict[int, _Kept] = {}
        """The same by the first parameter's identity, which is quicker to ask for."""
        self.backward = getattr(kernel, "backward", None)
        """Takes gradients of the outputs, the forward's tensors and what it saved; None where there is none."""
        self.seconds: Seconds = 0.0
        """Spent on preparing so far."""

    def __call__(self, *args: Any) -> Any:
        return self._kernel(*self._prepared(args))

    def saving(self, *args: Any) -> tuple[Any, tuple[Any, ...]]:
        """What the op returns, and what the backward wants to see again."""
        found: tuple[Any, tuple[Any, ...]] = self._kernel.saving(*self._prepared(args))  # type: ignore[attr-defined]
        return found

    def forget(self) -> None:
        """Let go of everything prepared."""
        self._kept.clear()
        self._seen.clear()
        self._view.sources.clear()
        self.seconds = 0.0

    def need_fresh(self) -> None:
        """Refuse what was prepared of parameters that have changed since, past torch's count or in a replayed graph.

        Raises:
            CandidateError: `prepared_stale`.
        """
        stale = [
            kept
            for kept in self._kept.values()
            if not kept.is_current() or kept.checksums != _checksums(kept.parameters)
        ]
        if stale:
            message = f"parameters of {len(stale)} of {len(self._kept)} sites changed after they were prepared"
            raise CandidateError(f"{self._shown}: prepare: {message}", code="prepared_stale")

    def _prepared(self, args: Tensors) -> Tensors:
        """The call with what was prepared in the parameters' place; every eager call of a candidate passes here."""
        view = self._view
        parameters = args[view.start : view.end]
        kept = self._seen.get(id(parameters[0]))
        if kept is None or not kept.is_of(parameters) or torch.is_grad_enabled():
            kept = self._found(parameters, args)
        return args[: view.start] + kept.made + args[view.end :]

    def _found(self, parameters: Tensors, args: Tensors) -> _Kept:
        key = tuple(map(_place, parameters))
        kept = self._kept.get(key)
        is_trained = torch.is_grad_enabled() and any(item.requires_grad for item in _there(parameters))
        if kept is not None and kept.is_current() and not is_trained:
            return kept
        if kept is not None:
            self._seen.pop(id(kept.parameters[0]), None)  # another site's, where both have one weight
            del self._view.sources[id(kept.made[0])]
        made = self._timed(args)
        counted = [item for item in _there(parameters) if not item.is_inference()]
        versions = [item._version for item in counted]
        kept = self._kept[key] = _Kept(parameters, made, counted, versions, _checksums(parameters))
        self._view.sources[id(made[0])] = parameters
        self._seen[id(parameters[0])] = kept
        return kept

    def _timed(self, args: Tensors) -> Tensors:
        wait = torch.cuda.synchronize if args[0].is_cuda and not torch.cuda.is_current_stream_capturing() else None
        if wait:
            wait()
        start = time.perf_counter()
        made = self._make(*args)
        if wait:
            wait()
        self.seconds += time.perf_counter() - start
        return made


def _there(tensors: Iterable[Any]) -> list[Tensor]:
    return [item for item in tensors if item is not None]


def _place(tensor: Any) -> Any:
    return None if tensor is None else (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)


def _checksums(tensors: Iterable[Any]) -> tuple[int, ...]:
    return tuple(int(checksum(item.detach())) for item in _there(tensors))
