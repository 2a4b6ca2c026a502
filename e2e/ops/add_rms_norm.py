"""A residual's sum and its norm in one: (x, residual, weight, eps) -> (y, residual_out)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from e2e.ops._inputs import Draw, name_of
from e2e.ops._sites import names_in, standing_in
from e2e.ops.rms_norm import RmsNorm
from e2e.protocols import OpCall, Site

LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
"""Children of a decoder layer as Llama has it: norm, attention, sum, norm, feed-forward, sum."""
NORM = "post_attention_layernorm"
"""The norm that follows a sum inside its layer."""
Pair = tuple[Tensor, Tensor]
_NORM = RmsNorm()


class AddRmsNorm:
    """residual_out = residual + x; y = residual_out / sqrt(mean(residual_out^2) + eps) * weight.

    Shapes:
        x, residual (..., H), weight (H,) -> y, residual_out (..., H); one dtype.

    Source:
        Zhang and Sennrich 2019, arXiv:1910.07467; LlamaDecoderLayer in transformers.
    """

    name = "add_rms_norm"
    tensor_names = ("x", "residual", "weight")
    parameter_names = ("weight",)
    scalar_names = ("eps",)
    schema = "(Tensor x, Tensor residual, Tensor weight, float eps) -> (Tensor, Tensor)"

    def __init__(self) -> None:
        self.alternatives: Mapping[str, Callable[..., Any]] = {"F.rms_norm": _torch_add_rms_norm}

    def find_sites(self, model: nn.Module) -> list[Site]:
        """Decoder layers built like Llama's, whose norms are RMS norms.

        Their forward is written anew here, so the conformance check has to find that it gives the same bits.
        """
        return [
            Site(fqn, module, norm.scalars, norm.incompatible or _problem_of(module))
            for fqn, module in model.named_modules()
            if {name for name, _ in module.named_children()} == LAYER and (norm := _norm_of(module)) is not None
        ]

    def own(self, site: Site) -> Callable[..., Any]:
        """A sum, and the layer's own norm with the call's weight."""
        norm: nn.Module = getattr(site.module, NORM)
        forward = type(norm).forward

        def original(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Pair:
            total = residual + x
            mine = norm if weight is norm.weight else standing_in(norm, {"weight": weight})
            return forward(mine, total), total

        return original

    def forward_with(self, site: Site, function: Callable[..., Any] | None) -> Callable[..., Any]:
        """The layer with `function` between attention and feed-forward."""
        if function is None:
            own: Callable[..., Any] = type(site.module).forward
            return own
        eps = site.scalars["eps"]

        def forward(self: nn.Module, hidden_states: Tensor, **named: Any) -> Tensor:
            attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **named)
            y, residual = function(attended, hidden_states, self.post_attention_layernorm.weight, eps)
            output: Tensor = residual + self.mlp(y)
            return output

        return forward

    def reference(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Pair:
        """Plain maths in the precision it is given."""
        total = residual + x
        return _NORM.reference(total, weight, eps), total

    def allocate(self, x: Tensor, residual: Tensor, *rest: Any) -> Pair:
        """An uninitialised y and sum."""
        return torch.empty_like(x), torch.empty_like(x)

    def dims(self, call: OpCall) -> dict[str, int | str]:
        """`rows` (product of the leading dimensions), `hidden`, `dtype`."""
        x = call.tensors[0]
        hidden = int(x.shape[-1])
        return {"rows": x.numel() // max(1, hidden), "hidden": hidden, "dtype": name_of(x.dtype)}

    def example(self, dtype: str, device: str, seed: int) -> OpCall:
        """The norm's, with a residual."""
        norm = _NORM.example(dtype, device, seed)
        return self._with_residual(norm, Draw.of(dtype, device, seed + 1))

    def variants(self, dtype: str, device: str, seed: int) -> Iterable[tuple[str, OpCall]]:
        """The norm's, each with a residual."""
        for label, norm in _NORM.variants(dtype, device, seed):
            yield label, self._with_residual(norm, Draw.of(dtype, device, seed + 1))

    def edge_calls(self, call: OpCall, seed: int) -> Iterable[tuple[str, OpCall]]:
        """Those of the norm, each with a residual; a residual that outweighs, and one that cancels."""
        x, _, weight = call.tensors
        draw = Draw(seed + 1, x)
        for label, norm in _NORM.edge_calls(OpCall((x, weight), call.scalars), seed):
            yield label, self._with_residual(norm, draw)
        rows = draw.normal(2, 5, x.shape[-1])
        yield "a residual that outweighs", OpCall((draw.made(rows[0]), draw.made(30 * rows[1]), weight), call.scalars)
        most = draw.made(rows[0])
        yield "a residual that cancels", OpCall((most, -most, weight), call.scalars)

    def _with_residual(self, norm: OpCall, draw: Draw) -> OpCall:
        """A residual as large as x: a larger one would hide what x's size was chosen to show."""
        x, weight = norm.tensors
        size = float(x.double().pow(2).mean().sqrt()) if x.numel() else 0.0
        residual = torch.empty_like(x).copy_(draw.made(draw.normal(*x.shape) * size))
        return OpCall((x, residual, weight), norm.scalars)

    def mutants(self) -> Mapping[str, Callable[..., Any]]:
        """The norm's own mistakes after a right sum, and those of the sum."""

        def mistaken(norm: Callable[..., Any]) -> Callable[..., Any]:
            return lambda x, residual, weight, eps: (norm(residual + x, weight, eps), residual + x)

        def wrong(change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Callable[..., Any]:
            """What is normalised, and what is handed on."""

            def mutant(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Pair:
                normalised, total = change(x.double(), residual.double())
                y = _NORM.reference(normalised, weight.double(), eps)
                return y.to(x.dtype), total.to(x.dtype)

            return mutant

        return {
            **{name: mistaken(norm) for name, norm in _NORM.mutants().items()},
            "residual not added": wrong(lambda x, r: (x, x)),
            "residual added after the norm only": wrong(lambda x, r: (x, x + r)),
            "residual handed on without x": wrong(lambda x, r: (x + r, r)),
            "residual subtracted": wrong(lambda x, r: (r - x, r - x)),
            "residual added twice": wrong(lambda x, r: (x + 2 * r, x + 2 * r)),
            "the norm handed on": lambda *call: (self._exact(*call), self._exact(*call)),
        }

    def _exact(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        return _NORM.reference(residual.double() + x.double(), weight.double(), eps).to(x.dtype)


def _norm_of(layer: nn.Module) -> Site | None:
    return next((site for site in _NORM.find_sites(layer) if site.fqn == NORM), None)


def _problem_of(layer: nn.Module) -> str | None:
    """What Llama's forward does not use, and so the one that is written here does not: factors, other norms."""
    also = sorted(name for name in names_in(layer) if name not in LAYER and hasattr(layer, name))
    return f"its forward also uses {', '.join(also)}" if also else None


def _torch_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Pair:
    total = residual + x
    return nn.functional.rms_norm(total, (total.shape[-1],), weight, eps), total


PLUGIN = AddRmsNorm()
