"""act(gate) * up: one class per activation; the structures in which Transformers writes it are read here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from e2e.ops._inputs import Draw, name_of
from e2e.ops._mistakes import without_last_column, without_last_row
from e2e.protocols import OpCall, Site

_PAIRED = ("gate_proj", "up_proj", "down_proj")
"""Two projections and one back: Llama and most others."""
_T5 = ("wi_0", "wi_1", "dropout", "wo")
_FUSED = ("gate_up_proj", "down_proj")
"""One projection whose halves are gate and up: Phi-3."""
_MODERNBERT = ("Wi", "Wo", "drop")
_ACTIVATIONS = ("act_fn", "activation_fn", "act")


class Gated:
    """y = act(gate) * up, elementwise.

    Shapes:
        gate, up (..., F) -> (..., F); one dtype.
    """

    tensor_names = ("gate", "up")
    scalar_names: tuple[str, ...] = ()
    schema = "(Tensor gate, Tensor up) -> Tensor"
    alternatives: Mapping[str, Callable[..., Any]] = {}

    def problem_of(self, activation: Any) -> str | None:
        """Why that activation is not this op's; None when it is. A module of another kind is no site at all."""
        raise NotImplementedError

    def is_kin(self, activation: Any) -> bool:
        """Whether the activation is of this op's kind, so that its owner is a site."""
        raise NotImplementedError

    def act(self, gate: Tensor) -> Tensor:
        """The activation in plain maths."""
        raise NotImplementedError

    def find_sites(self, model: nn.Module) -> list[Site]:
        """Feed-forward modules with two projections (or one of double width), one back, and this activation between.

        What is read off the structure is put to the test: with its own code in the kernel's place, the module has to
        give what it gives (see numerics.conformance).
        """
        sites = []
        for fqn, module in model.named_modules():
            activation = _activation(module)
            if activation is not None and _structure(module) is not None and self.is_kin(activation):
                sites.append(Site(fqn, module, {}, self.problem_of(activation)))
        return sites

    def own(self, site: Site) -> Callable[..., Any]:
        """The module's activation, and the product."""
        activation = _activation(site.module)

        def original(gate: Tensor, up: Tensor) -> Tensor:
            product: Tensor = activation(gate) * up
            return product

        return original

    def forward_with(self, site: Site, function: Callable[..., Any] | None) -> Callable[..., Any]:
        """The module's forward with `function(gate, up)` between its projections."""
        if function is None:
            own: Callable[..., Any] = type(site.module).forward
            return own
        return _forward(site.module, function)

    def reference(self, gate: Tensor, up: Tensor) -> Tensor:
        """Plain maths in the precision it is given."""
        return self.act(gate) * up

    def allocate(self, gate: Tensor, up: Tensor) -> Tensor:
        """An uninitialised y, as a product of the two lies in memory."""
        return torch.empty_like(gate)

    def dims(self, call: OpCall) -> dict[str, int | str]:
        """`rows` (product of the leading dimensions), `hidden` (the last), `dtype`."""
        gate = call.tensors[0]
        hidden = int(gate.shape[-1])
        return {"rows": gate.numel() // max(1, hidden), "hidden": hidden, "dtype": name_of(gate.dtype)}

    def example(self, dtype: str, device: str, seed: int) -> OpCall:
        """Two projections of a model's width."""
        draw = Draw.of(dtype, device, seed)
        return OpCall((draw.made(draw.normal(4, 64, 1024)), draw.made(draw.normal(4, 64, 1024))), ())

    def edge_calls(self, call: OpCall, seed: int) -> Iterable[tuple[str, OpCall]]:
        """Both tails of the activation, its bend, few rows, and halves of one projection (not contiguous)."""
        gate = call.tensors[0]
        hidden, draw = gate.shape[-1], Draw(seed, gate)

        def pair(rows: int, scale: float = 1.0, shift: float = 0.0) -> tuple[Tensor, Tensor]:
            return draw.made(draw.normal(rows, hidden) * scale + shift), draw.made(draw.normal(rows, hidden))

        yield "random values", OpCall(pair(5), ())
        yield "one row", OpCall(pair(1), ())
        yield "near the bend", OpCall(pair(4, 0.3), ())
        yield "far out on both sides", OpCall(pair(4, 6.0), ())
        yield "large and positive", OpCall(pair(3, 1.0, 40.0), ())
        yield "zeros", OpCall((draw.made(draw.normal(2, hidden) * 0), pair(2)[1]), ())
        yield "no rows", OpCall(pair(0), ())
        halves = draw.made(draw.normal(3, 2 * hidden)).chunk(2, dim=-1)
        yield "halves of one projection", OpCall((halves[0], halves[1]), ())

    def mutants(self) -> Mapping[str, Callable[..., Any]]:
        """Wrong products, one mistake each."""

        def wrong(change: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Any]:
            return lambda gate, up: change(gate.double(), up.double()).to(gate.dtype)

        return {
            "zeros": lambda gate, up: torch.zeros_like(gate),
            "copy of the gate": lambda gate, up: gate.clone(),
            "no activation": wrong(lambda gate, up: gate * up),
            "activation of the other": wrong(lambda gate, up: gate * self.act(up)),
            "relu instead": wrong(lambda gate, up: gate.relu() * up),
            "sigmoid instead": wrong(lambda gate, up: gate.sigmoid() * up),
            "activation twice": wrong(lambda gate, up: self.act(self.act(gate)) * up),
            "not multiplied": wrong(lambda gate, up: self.act(gate)),
            "added": wrong(lambda gate, up: self.act(gate) + up),
            "last column dropped": wrong(lambda gate, up: without_last_column(self.act(gate) * up)),
            "last row dropped": wrong(lambda gate, up: without_last_row(self.act(gate) * up)),
        }


def _activation(module: nn.Module) -> Any:
    return next((getattr(module, name) for name in _ACTIVATIONS if callable(getattr(module, name, None))), None)


def _structure(module: nn.Module) -> tuple[str, ...] | None:
    children = {name for name, _ in module.named_children()}
    return next((names for names in (_PAIRED, _T5, _FUSED, _MODERNBERT) if children.issuperset(names)), None)


def _forward(module: nn.Module, function: Callable[..., Any]) -> Callable[..., Any]:
    if _structure(module) == _FUSED:

        def fused(self: nn.Module, hidden_states: Tensor) -> Any:
            gate, up = self.gate_up_proj(hidden_states).chunk(2, dim=-1)
            return self.down_proj(function(gate, up))

        return fused
    if _structure(module) == _T5:

        def t5(self: nn.Module, hidden_states: Tensor) -> Any:
            product = self.dropout(function(self.wi_0(hidden_states), self.wi_1(hidden_states)))
            return self.wo(product.to(self.wo.weight.dtype))  # which half-precision models keep in float32

        return t5
    if _structure(module) == _MODERNBERT:

        def modernbert(self: nn.Module, hidden_states: Tensor) -> Any:
            gate, up = self.Wi(hidden_states).chunk(2, dim=-1)
            return self.Wo(self.drop(function(gate, up)))

        return modernbert

    def paired(self: nn.Module, x: Tensor) -> Any:
        return self.down_proj(function(self.gate_proj(x), self.up_proj(x)))

    return paired
