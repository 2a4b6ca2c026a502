"""Rows of a table by their numbers: (ids[...], weight[entries, hidden]) -> y[..., hidden]."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from e2e.ops._inputs import Draw, name_of
from e2e.ops._mistakes import rows_rolled, without_last_column, without_last_row
from e2e.ops._sites import InModules
from e2e.protocols import OpCall, Site


class Embedding(InModules):
    """y[...] = weight[ids[...]].

    Shapes:
        ids (...) of whole numbers from 0 to N - 1, weight (N, H) -> (..., H); dtype of the weight.

    Source:
        torch.nn.Embedding.
    """

    name = "embedding"
    tensor_names = ("ids", "weight")
    read_in_part = ("weight",)
    scalar_names: tuple[str, ...] = ()
    schema = "(Tensor ids, Tensor weight) -> Tensor"

    def __init__(self) -> None:
        self.alternatives: Mapping[str, Callable[..., Any]] = {}

    def find_sites(self, model: nn.Module) -> list[Site]:
        """Embedding modules of torch, and what derives from them."""
        return [
            Site(fqn, module, {}, _problem(module))
            for fqn, module in model.named_modules()
            if isinstance(module, nn.Embedding)
        ]

    def reference(self, ids: Tensor, weight: Tensor) -> Tensor:
        """Row by row."""
        return weight.index_select(0, ids.reshape(-1)).reshape(*ids.shape, weight.shape[1])

    def allocate(self, ids: Tensor, weight: Tensor) -> Tensor:
        """An uninitialised y, contiguous."""
        return weight.new_empty((*ids.shape, weight.shape[1]))

    def dims(self, call: OpCall) -> dict[str, int | str]:
        """`rows` (how many ids), `entries` (of the table), `hidden`, `dtype` (of the table)."""
        ids, weight = call.tensors
        entries, hidden = map(int, weight.shape)
        return {"rows": ids.numel(), "entries": entries, "hidden": hidden, "dtype": name_of(weight.dtype)}

    def example(self, dtype: str, device: str, seed: int) -> OpCall:
        """A small vocabulary."""
        draw = Draw.of(dtype, device, seed)
        return OpCall((draw.integers(4096, 4, 64), draw.made(draw.normal(4096, 256))), ())

    def edge_calls(self, call: OpCall, seed: int) -> Iterable[tuple[str, OpCall]]:
        """First and last entries, one id, repeated ones, gaps between them, tables of odd sizes."""
        ids, weight = call.tensors
        (entries, hidden), draw = weight.shape, Draw(seed, weight)

        def of(ids: Tensor, table: Tensor = weight) -> OpCall:
            return OpCall((ids.to(call.tensors[0].dtype), table), ())

        ends = torch.tensor([[0, entries - 1, 0], [entries - 1, entries - 1, 0]], device=ids.device)
        yield "random ids", of(draw.integers(entries, 3, 17))
        yield "first and last", of(ends)
        yield "one id", of(draw.integers(entries, 1, 1))
        yield "one entry again and again", of(draw.integers(entries, 1).repeat(2, 9))
        yield "neighbours in turn", of(torch.arange(min(entries, 40), device=ids.device).flip(0))
        yield "three dimensions of ids", of(draw.integers(entries, 2, 3, 5))
        yield "no ids", of(draw.integers(entries, 0))
        yield "every other id", of(draw.integers(entries, 3, 10)[:, ::2])
        yield "a table of odd sizes", of(draw.integers(13, 4, 9), draw.made(draw.normal(13, 37)))
        yield "a table of one", of(draw.integers(1, 2, 2), draw.made(draw.normal(1, hidden)))

    def mutants(self) -> Mapping[str, Callable[..., Any]]:
        """Wrong look-ups, one mistake each."""
        exact = self.reference

        def last(weight: Tensor) -> int:
            return int(weight.shape[0]) - 1

        return {
            "zeros": lambda ids, w: w.new_zeros((*ids.shape, w.shape[1])),
            "the first entry for all": lambda ids, w: exact(torch.zeros_like(ids), w),
            "the next entry": lambda ids, w: exact((ids + 1) % w.shape[0], w),
            "the entry before": lambda ids, w: exact((ids - 1) % w.shape[0], w),
            "last entry out of reach": lambda ids, w: exact(ids.clamp(max=max(0, last(w) - 1)), w),
            "first entry left empty": lambda ids, w: exact(ids, w) * (ids != 0).unsqueeze(-1),
            "counted from the end": lambda ids, w: exact(last(w) - ids, w),
            "scaled as Gemma does": lambda ids, w: exact(ids, w) * w.shape[1] ** 0.5,
            "one id late": lambda ids, w: rows_rolled(exact(ids, w)),
            "ids read as if contiguous": lambda ids, w: exact(_as_if_contiguous(ids), w),
            "last column dropped": lambda ids, w: without_last_column(exact(ids, w)),
            "last row dropped": lambda ids, w: without_last_row(exact(ids, w)),
        }


def _problem(module: nn.Embedding) -> str | None:
    if type(module).forward is not nn.Embedding.forward:
        return f"{type(module).__name__} has a forward of its own, which does more than look rows up"
    if module.max_norm is not None:
        return "it shortens long rows in place as it looks them up (`max_norm`)"
    if module.scale_grad_by_freq or module.sparse:
        return "its gradient is another (`scale_grad_by_freq` or `sparse`)"
    return None


def _as_if_contiguous(ids: Tensor) -> Tensor:
    return ids.as_strided((ids.numel(),), (1,), ids.storage_offset()).reshape(ids.shape)


PLUGIN = Embedding()
