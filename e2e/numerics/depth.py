"""Hidden states, layer by layer: where in a model an error comes in, and whether it grows (METHOD.md B3.10)."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from e2e.protocols import Batch

POSITIONS = 128
"""Places of all rows together whose states are kept: of a model of eight billion parameters 67 MB."""


@dataclass(frozen=True)
class Look:
    """Which hidden states are kept."""

    layers: Sequence[str] = ()
    """Names of modules."""
    positions: int = 0
    """Places of every row, evenly spaced."""

    @classmethod
    def into(cls, model: nn.Module, calls: Sequence[Batch]) -> Look:
        """The model's rows of like layers, at a few places of every row of those calls."""
        rows = sum(int(inputs[0].shape[0]) for inputs in calls)
        return cls(layers_of(model), max(1, POSITIONS // max(1, rows)))

    def on(self, model: nn.Module, answer: Callable[[], Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """An answer, and what the layers of that model leave on the way to it: of those that it has, row by row.

        Shapes:
            (B, ...); (B, places, H) each, where what has no places has one.
        """
        with self._at(model) as states:
            found = answer()
        return found, {name: state for name, state in states.items() if len(state) == len(found)}

    @contextlib.contextmanager
    def _at(self, model: nn.Module) -> Iterator[dict[str, Tensor]]:
        found: dict[str, Tensor] = {}
        modules = dict(model.named_modules())

        def keep(name: str) -> Any:
            def hook(module: nn.Module, args: Any, output: Any) -> None:
                state = output[0] if isinstance(output, tuple | list) and output else output
                if isinstance(state, Tensor) and state.is_floating_point() and state.dim() > 1:
                    found[name] = self._some(state.detach())

            return hook

        handles = [modules[name].register_forward_hook(keep(name)) for name in self.layers if name in modules]
        try:
            yield found
        finally:
            for handle in handles:
                handle.remove()

    def _some(self, state: Tensor) -> Tensor:
        state = state.flatten(1, -2) if state.dim() > 2 else state[:, None]
        return state[:, self.places(state.shape[1], state.device)].clone()

    def without_padding(self, states: Mapping[str, Tensor], answers: Tensor) -> dict[str, Tensor]:
        """The states with NaN at places where the answers are zeros, as they are where nothing is compared.

        Shapes:
            states (rows, places, H) each; answers (rows, S, V), or others that say nothing of places.
        """
        if answers.dim() != 3:
            return dict(states)
        at = self.places(answers.shape[1], answers.device)
        is_padding = ~answers.ne(0).any(-1)[:, at, None]
        return {
            layer: state.masked_fill(is_padding, torch.nan) if state.shape[1] == len(at) else state
            for layer, state in states.items()
        }

    def places(self, length: int, device: Any) -> Tensor:
        """Of a row of that length."""
        return torch.linspace(0, length - 1, min(self.positions, length), device=device).round().long()


def layers_of(model: nn.Module) -> list[str]:
    """Names of the modules in its lists of several of one class; lists inside of them are parts of a layer."""
    found: list[str] = []
    lists = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    for name, layers in lists:
        is_inside = any(name.startswith(f"{layer}.") for layer in found)
        if not is_inside and len(layers) > 1 and len({type(layer) for layer in layers}) == 1:
            found += [f"{name}.{place}" for place in range(len(layers))]
    return found


def errors(
    look: Look, value: Mapping[str, Tensor], baseline: Mapping[str, Tensor], reference: Mapping[str, Tensor]
) -> list[dict[str, Any]]:
    """Fields of a LayerError for every layer that the reference has run."""
    return [
        {
            "layer": name,
            "error_candidate": _error(value.get(name), reference[name]),
            "error_baseline": own,
        }
        for name in look.layers
        if name in reference and (own := _error(baseline.get(name), reference[name])) is not None
    ]


def _error(value: Tensor | None, reference: Tensor) -> float | None:
    """Root-mean-square over places of each one's relative error: none outweighs the others.

    None where it is no number. Places where the reference is not finite, such as padding that sees nothing, count not.
    """
    if value is None or value.shape != reference.shape:
        return None
    exact = reference.double().reshape(-1, reference.shape[-1])
    sound = exact.isfinite().all(-1)
    apart = (value.double().reshape(exact.shape) - exact)[sound]
    shares = apart.norm(dim=-1) / exact[sound].norm(dim=-1).clamp_min(1e-30)
    found = float(shares.square().mean().sqrt())
    return found if math.isfinite(found) else None
