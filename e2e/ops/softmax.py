"""Softmax along one dimension, where a forward or eager attention calls it by name: (x, dim) -> y."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from e2e.ops._inputs import Draw, name_of
from e2e.ops._mistakes import without_last_row
from e2e.ops._sites import in_place_of, over_globals, paths_to, plain_forward, with_globals
from e2e.protocols import OpCall, Site

_TARGETS = (nn.functional.softmax, torch.softmax)
_ATTENTION = "eager_attention_forward"
"""What attention layers of Transformers call unless their config names another implementation."""


class Softmax:
    """y = exp(x - max(x)) / sum(exp(x - max(x))), along `dim`.

    A call that also asks for a wider dtype is the op on the widened x.

    Shapes:
        x (...) -> (...); same dtype as x.

    Source:
        torch.nn.functional.softmax.
    """

    name = "softmax"
    tensor_names = ("x",)
    scalar_names = ("dim",)
    schema = "(Tensor x, int dim) -> Tensor"
    alternatives: Mapping[str, Callable[..., Any]] = {}
    """What models call is torch's own already."""

    def find_sites(self, model: nn.Module) -> list[Site]:
        """Modules whose forward calls torch's softmax by name, or calls a function by name that does.

        A tensor's own method is not found, and so never replaced.
        """
        sites = []
        for fqn, module in model.named_modules():
            forward = plain_forward(module)
            if forward is None or not (paths_to(forward, _TARGETS) or _callees(forward)):
                continue
            sites.append(Site(fqn, module, {}, _problem(module, forward)))
        return sites

    def own(self, site: Site) -> Callable[..., Any]:
        """The softmax of torch."""
        return _torch_softmax

    def forward_with(self, site: Site, function: Callable[..., Any] | None) -> Callable[..., Any]:
        """The owner's forward with `function` under softmax's names, in what it calls by name too."""

        def put(original: Callable[..., Any]) -> Callable[..., Any]:
            return original if function is None else _adapted(original, function)

        forward = plain_forward(site.module)
        assert forward is not None
        inner = {
            name: over_globals(callee, **in_place_of(callee, paths_to(callee, _TARGETS), put))
            for name, callee in _callees(forward).items()
        }
        return with_globals(site.module, **inner, **in_place_of(forward, paths_to(forward, _TARGETS), put))

    def reference(self, x: Tensor, dim: int) -> Tensor:
        """Plain maths in the precision it is given."""
        if not x.numel():
            return x.clone()
        powers = (x - x.amax(dim, keepdim=True)).exp()
        return powers / powers.sum(dim, keepdim=True)

    def allocate(self, x: Tensor, dim: int) -> Tensor:
        """An uninitialised y; torch's is contiguous, whatever x is."""
        return x.new_empty(x.shape)

    def dims(self, call: OpCall) -> dict[str, int | str]:
        """`length` (along `dim`), `rows` (how many of them), `dtype`."""
        x, dim = call.tensors[0], call.scalars[0]
        length = int(x.shape[dim])
        return {"rows": x.numel() // max(1, length), "length": length, "dtype": name_of(x.dtype)}

    def example(self, dtype: str, device: str, seed: int) -> OpCall:
        """Scores of a few heads."""
        draw = Draw.of(dtype, device, seed)
        return OpCall((draw.made(draw.normal(2, 4, 64, 128) * 2),), (-1,))

    def variants(self, dtype: str, device: str, seed: int) -> Iterable[tuple[str, OpCall]]:
        """Other dimensions than the last; at a site there is one of them."""
        draw = Draw.of(dtype, device, seed)
        for dim, shape in ((1, (2, 5, 7)), (0, (3, 4)), (-2, (2, 9, 16))):
            yield f"along dimension {dim}", OpCall((draw.made(draw.normal(*shape) * 2),), (dim,))

    def edge_calls(self, call: OpCall, seed: int) -> Iterable[tuple[str, OpCall]]:
        """Large and masked scores, even ones, one that wins, odd lengths, few rows, other layouts."""
        x, dim = call.tensors[0], call.scalars[0]
        draw, length, least = Draw(seed, x), x.shape[dim], torch.finfo(x.dtype).min

        def placed(rows: Tensor) -> Tensor:
            """(rows, length) in the call's form: the length along `dim`, the rows along the dimension beside it."""
            place, others = dim % x.dim(), x.dim() - 1
            shaped = rows.reshape(*([1] * (others - 1)), *rows.shape) if others else rows[0]
            return shaped.movedim(-1, place).contiguous()

        def made(rows: Tensor) -> OpCall:
            return OpCall((placed(draw.made(rows)),), (dim,))

        # rows enough that one division which happens to come out exact does not make the baseline look better
        scores = draw.normal(32, length)
        causal = torch.arange(length) > torch.arange(32)[:, None] * max(1, length // 32)
        winner = draw.normal(32, length)
        winner[:, length // 2] += 30
        yield "random values", made(scores)
        yield "one row", made(draw.normal(1, length))
        yield "large scores", made(draw.normal(32, length) * 40)
        yield "far from zero", made(draw.normal(32, length) + 500)
        yield "far below zero", made(draw.normal(32, length) - 500)
        yield "masked by the least number", made(scores.masked_fill(causal, least))
        yield "masked by minus infinity", made(scores.masked_fill(causal, -torch.inf))
        yield "a row all masked by the least number", made(torch.cat([scores, 0 * scores[:1] + least]))
        yield "one score wins", made(winner)
        yield "even scores", made(draw.normal(3, 1).expand(3, length))
        yield "a prime length", made(draw.normal(32, 61))
        yield "a length of one", made(draw.normal(4, 1))
        yield "no rows", OpCall((draw.made(draw.normal(*_none(x, dim))),), (dim,))
        yield "every other row", OpCall((_spread(placed(draw.made(draw.normal(32, length)))),), (dim,))

    def mutants(self) -> Mapping[str, Callable[..., Any]]:
        """Wrong softmaxes, one mistake each."""
        exact = self.reference

        def wrong(change: Callable[[Tensor, int], Tensor]) -> Callable[..., Any]:
            return lambda x, dim: change(x.double(), dim).to(x.dtype) if x.numel() else x.clone()

        return {
            "zeros": lambda x, dim: torch.zeros_like(x),
            "copy of the input": lambda x, dim: x.clone(),
            "not divided by the sum": wrong(lambda x, dim: (x - x.amax(dim, keepdim=True)).exp()),
            "largest not subtracted": lambda x, dim: _unshifted(x.float(), dim).to(x.dtype),
            "powers of two": wrong(lambda x, dim: exact(x * 0.6931471805599453, dim)),
            "logarithm returned": wrong(lambda x, dim: x.log_softmax(dim)),
            "twice as sharp": wrong(lambda x, dim: exact(2 * x, dim)),
            "applied twice": wrong(lambda x, dim: exact(exact(x, dim), dim)),
            "even weights": wrong(lambda x, dim: torch.full_like(x, 1 / x.shape[dim])),
            "sum of all rows": wrong(lambda x, dim: exact(x.flatten(), 0).reshape(x.shape) * x.shape[0]),
            "one place late": wrong(lambda x, dim: exact(x, dim).roll(1, dim)),
            "last one dropped": wrong(lambda x, dim: _but_last(exact(x, dim), dim)),
            "last one left out of the sum": wrong(lambda x, dim: _short(x, dim)),
            "last row dropped": wrong(lambda x, dim: without_last_row(exact(x, dim).movedim(dim, -1)).movedim(-1, dim)),
        }


def _callees(forward: types.FunctionType) -> dict[str, types.FunctionType]:
    """Functions that the forward names and that call softmax by name."""
    found = {name: forward.__globals__.get(name) for name in forward.__code__.co_names}
    return {
        name: item for name, item in found.items() if isinstance(item, types.FunctionType) and paths_to(item, _TARGETS)
    }


def _problem(module: nn.Module, forward: types.FunctionType) -> str | None:
    if paths_to(forward, _TARGETS) or _ATTENTION not in _callees(forward):
        return None
    chosen = getattr(getattr(module, "config", None), "_attn_implementation", None)
    if chosen in (None, "eager"):
        return None
    return f"its attention is {chosen!r}, which has its own softmax inside; only eager attention calls one by name"


def _adapted(original: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """`function(x, dim)` under the signatures of torch's softmaxes."""

    def softmax(input: Tensor, dim: int | None = None, *rest: Any, dtype: torch.dtype | None = None) -> Any:
        if dim is None or rest:
            return original(input, dim, *rest, dtype=dtype)
        return function(input if dtype is None else input.to(dtype), dim)

    return softmax


def _torch_softmax(x: Tensor, dim: int) -> Tensor:
    return nn.functional.softmax(x, dim)


def _none(x: Tensor, dim: int) -> list[int]:
    """The shape without rows; where there is one row only, without anything."""
    shape = list(x.shape)
    shape[0 if dim % x.dim() or x.dim() == 1 else -1] = 0
    return shape


def _spread(x: Tensor) -> Tensor:
    """The same values with gaps between them in memory."""
    return torch.stack([x, x], dim=-1)[..., 0]


def _unshifted(x: Tensor, dim: int) -> Tensor:
    powers = x.exp()
    return powers / powers.sum(dim, keepdim=True)


def _but_last(y: Tensor, dim: int) -> Tensor:
    kept = y.clone()
    kept.narrow(dim, -1, 1).zero_()
    return kept


def _short(x: Tensor, dim: int) -> Tensor:
    powers = (x - x.amax(dim, keepdim=True)).exp()
    total = powers.narrow(dim, 0, max(1, x.shape[dim] - 1)).sum(dim, keepdim=True)
    return powers / total.clamp_min(1e-30)


PLUGIN = Softmax()
