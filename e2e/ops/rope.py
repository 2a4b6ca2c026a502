"""Rotary position embedding: (q[b,h,s,d], k[b,kv,s,d], cos[b,s,r], sin[b,s,r]) -> (q, k); `rope:interleaved` too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from e2e.errors import UsageError
from e2e.ops._inputs import Draw, name_of
from e2e.ops._sites import calls_by_name, with_globals
from e2e.protocols import OpCall, Site

FUNCTION = "apply_rotary_pos_emb"
"""What Transformers' attention layers call it, each family in its own modelling module."""
INTERLEAVED = "interleaved"
"""The layout in which neighbouring channels are a pair; else the first half's are with the second's."""
Pair = tuple[Tensor, Tensor]


class Rope:
    """A head's first r channels turn in pairs: x cos + across(x) sin; the rest stays.

    A pair is a channel and the one half of r further on, (x1, x2) -> across (-x2, x1); interleaved, two neighbours. A
    pair has one angle, which stands at both its channels: a kernel may read one of them only.

    Shapes:
        q (B, H, S, D), k (B, KV, S, D), cos and sin (B, S, R) with R <= D -> q (B, H, S, D), k (B, KV, S, D).

    Source:
        Su et al. 2021, arXiv:2104.09864; `apply_rotary_pos_emb` in transformers' modeling_llama and modeling_gpt_neox,
        interleaved in modeling_cohere.
    """

    tensor_names = ("q", "k", "cos", "sin")
    scalar_names: tuple[str, ...] = ()
    schema = "(Tensor q, Tensor k, Tensor cos, Tensor sin) -> (Tensor, Tensor)"
    alternatives: Mapping[str, Callable[..., Any]] = {}

    def __init__(self, *, is_interleaved: bool = False) -> None:
        self.name = f"rope:{INTERLEAVED}" if is_interleaved else "rope"
        self._across, self._other = (_neighbours, _halves) if is_interleaved else (_halves, _neighbours)
        self._angles = _paired if is_interleaved else _angles

    def of(self, layout: str) -> Rope:
        """The op of a layout.

        Raises:
            UsageError: there is no such layout.
        """
        if layout != INTERLEAVED:
            raise UsageError(f"no op called 'rope:{layout}'; it is rope, or rope:{INTERLEAVED}")
        return Rope(is_interleaved=True)

    def find_sites(self, model: nn.Module) -> list[Site]:
        """Modules whose forward calls a function of that name with queries, keys, cosines and sines."""
        return [
            Site(fqn, module, {}) for fqn, module in model.named_modules() if callable(calls_by_name(module, FUNCTION))
        ]

    def own(self, site: Site) -> Callable[..., Any]:
        """The function that the owner's modelling module has under that name."""
        found: Callable[..., Any] = calls_by_name(site.module, FUNCTION)
        return found

    def forward_with(self, site: Site, function: Callable[..., Any] | None) -> Callable[..., Any]:
        """The owner's forward with that name meaning `function`."""
        original = self.own(site)
        if function is None:
            return with_globals(site.module, **{FUNCTION: original})

        def rotated(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Any:
            if unsqueeze_dim != 1:  # heads lie elsewhere: not this op's call
                return original(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim)
            return function(q, k, cos, sin)

        return with_globals(site.module, **{FUNCTION: rotated})

    def reference(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Pair:
        """Plain maths in the precision it is given."""
        return _turned(q, cos, sin, self._across), _turned(k, cos, sin, self._across)

    def allocate(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Pair:
        """Uninitialised q and k; where every channel turns they lie in memory as the inputs do."""
        if cos.shape[-1] == q.shape[-1]:
            return torch.empty_like(q), torch.empty_like(k)
        return q.new_empty(q.shape), k.new_empty(k.shape)

    def dims(self, call: OpCall) -> dict[str, int | str]:
        """`batch`, `heads`, `kv_heads`, `sequence`, `head_dim`, `rotary_dim`, `rows` (of q), `dtype`."""
        q, k, cos, _ = call.tensors
        batch, heads, sequence, head_dim = map(int, q.shape)
        return {
            "batch": batch,
            "heads": heads,
            "kv_heads": int(k.shape[1]),
            "sequence": sequence,
            "head_dim": head_dim,
            "rotary_dim": int(cos.shape[-1]),
            "rows": batch * heads * sequence,
            "dtype": name_of(q.dtype),
        }

    def example(self, dtype: str, device: str, seed: int) -> OpCall:
        """Heads as projections leave them, at positions from 0."""
        draw = Draw.of(dtype, device, seed)
        heads = (draw.made(draw.normal(2, 64, count, 64)).transpose(1, 2) for count in (8, 2))
        return OpCall((next(heads), next(heads), *self._angles(draw, 2, 64, 64, first=0)), ())

    def edge_calls(self, call: OpCall, seed: int) -> Iterable[tuple[str, OpCall]]:
        """One position, odd lengths, positions far out, rows at other positions, other layouts."""
        q, k, cos, _ = call.tensors
        (_, heads, _, size), kv_heads, turning = q.shape, k.shape[1], cos.shape[-1]
        draw = Draw(seed, q)

        def angles(batch: int, sequence: int, first: int) -> Pair:
            return self._angles(draw, batch, sequence, turning, first=first)

        def heads_of(batch: int, sequence: int) -> Pair:
            """Laid out as projections leave them: (B, S, H, D) in memory."""
            made = (draw.made(draw.normal(batch, sequence, count, size)).transpose(1, 2) for count in (heads, kv_heads))
            return next(made), next(made)

        yield "one position", OpCall((*heads_of(1, 1), *angles(1, 1, 5)), ())
        yield "seventeen positions of two rows", OpCall((*heads_of(2, 17), *angles(2, 17, 0)), ())
        yield "far out", OpCall((*heads_of(1, 9), *angles(1, 9, 7000)), ())
        far, near = angles(1, 5, 100), angles(1, 5, 0)
        rows = tuple(torch.cat(pair) for pair in zip(near, far, strict=True))
        yield "rows at other positions", OpCall((*heads_of(2, 5), *rows), ())
        contiguous = tuple(item.contiguous() for item in heads_of(2, 4))
        yield "heads before positions in memory", OpCall((*contiguous, *angles(2, 4, 3)), ())

    def mutants(self) -> Mapping[str, Callable[..., Any]]:
        """Wrong rotations, one mistake each."""

        def wrong(change: Callable[[Tensor, Tensor, Tensor, Tensor], Pair]) -> Callable[..., Any]:
            def mutant(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Pair:
                made = change(*(item.double() for item in (q, k, cos, sin)))
                return made[0].to(q.dtype), made[1].to(k.dtype)

            return mutant

        exact = self.reference
        return {
            "zeros": lambda q, k, cos, sin: (torch.zeros_like(q), torch.zeros_like(k)),
            "not turned": lambda q, k, cos, sin: (q.clone(), k.clone()),
            "keys not turned": wrong(lambda q, k, cos, sin: (exact(q, k, cos, sin)[0], k)),
            "turned the other way": wrong(lambda q, k, cos, sin: exact(q, k, cos, -sin)),
            "turned twice": wrong(lambda q, k, cos, sin: exact(*exact(q, k, cos, sin), cos, sin)),
            "channels paired otherwise": wrong(
                lambda q, k, cos, sin: (_turned(q, cos, sin, self._other), _turned(k, cos, sin, self._other))
            ),
            "one position late": wrong(lambda q, k, cos, sin: exact(q, k, _late(cos), _late(sin))),
            "the first row's angles for all": wrong(lambda q, k, cos, sin: exact(q, k, _first(cos), _first(sin))),
            "last position dropped": wrong(lambda q, k, cos, sin: _but_last(exact(q, k, cos, sin))),
        }


def _turned(x: Tensor, cos: Tensor, sin: Tensor, across: Callable[[Tensor], Tensor]) -> Tensor:
    turning, still = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    return torch.cat([turning * cos.unsqueeze(1) + across(turning) * sin.unsqueeze(1), still], dim=-1)


def _halves(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


def _neighbours(x: Tensor) -> Tensor:
    return torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)


def _angles(draw: Draw, batch: int, sequence: int, size: int, *, first: int) -> Pair:
    speed = 10000.0 ** (-torch.arange(size // 2, dtype=torch.float64) / max(1, size // 2))
    angle = torch.arange(first, first + sequence, dtype=torch.float64)[:, None] * speed
    both = torch.cat([angle, angle], -1).expand(batch, sequence, size).contiguous()
    return draw.made(both.cos()), draw.made(both.sin())


def _paired(draw: Draw, batch: int, sequence: int, size: int, *, first: int) -> Pair:
    cos, sin = _angles(draw, batch, sequence, size, first=first)
    return cos[..., : size // 2].repeat_interleave(2, -1), sin[..., : size // 2].repeat_interleave(2, -1)


def _late(angles: Tensor) -> Tensor:
    """One position late; a single position gets another's by halves."""
    return angles.roll(1, 1) if angles.shape[1] > 1 else angles.roll(1, -1)


def _first(angles: Tensor) -> Tensor:
    return angles[:1].expand_as(angles)


def _but_last(pair: Pair) -> Pair:
    kept = tuple(item.clone() for item in pair)
    for item in kept:
        item[:, :, -1:] = 0
    return kept[0], kept[1]


PLUGIN = Rope()
