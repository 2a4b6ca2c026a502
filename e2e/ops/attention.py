"""Scaled dot-product attention: (q[b,h,s,d], k[b,kv,t,d], v[b,kv,t,d], mask, scale, causal, softcap, window) -> y."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from e2e.ops._inputs import Draw, name_of
from e2e.ops._mistakes import without_last_row
from e2e.ops._sites import calls_by_name, names_in, with_globals
from e2e.protocols import OUT, OpCall, Site, Swaps

REGISTRY = "ALL_ATTENTION_FUNCTIONS"
"""Where Transformers' attention modules look up the function that attends, each in its own modelling module."""
KNOWN = ("sdpa", "eager")
"""Implementations whose masks say everything about who sees whom."""
FOREIGN = {
    "position_bias": "it adds a position bias to the scores",
    "s_aux": "its softmax has attention sinks",
    "learnable_sink": "its softmax has attention sinks",
}
"""What modules may hand to their attention function that this op has no argument for."""
BLOCK = 2**24
"""Scores that the reference holds at once: 128 MiB in float64."""
Call = tuple[Tensor, Tensor, Tensor, Tensor | None, float, bool, float | None, int | None]


class Attention:
    """y = softmax(cap(q k^T scale) + mask) v, where cap(x) = softcap tanh(x / softcap), or x.

    A mask is boolean (true: may be seen) or added to the scores. Queries stand at the end of the keys: with `causal`,
    query i of S sees keys up to i + T - S; a window of w leaves it the keys less than w away. A query that may see
    nothing gives zeros, as in `scaled_dot_product_attention`. H is a multiple of KV; query head h reads head
    h // (H / KV).

    Shapes:
        q (B, H, S, D), k (B, KV, T, D), v (B, KV, T, E), mask broadcastable to (B, H, S, T) -> y (B, H, S, E), which
        lies in memory as (B, S, H, E).

    Source:
        Vaswani et al. 2017, arXiv:1706.03762; `sdpa_attention_forward` in transformers; softcap as in modeling_gemma2.
    """

    name = "attention"
    tensor_names = ("q", "k", "v", "mask")
    scalar_names = ("scale", "causal", "softcap", "window")
    schema = (
        "(Tensor q, Tensor k, Tensor v, Tensor? mask, float scale, bool causal, float? softcap, int? window) -> Tensor"
    )

    layouts: Mapping[str, Swaps] = {"bshd": dict.fromkeys(("q", "k", "v", OUT), (1, 2))}

    def __init__(self) -> None:
        self.alternatives: dict[str, Callable[..., Any]] = {
            "sdpa": _sdpa,
            "sdpa_math": _by_backend(SDPBackend.MATH),
            "sdpa_flash": _by_backend(SDPBackend.FLASH_ATTENTION),
            "maths": _maths,
        }
        if torch.backends.cuda.is_built():  # looks at no device
            self.alternatives |= {
                "sdpa_efficient": _by_backend(SDPBackend.EFFICIENT_ATTENTION, is_grouped=False),
                "sdpa_cudnn": _by_backend(SDPBackend.CUDNN_ATTENTION),
            }

    def find_sites(self, model: nn.Module) -> list[Site]:
        """Modules whose forward asks Transformers' registry for its attention function."""
        return [
            Site(fqn, module, {}, _problem_of(module))
            for fqn, module in model.named_modules()
            if calls_by_name(module, REGISTRY) is not None
        ]

    def own(self, site: Site) -> Callable[..., Any]:
        """The function that the registry gives the module, on the op's call.

        What it has no argument for (a window; causal queries at the end of more keys) it is told by a mask.
        """
        module, function, is_eager = site.module, _function_of(site.module), _is_eager(site.module)

        def original(
            q: Tensor,
            k: Tensor,
            v: Tensor,
            mask: Tensor | None,
            scale: float,
            causal: bool,
            softcap: float | None,
            window: int | None,
        ) -> Any:
            causal = causal and q.shape[2] > 1
            if (window is not None and window < k.shape[2]) or (causal and (is_eager or q.shape[2] != k.shape[2])):
                mask, causal = _masked(q, k, mask, causal, window), False
            if is_eager:
                mask = _added(mask, q)
            capped = {} if softcap is None else {"softcap": softcap}
            y, _ = function(module, q, k, v, mask, dropout=0.0, scaling=scale, is_causal=causal, **capped)
            return y.transpose(1, 2)

        return original

    def forward_with(self, site: Site, function: Callable[..., Any] | None) -> Callable[..., Any]:
        """The owner's forward over a registry that has `function` only."""
        if function is None:
            return with_globals(site.module)
        return with_globals(site.module, **{REGISTRY: _Registry(_adapted(site.module, function))})

    def reference(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        scale: float,
        causal: bool,
        softcap: float | None,
        window: int | None,
    ) -> Tensor:
        """Plain maths in the precision it is given, some queries of one head at a time."""
        (batch, heads, count, _), keys = q.shape, k.shape[2]
        group, step = max(1, heads // max(1, k.shape[1])), max(1, BLOCK // max(1, keys))
        seen = None if mask is None else mask.expand(batch, heads, count, keys)
        blocks = [q.new_empty(batch, heads, 0, v.shape[-1])]
        for start in range(0, count, step):
            end = min(start + step, count)
            visible = _visible(range(start, end), count, keys, causal, window, q.device)
            rows = []
            for b in range(batch):
                for h in range(heads):
                    scores = _capped(q[b, h, start:end] @ k[b, h // group].mT * scale, softcap)
                    weights = _weights(scores, visible, None if seen is None else seen[b, h, start:end])
                    rows.append(weights @ v[b, h // group])
            blocks.append(torch.stack(rows).reshape(batch, heads, end - start, v.shape[-1]))
        return torch.cat(blocks, dim=2)

    def allocate(self, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
        """An uninitialised y; in memory heads lie side by side, ready for the output projection."""
        batch, heads, count, _ = q.shape
        return q.new_empty(batch, count, heads, v.shape[-1]).transpose(1, 2)

    def dims(self, call: OpCall) -> dict[str, int | str]:
        """`batch`, `heads`, `kv_heads`, `sequence` (queries), `keys`, `head_dim`, `value_dim`, `rows` (of q), `dtype`.

        Beside them what constraints may ask of a call: `masked` and `causal` (0 or 1), `softcapped` (0 or 1), and
        `window` (0: none).
        """
        q, k, v, mask = call.tensors
        _, causal, softcap, window = call.scalars
        batch, heads, count, size = map(int, q.shape)
        return {
            "batch": batch,
            "heads": heads,
            "kv_heads": int(k.shape[1]),
            "sequence": count,
            "keys": int(k.shape[2]),
            "head_dim": size,
            "value_dim": int(v.shape[-1]),
            "rows": batch * heads * count,
            "masked": int(mask is not None),
            "causal": int(causal),
            "softcapped": int(softcap is not None),
            "window": int(window or 0),
            "dtype": name_of(q.dtype),
        }

    def example(self, dtype: str, device: str, seed: int) -> OpCall:
        """A causal prompt, four query heads to a key head."""
        heads = _Heads(Draw.of(dtype, device, seed), heads=8, kv_heads=2, size=64, value_size=64)
        return OpCall((*heads.drawn(2, 64, 64), None), (64**-0.5, True, None, None))

    def edge_calls(self, call: OpCall, seed: int) -> Iterable[tuple[str, OpCall]]:
        """Decode, lengths that fill no tile, more keys than queries, windows, masks of both kinds, other layouts.

        The scale, the softcap and the numbers of heads are the call's.
        """
        q, k, v, _ = call.tensors
        scale, _, softcap, _ = call.scalars
        draw = Draw(seed, q)
        heads = _Heads(draw, heads=q.shape[1], kv_heads=k.shape[1], size=q.shape[3], value_size=v.shape[3])

        def edge(
            tensors: tuple[Tensor, Tensor, Tensor],
            *,
            causal: bool = False,
            mask: Tensor | None = None,
            window: int | None = None,
        ) -> OpCall:
            return OpCall((*tensors, mask), (scale, causal, softcap, window))

        yield "one query, one key", edge(heads.drawn(1, 1, 1))
        yield "one query, many keys", edge(heads.drawn(2, 1, 67))
        yield "keys of a longer cache", edge(heads.of_a_cache(2, 3, 29, 64))
        yield "seventeen positions, causal", edge(heads.drawn(1, 17, 17), causal=True)
        yield "131 positions, causal", edge(heads.drawn(1, 131, 131), causal=True)
        yield "eleven positions, all seen", edge(heads.drawn(2, 11, 11))
        yield "fewer queries than keys, causal", edge(heads.drawn(1, 5, 13), causal=True)
        yield "a window, causal", edge(heads.drawn(1, 19, 19), causal=True, window=5)
        yield "a window on both sides", edge(heads.drawn(1, 19, 19), window=4)
        yield "padding on the left", edge(heads.drawn(2, 9, 9), mask=_left_padding(9, q.device))
        yield "a query that sees nothing", edge(heads.drawn(1, 4, 6), mask=_blind(4, 6, q.device))
        bias = draw.made(2 * draw.normal(2, q.shape[1], 7, 10))
        yield "a mask of numbers", edge(heads.drawn(2, 7, 10), mask=bias)
        yield "large scores", edge(heads.drawn(1, 12, 12, q_scale=8.0), causal=True)
        if softcap is not None:
            reach = softcap / (scale * q.shape[-1] ** 0.5)  # scores about as large as the cap, and few to choose from
            yield "scores at the softcap", edge(heads.drawn(2, 16, 3, q_scale=0.5 * reach))
        yield "equal keys", edge(heads.with_equal_keys(1, 6, 23))
        yield "heads before positions in memory", edge(heads.contiguous(2, 10, 10), causal=True)

    def mutants(self) -> Mapping[str, Callable[..., Any]]:
        """Wrong attention, one mistake each."""

        def wrong(change: Callable[..., Call]) -> Callable[..., Any]:
            """Right maths on another call."""

            def mutant(*call: Any) -> Tensor:
                return self._rounded(change(*call), like=call[0])

            return mutant

        def spoiled(change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
            """Another output than that of the right maths."""
            return lambda *call: change(self._rounded(call, like=call[0]))

        return {
            "zeros": lambda q, k, v, *rest: torch.zeros_like(self.allocate(q, k, v)),
            "values averaged": wrong(lambda q, k, *rest: (q * 0, k, *rest)),
            "not scaled": wrong(lambda q, k, v, mask, scale, *rest: (q, k, v, mask, 3 * scale, *rest)),
            "mask ignored": wrong(lambda q, k, v, mask, *rest: (q, k, v, None, *rest)),
            "causality ignored": wrong(lambda *call: (*call[:5], False, *call[6:])),
            "causal at the start of the keys": wrong(_at_the_start),
            "causal always": wrong(lambda *call: (*call[:5], True, *call[6:])),
            "the diagonal masked": wrong(_without_diagonal),
            "window ignored": wrong(lambda *call: (*call[:7], None)),
            "window one too wide": wrong(lambda *call: (*call[:7], None if call[7] is None else call[7] + 1)),
            "softcap where there is none, none where there is": wrong(_softcap_swapped),
            "values of another head": wrong(
                lambda q, k, v, *rest: (q, k, v.roll(1, 1 if v.shape[1] > 1 else 2), *rest)
            ),
            "last key dropped": wrong(_without_last_key),
            "not normalised": spoiled(lambda y: y * 1.02),
            "last row dropped": spoiled(without_last_row),
            "heads swapped": spoiled(lambda y: y.roll(1, 1) if y.shape[1] > 1 else y.roll(1, 2)),
        }

    def _rounded(self, call: Any, *, like: Tensor) -> Tensor:
        """The exact maths of a call in the dtype and the layout that the op owes."""
        tensors = (item.double() if item is not None and item.is_floating_point() else item for item in call[:4])
        y = self.reference(*tensors, *call[4:]).to(like.dtype)
        return self.allocate(*call[:3]).copy_(y)


class _Registry:
    """Stands where the owner's forward looks its attention function up: there is one only."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def get_interface(self, attn_implementation: str, default: Any) -> Callable[..., Any]:
        """That function."""
        return self._function

    def __getitem__(self, attn_implementation: str) -> Callable[..., Any]:
        """That function."""
        return self._function


def _problem_of(module: nn.Module) -> str | None:
    implementation = _implementation_of(module)
    if implementation not in KNOWN:
        return f"its attention implementation is {implementation!r}; whom it masks is known of {' and '.join(KNOWN)}"
    found = names_in(module)
    return next(
        (f"{problem}; attention has no argument for it" for name, problem in FOREIGN.items() if name in found), None
    )


def _implementation_of(module: nn.Module) -> Any:
    return getattr(getattr(module, "config", None), "_attn_implementation", None)


def _is_eager(module: nn.Module) -> bool:
    return bool(_implementation_of(module) == "eager")


def _function_of(module: nn.Module) -> Callable[..., Any]:
    """What the registry gives the module; the modelling module's own where it runs eagerly."""
    default = calls_by_name(module, "eager_attention_forward")
    found: Callable[..., Any] = calls_by_name(module, REGISTRY).get_interface(_implementation_of(module), default)
    return found


def _adapted(module: nn.Module, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` under the calling convention of Transformers' attention functions.

    Every eager call of a candidate passes here. Whether it is causal is decided as in `sdpa_attention_forward`;
    eager functions know masks only.
    """
    original, is_eager = _function_of(module), _is_eager(module)

    def attend(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        softcap: float | None = None,
        sliding_window: int | None = None,
        **others: Any,
    ) -> tuple[Any, Any]:
        count, keys = query.shape[2], key.shape[2]
        causal = False
        if attention_mask is None and count > 1 and not is_eager:
            causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
        is_foreign = dropout or others.get("output_attentions") or any(others.get(name) is not None for name in FOREIGN)
        if is_foreign or (causal and count > keys):  # not this op's call
            named: dict[str, Any] = {"dropout": dropout, "scaling": scaling, "sliding_window": sliding_window, **others}
            named |= {} if is_causal is None else {"is_causal": is_causal}
            named |= {} if softcap is None else {"softcap": softcap}
            output: tuple[Any, Any] = original(module, query, key, value, attention_mask, **named)
            return output
        if causal and keys > count:  # an empty static cache: what lies beyond the prompt is not written yet
            key, value = key[:, :, :count], value[:, :, :count]
        window = sliding_window if attention_mask is None and sliding_window and sliding_window < keys else None
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        y = function(query, key, value, attention_mask, scale, causal, softcap, window)
        return y.transpose(1, 2), None

    return attend


def _visible(queries: range, count: int, keys: int, causal: bool, window: int | None, device: torch.device) -> Tensor:
    """Which keys some of `count` queries may see by their place alone.

    Shapes:
        -> (len(queries), T), boolean.
    """
    place = torch.arange(queries.start, queries.stop, device=device)[:, None] + keys - count
    key = torch.arange(keys, device=device)[None]
    seen = key <= place if causal else torch.ones(len(queries), keys, dtype=torch.bool, device=device)
    return seen if window is None else seen & ((key - place).abs() < window)


def _masked(q: Tensor, k: Tensor, mask: Tensor | None, causal: bool, window: int | None) -> Tensor:
    """One mask that says what the mask, causality and the window say together."""
    seen = _visible(range(q.shape[2]), q.shape[2], k.shape[2], causal, window, q.device)
    if mask is None:
        return seen[None, None]
    return mask & seen if mask.dtype == torch.bool else mask.masked_fill(~seen, torch.finfo(mask.dtype).min)


def _added(mask: Tensor | None, q: Tensor) -> Tensor | None:
    """The mask as numbers to add to the scores."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, torch.finfo(q.dtype).min)


def _capped(scores: Tensor, softcap: float | None) -> Tensor:
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def _weights(scores: Tensor, visible: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax over what may be seen; zeros where that is nothing.

    Shapes:
        scores, visible, mask (S, T) -> (S, T).
    """
    if mask is not None and mask.dtype == torch.bool:
        visible = visible & mask
    elif mask is not None:
        scores = scores + mask
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    return weights.masked_fill(~visible.any(-1, keepdim=True), 0.0)


def _sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    causal: bool,
    softcap: float | None,
    window: int | None,
) -> Tensor:
    if softcap is not None:
        raise NotImplementedError("scaled_dot_product_attention has no softcap")
    causal = causal and q.shape[2] > 1
    if (window is not None and window < k.shape[2]) or (causal and q.shape[2] != k.shape[2]):
        mask, causal = _masked(q, k, mask, causal, window), False
    is_grouped = q.shape[1] != k.shape[1]
    y = scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=is_grouped)
    return y.transpose(1, 2).contiguous().transpose(1, 2)


def _by_backend(backend: SDPBackend, *, is_grouped: bool = True) -> Callable[..., Any]:
    """`_sdpa` by one of torch's kernels; keys and values are repeated for one that knows no groups."""

    def attend(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
        if not is_grouped:
            k, v = _repeated(k, q.shape[1]), _repeated(v, q.shape[1])
        with sdpa_kernel(backend):
            return _sdpa(q, k, v, *rest)

    return attend


def _repeated(x: Tensor, heads: int) -> Tensor:
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


def _maths(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    causal: bool,
    softcap: float | None,
    window: int | None,
) -> Tensor:
    """All scores at once, in float32 at least: rounded to bfloat16 before the softmax, large ones would be wrong."""
    wide = torch.promote_types(q.dtype, torch.float32)
    k, v = _repeated(k, q.shape[1]), _repeated(v, q.shape[1])
    if causal or window is not None:
        mask = _masked(q, k, mask, causal, window)
    scores = _capped(q.to(wide) @ k.to(wide).mT * scale, softcap)
    if mask is None:
        weights = scores.softmax(-1)
    elif mask.dtype == torch.bool:
        weights = scores.masked_fill(~mask, torch.finfo(wide).min).softmax(-1)
        weights = weights.masked_fill(~mask.any(-1, keepdim=True), 0.0)
    else:
        weights = (scores + mask).softmax(-1)
    return (weights.to(q.dtype) @ v).transpose(1, 2).contiguous().transpose(1, 2)


class _Heads:
    """Draws queries, keys and values of one model's numbers of heads."""

    def __init__(self, draw: Draw, *, heads: int, kv_heads: int, size: int, value_size: int) -> None:
        self._draw = draw
        self._forms = ((heads, size), (kv_heads, size), (kv_heads, value_size))

    def drawn(self, batch: int, queries: int, keys: int, *, q_scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
        """Laid out as projections leave them: (B, S, H, D) in memory."""
        lengths, scales = (queries, keys, keys), (q_scale, 1.0, 1.0)
        q, k, v = (
            self._draw.made(self._draw.normal(batch, length, *form) * scale).transpose(1, 2)
            for form, length, scale in zip(self._forms, lengths, scales, strict=True)
        )
        return q, k, v

    def contiguous(self, batch: int, queries: int, keys: int) -> tuple[Tensor, Tensor, Tensor]:
        """Laid out as their shapes say."""
        q, k, v = (item.contiguous() for item in self.drawn(batch, queries, keys))
        return q, k, v

    def of_a_cache(self, batch: int, queries: int, keys: int, room: int) -> tuple[Tensor, Tensor, Tensor]:
        """Keys and values are the first of a buffer with more room."""
        q, k, v = self.contiguous(batch, queries, room)
        return q, k[:, :, :keys], v[:, :, :keys]

    def with_equal_keys(self, batch: int, queries: int, keys: int) -> tuple[Tensor, Tensor, Tensor]:
        """Every key is seen alike."""
        q, k, v = self.drawn(batch, queries, keys)
        return q, k[:, :, :1].expand_as(k).contiguous(), v


def _left_padding(length: int, device: torch.device) -> Tensor:
    """Two rows of which the second begins after three places of padding; padding sees itself.

    Shapes:
        -> (2, 1, S, S), boolean.
    """
    causal = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    is_token = torch.ones(2, 1, 1, length, dtype=torch.bool, device=device)
    is_token[1, ..., :3] = False
    return (causal & is_token) | torch.eye(length, dtype=torch.bool, device=device)


def _blind(queries: int, keys: int, device: torch.device) -> Tensor:
    mask = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=device)
    mask[:, :, 1] = False
    return mask


def _at_the_start(*call: Any) -> Any:
    """Query i sees keys up to i, however many there are."""
    q, k, v, mask, scale, causal, softcap, window = call
    if not causal:
        return call
    count = min(q.shape[2], k.shape[2])
    kept = None if mask is None else mask[..., :count]
    return q, k[:, :, :count], v[:, :, :count], kept, scale, causal, softcap, window


def _without_diagonal(*call: Any) -> Any:
    """Queries with causality see what is before them, and not themselves; the first has nothing else."""
    q, k, v, _, scale, causal, *rest = call
    if not causal or k.shape[2] < 2:
        return call
    seen = _visible(range(q.shape[2]), q.shape[2], k.shape[2], True, None, q.device)
    places = torch.arange(k.shape[2], device=q.device)
    diagonal = places[None] == (places[:, None] + k.shape[2] - q.shape[2])[: q.shape[2]]
    seen = seen & ~diagonal
    return q, k, v, (seen | ~seen.any(-1, keepdim=True))[None, None], scale, False, *rest


def _softcap_swapped(*call: Any) -> Any:
    *others, softcap, window = call
    return (*others, 1.0 if softcap is None else None, window)


def _without_last_key(*call: Any) -> Any:
    q, k, v, mask, scale, causal, *rest = call
    if k.shape[2] < 2 or causal:
        return call
    return q, k[:, :, :-1], v[:, :, :-1], None if mask is None else mask[..., :-1], scale, causal, *rest


PLUGIN = Attention()
