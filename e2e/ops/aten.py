"""Operators of ATen by name, `aten:NAME.OVERLOAD`, wherever a model calls them; float64 is the operator's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor

from e2e.errors import UsageError
from e2e.operators import Interception, intercepted
from e2e.ops._inputs import Draw, name_of
from e2e.ops._mistakes import without_last_row
from e2e.ops._overloads import Overload, overload_called
from e2e.ops._sites import plain_forward
from e2e.protocols import OpCall, Site, outputs_of


class AtenOp:
    """What one overload of an operator computes; its call is `Overload`'s: tensors, then other arguments."""

    schema = "(Tensor[] tensors, Scalar[] others) -> Tensor"
    alternatives: Mapping[str, Callable[..., Any]] = {}
    tensor_names: tuple[str, ...] = ()
    scalar_names: tuple[str, ...] = ()
    name = "aten"

    def __init__(self, overload: Overload | None = None) -> None:
        self._overload = overload
        self._forms: dict[Any, list[tuple[Any, ...]]] = {}
        if overload is not None:
            self.name, self.schema = f"aten:{overload.name}", overload.schema
            self.tensor_names, self.scalar_names = overload.tensors, overload.scalars

    def of(self, name: str) -> AtenOp:
        """The op of that overload, such as `silu.default`.

        Raises:
            UsageError: no such overload, or one that no kernel can stand for; says why.
        """
        return AtenOp(overload_called(name))

    def find_sites(self, model: nn.Module) -> list[Site]:
        """Every module: in which of them the operator is called, only a step can tell."""
        if self._overload is None:
            return []
        return [
            Site(fqn, module, {}, is_declared=False)
            for fqn, module in model.named_modules()
            if plain_forward(module) is not None and type(module).forward is not _UNIMPLEMENTED
        ]

    def own(self, site: Site) -> Callable[..., Any]:
        """The operator itself."""
        return self._known

    def forward_with(self, site: Site, function: Callable[..., Any] | None) -> Callable[..., Any]:
        """The module's forward, in which the operator's calls are the function's."""
        known = self._known
        return intercepted(Interception(known.target, site.module, function or known, known.ordered))

    def reference(self, *call: Any) -> Any:
        """The operator, in the precision that it is given."""
        return self._known(*call)

    def spread(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """See `Overload.spread`."""
        return self._known.spread(function)

    @property
    def _known(self) -> Overload:
        if self._overload is None:
            raise RuntimeError("no operator was named: `of` gives the op of one")
        return self._overload

    def allocate(self, *call: Any) -> Any:
        """Uninitialised outputs, as the operator's own rule for shapes has them.

        Raises:
            RuntimeError: an output that is no floating-point tensor, whose error would mean nothing.
        """
        tensors = [item for item in call if isinstance(item, Tensor)]
        if any(item.is_meta or isinstance(item, FakeTensor) for item in tensors):
            return self.reference(*call)
        key = tuple((i.shape, i.stride(), i.dtype, i.device) if isinstance(i, Tensor) else i for i in call)
        if key not in self._forms:
            found = outputs_of(self.reference(*[_bare(item) for item in call]))
            self._forms[key] = [_form(item, tensors[0].device, self.name) for item in found]
        made = [
            torch.empty_strided(shape, strides, dtype=dtype, device=device)
            for shape, strides, dtype, device in self._forms[key]
        ]
        return made[0] if len(made) == 1 else tuple(made)

    def dims(self, call: OpCall) -> dict[str, int | str]:
        """`dim0`, `dim1`, ... of the first tensor, `rows`, `hidden` (the last one), and `dtype`."""
        tensors = [item for item in call.tensors if item is not None]
        first = tensors[0]
        typed = next((item for item in tensors if item.is_floating_point()), first)
        hidden = int(first.shape[-1]) if first.dim() else 1
        sizes: dict[str, int | str] = {f"dim{place}": int(size) for place, size in enumerate(first.shape)}
        rows = first.numel() // hidden if hidden else 0
        return {**sizes, "rows": rows, "hidden": hidden, "dtype": name_of(typed.dtype)}

    def example(self, dtype: str, device: str, seed: int) -> OpCall:
        """None: what an operator is called with, a model says.

        Raises:
            UsageError: always.
        """
        raise UsageError(f"{self.name} is what some model calls: check it with a workload")

    def edge_calls(self, call: OpCall, seed: int) -> Iterable[tuple[str, OpCall]]:
        """The captured values in other places, smaller, and with gaps between rows.

        What is legal for an unknown operator, the call itself shows: signs stay, nothing grows, and whole numbers,
        which may be places in something, stay as they are.
        """
        changed = _changeable(call)

        def made(change: Callable[[Draw, Tensor], Tensor]) -> OpCall:
            tensors = (
                change(Draw(seed + place, item), item) if place in changed else item
                for place, item in enumerate(call.tensors)
            )
            return OpCall(tuple(tensors), call.scalars)

        yield "values in other places", made(_moved)
        yield "smaller values", made(lambda draw, item: _moved(draw, item) * float(0.2 + draw.normal(1).sigmoid() / 2))
        yield "hundredths", made(lambda draw, item: _moved(draw, item) * 0.01)
        yield "gaps between rows", made(lambda draw, item: _apart(_moved(draw, item)))

    def mutants(self) -> Mapping[str, Callable[..., Any]]:
        """Wrong outputs that any operator's check must notice."""

        def wrong(change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
            def mutant(*call: Any) -> Any:
                found = self.reference(*call)
                return change(found) if isinstance(found, Tensor) else tuple(map(change, found))

            return mutant

        def first_input(*call: Any) -> Any:
            """Where the first input is no output that could be wrong: zeros."""
            found = self.reference(*call)
            if isinstance(found, Tensor) and found.shape == call[0].shape and not torch.equal(found, call[0]):
                return call[0].to(found.dtype, copy=True)
            return torch.zeros_like(found) if isinstance(found, Tensor) else tuple(map(torch.zeros_like, found))

        return {
            "zeros": wrong(torch.zeros_like),
            "copy of the input": first_input,
            "last row dropped": wrong(lambda item: without_last_row(item) if item.dim() else item * 0),
            "one per cent too large": wrong(lambda item: item * 1.01),
            "values shifted": wrong(lambda item: item + 0.1 * item.abs().mean()),
        }


def _bare(item: Any) -> Any:
    """The tensor's form without memory."""
    if not isinstance(item, Tensor):
        return item
    return torch.empty_strided(item.shape, item.stride(), dtype=item.dtype, device="meta")


def _form(item: Any, device: torch.device, name: str) -> tuple[Any, ...]:
    if not isinstance(item, Tensor) or not item.is_floating_point():
        kind = name_of(item.dtype) if isinstance(item, Tensor) else type(item).__name__
        raise RuntimeError(f"{name} returns {kind} here, and only errors of floating-point numbers can be judged")
    return tuple(item.shape), item.stride(), item.dtype, device


def _changeable(call: OpCall) -> set[int]:
    """Places of the tensors that an edge changes: no whole numbers, and of large ones at most the smallest."""
    sizes = {
        place: item.numel()
        for place, item in enumerate(call.tensors)
        if item is not None and item.is_floating_point() and item.numel()
    }
    small = {place for place, size in sizes.items() if size <= _LARGE}
    return small or set(sorted(sizes, key=sizes.__getitem__)[:1])


def _moved(draw: Draw, item: Tensor) -> Tensor:
    """The same values in other places, in the same layout."""
    places = 1 + int(draw.integers(max(1, item.numel() - 1)))
    return torch.empty_like(item).copy_(item.reshape(-1).roll(places).reshape(item.shape))


def _apart(item: Tensor) -> Tensor:
    """The same values in rows with gaps between them."""
    if not item.dim():
        return item
    wide = item.new_zeros(*item.shape[:-1], 2 * item.shape[-1])
    return wide[..., : item.shape[-1]].copy_(item)


_LARGE = 2**22
"""Elements of a tensor, probably a weight, of which no edge holds a copy of its own."""
_UNIMPLEMENTED = nn.Module.forward
"""That of containers, which nobody calls."""

PLUGIN = AtenOp()
