"""Experts of a mixture, each a SwiGLU: (x, indices, weights, gate_up, down) -> y."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from e2e.ops._inputs import Draw, name_of
from e2e.ops._mistakes import without_last_row
from e2e.ops._sites import standing_in
from e2e.protocols import OpCall, Site

PARAMETERS = ("gate_up_proj", "down_proj")
"""Where Transformers' expert modules keep all experts' weights."""
_FORM: Mapping[str, tuple[bool, str]] = {
    "has_gate": (True, "its experts have no gate"),
    "has_bias": (False, "its experts have biases"),
    "is_transposed": (False, "it keeps its weights transposed"),
    "is_concatenated": (True, "gate and up are interleaved in its weights"),
    "has_post_expert_norm": (False, "it normalises what its experts give"),
    "_is_expert_parallel": (False, "its experts are spread over devices"),
}
"""What those modules declare of themselves: the value that this op stands for, and what the other one means."""
MOST_GATHERED = 2**32
"""Elements of weights that `batched_mm` may copy: it takes every chosen expert's once per token."""


class MoeExperts:
    """y = sum over a token's chosen experts e of weights[e] * down[e] (silu(gate) * up), gate and up = gate_up[e] x.

    Rows of `gate_up[e]` are those of the gate, then those of up. A token's indices differ from each other.

    Shapes:
        x (T, H), indices (T, K) of whole numbers below E, weights (T, K) in x's dtype or float32,
        gate_up (E, 2 I, H), down (E, H, I) -> y (T, H), in x's dtype.

    Source:
        Jiang et al. 2024, arXiv:2401.04088; MixtralExperts in transformers, and its other ways in integrations/moe.py.
    """

    name = "moe_experts"
    tensor_names = ("x", "indices", "weights", "gate_up", "down")
    read_in_part = ("gate_up", "down")
    parameter_names = ("gate_up", "down")
    scalar_names: tuple[str, ...] = ()
    schema = "(Tensor x, Tensor indices, Tensor weights, Tensor gate_up, Tensor down) -> Tensor"

    def __init__(self) -> None:
        self.alternatives: Mapping[str, Callable[..., Any]] = {
            "grouped_mm": _grouped,
            "batched_mm": _batched,
            "loop": _loop,
        }

    def find_sites(self, model: nn.Module) -> list[Site]:
        """Modules that declare how their experts lie in memory, as those do that choose among implementations."""
        return [
            Site(fqn, module, {}, _problem_of(module))
            for fqn, module in model.named_modules()
            if hasattr(module, "is_transposed") and "down_proj" in module._parameters
        ]

    def own(self, site: Site) -> Callable[..., Any]:
        """The module's own forward, in the implementation that its config names, with the call's weights."""
        module, forward = site.module, type(site.module).forward

        def original(x: Tensor, indices: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Any:
            if gate_up is module.gate_up_proj and down is module.down_proj:
                return forward(module, x, indices, weights)
            state = dict(zip(PARAMETERS, (gate_up, down), strict=True))
            return forward(standing_in(module, state), x, indices, weights)

        return original

    def forward_with(self, site: Site, function: Callable[..., Any] | None) -> Callable[..., Any]:
        """A forward that hands `function` the routed tokens and the weights of all experts."""
        if function is None:
            own: Callable[..., Any] = type(site.module).forward
            return own

        def forward(self: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Any:
            return function(hidden_states, top_k_index, top_k_weights, self.gate_up_proj, self.down_proj)

        return forward

    def reference(self, x: Tensor, indices: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        """Plain maths in the precision it is given, one expert at a time."""
        return _summed(x, indices, weights, gate_up, down, expert=_swiglu)

    def allocate(self, x: Tensor, *rest: Any) -> Tensor:
        """An uninitialised y; contiguous, however x lies."""
        return x.new_empty(x.shape)

    def dims(self, call: OpCall) -> dict[str, int | str]:
        """`rows` (tokens), `hidden`, `experts`, `chosen` (experts per token), `intermediate`, `dtype`."""
        x, indices, _, gate_up, down = call.tensors
        return {
            "rows": int(x.shape[0]),
            "hidden": int(x.shape[1]),
            "experts": int(gate_up.shape[0]),
            "chosen": int(indices.shape[1]),
            "intermediate": int(down.shape[2]),
            "dtype": name_of(x.dtype),
        }

    def example(self, dtype: str, device: str, seed: int) -> OpCall:
        """Eight experts, two of them for each token."""
        draw, hidden, inner, experts = Draw.of(dtype, device, seed), 256, 128, 8
        gate_up = draw.made(draw.normal(experts, 2 * inner, hidden) * hidden**-0.5)
        down = draw.made(draw.normal(experts, hidden, inner) * inner**-0.5)
        return OpCall((draw.made(draw.normal(64, hidden)), *_routed(draw, 64, experts, 2), gate_up, down), ())

    def edge_calls(self, call: OpCall, seed: int) -> Iterable[tuple[str, OpCall]]:
        """Few tokens, experts that nobody or everybody chose, unequal and vanishing weights, rows apart in memory."""
        x, indices, weights, gate_up, down = call.tensors
        (experts, _, hidden), chosen, draw = gate_up.shape, indices.shape[1], Draw(seed, x)

        def edge(tokens: Tensor, index: Tensor, weight: Tensor) -> OpCall:
            return OpCall((tokens, index.to(indices.dtype), weight.to(weights.dtype), gate_up, down), ())

        def tokens(count: int, scale: float = 1.0) -> Tensor:
            return draw.made(draw.normal(count, hidden) * scale)

        yield "one token", edge(tokens(1), *_routed(draw, 1, experts, chosen))
        yield "thirteen tokens", edge(tokens(13), *_routed(draw, 13, experts, chosen))
        index, weight = _routed(draw, 7, experts, chosen)
        yield "all tokens choose alike", edge(tokens(7), index[:1].repeat(7, 1), weight)
        least = torch.arange(chosen, device=x.device).repeat(5, 1)
        yield "the last experts are not chosen", edge(tokens(5), least, _routed(draw, 5, experts, chosen)[1])
        index, weight = _routed(draw, 9, experts, chosen)
        yield "weights that do not add up to one", edge(tokens(9), index, 3 * weight)
        index, weight = _routed(draw, 6, experts, chosen)
        unequal = weight.clone()
        unequal[:, -1:] = 0
        yield "a weight of zero", edge(tokens(6), index, unequal)
        yield "large values", edge(tokens(5, 8.0), *_routed(draw, 5, experts, chosen))
        yield "zeros", edge(tokens(3) * 0, *_routed(draw, 3, experts, chosen))
        wide = draw.made(draw.normal(8, 2 * hidden))
        yield "rows apart in memory", edge(wide[:, :hidden], *_routed(draw, 8, experts, chosen))

    def mutants(self) -> Mapping[str, Callable[..., Any]]:
        """Wrong mixtures, one mistake each."""

        def wrong(change: Callable[..., tuple[Tensor, ...]], expert: Callable[..., Tensor] = _swiglu) -> Any:
            """Right maths on another call, or with other experts."""

            def mutant(*call: Tensor) -> Tensor:
                wide = (item.double() if item.is_floating_point() else item for item in call)
                return _summed(*change(*wide), expert=expert).to(call[0].dtype)

            return mutant

        def same(*call: Tensor) -> tuple[Tensor, ...]:
            return call

        def spoiled(change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
            return lambda *call: change(wrong(same)(*call))

        return {
            "zeros": lambda x, *rest: torch.zeros_like(x),
            "copy of the input": lambda x, *rest: x.clone(),
            "first choice only": wrong(lambda x, i, w, *rest: (x, i[:, :1], w[:, :1], *rest)),
            "weights ignored": wrong(lambda x, i, w, *rest: (x, i, torch.ones_like(w), *rest)),
            "weights twice": wrong(lambda x, i, w, *rest: (x, i, w * w, *rest)),
            "weights made to add up to one": wrong(lambda x, i, w, *rest: (x, i, w / w.sum(-1, keepdim=True), *rest)),
            "the next expert": wrong(lambda x, i, w, up, down: (x, (i + 1) % up.shape[0], w, up, down)),
            "weights of the neighbouring choice": wrong(lambda x, i, w, *rest: (x, i, w.roll(1, 1), *rest)),
            "gate and up exchanged": wrong(same, lambda x, up, down: _swiglu(x, up.roll(up.shape[0] // 2, 0), down)),
            "gate and up interleaved": wrong(same, lambda x, up, down: _swiglu(x, _parted(up), down)),
            "no activation": wrong(same, lambda x, up, down: linear(_product(x, up, lambda gate: gate), down)),
            "gelu instead": wrong(same, lambda x, up, down: linear(_product(x, up, nn.functional.gelu), down)),
            "an eighth of the channels dropped": wrong(same, _short),
            "last token dropped": spoiled(without_last_row),
            "tokens shifted": wrong(lambda x, *rest: (x.roll(1, 0), *rest)),
        }


def _problem_of(module: nn.Module) -> str | None:
    for name, (wanted, problem) in _FORM.items():
        if getattr(module, name, wanted) != wanted:
            return problem
    missing = [name for name in PARAMETERS if name not in module._parameters]
    if missing:
        return f"it has no {missing[0]}"
    activation = type(getattr(module, "act_fn", None)).__name__
    if "silu" not in activation.lower():
        return f"its activation is {activation}; moe_experts has SiLU"
    return None


def _product(x: Tensor, gate_up: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
    gate, up = linear(x, gate_up).chunk(2, dim=-1)
    return activation(gate) * up


def _swiglu(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """One expert.

    Shapes:
        x (N, H), gate_up (2 I, H), down (H, I) -> (N, H).
    """
    return linear(_product(x, gate_up, silu), down)


def _short(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    kept = down.shape[1] * 7 // 8
    return linear(_product(x, gate_up, silu)[:, :kept], down[:, :kept])


def _parted(gate_up: Tensor) -> Tensor:
    return torch.cat([gate_up[::2], gate_up[1::2]])


def _summed(
    x: Tensor, indices: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, *, expert: Callable[..., Tensor]
) -> Tensor:
    """Every expert on its tokens; a token's terms are added in the precision of its weights."""
    y = torch.zeros(x.shape, dtype=torch.promote_types(x.dtype, weights.dtype), device=x.device)
    for number in range(gate_up.shape[0]):
        token, choice = torch.where(indices == number)
        if token.numel():
            y = y.index_add(0, token, expert(x[token], gate_up[number], down[number]) * weights[token, choice, None])
    return y.to(x.dtype)


def _loop(x: Tensor, indices: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    return _summed(x, indices, weights, gate_up, down, expert=_swiglu)


def _grouped(x: Tensor, indices: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    if x.dtype == torch.float64:
        raise NotImplementedError("torch has no grouped_mm in float64")
    y: Tensor = _as_transformers("grouped_mm")(x, indices, weights, gate_up, down)
    return y


def _batched(x: Tensor, indices: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    count = indices.numel() * gate_up[0].numel()
    if count > MOST_GATHERED:
        raise NotImplementedError(f"batched_mm would copy {count:,} weights, one expert's for every token and choice")
    y: Tensor = _as_transformers("batched_mm")(x, indices, weights, gate_up, down)
    return y


def _as_transformers(implementation: str) -> Callable[..., Any]:
    """One of the ways in which Transformers computes expert modules, whatever the model's config chose."""
    function = ALL_EXPERTS_FUNCTIONS[implementation]

    def experts(x: Tensor, indices: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Any:
        return function(_Experts(gate_up, down), x, indices, weights)

    return experts


class _Experts:
    """What those functions read of an expert module; a compiler can follow its making."""

    has_gate, is_concatenated = True, True
    has_bias, is_transposed, has_post_expert_norm, _is_expert_parallel = False, False, False, False

    def __init__(self, gate_up: Tensor, down: Tensor) -> None:
        self.gate_up_proj, self.down_proj = gate_up, down
        self.num_experts = gate_up.shape[0]

    def _apply_gate(self, both: Tensor) -> Tensor:
        gate, up = both.chunk(2, dim=-1)
        return silu(gate) * up


def _routed(draw: Draw, tokens: int, experts: int, chosen: int) -> tuple[Tensor, Tensor]:
    """Different experts for each token, and weights that add up to one."""
    scores = draw.normal(tokens, experts)
    top, index = scores.topk(chosen, dim=-1)
    weights = draw.made(top.softmax(-1))
    return index.to(weights.device), weights


PLUGIN = MoeExperts()
