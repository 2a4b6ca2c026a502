"""The way that the loss takes in training, beside ways of the baseline that only round otherwise (METHOD.md B3.9).

Rounding grows along a path, so that no fixed tolerance fits. What legal changes do to the baseline's own path on the
same data says how far from it a right kernel may end up.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from e2e.numerics.envelope import other_attention
from e2e.protocols import TrainingSession
from e2e.schema.words import ReasonCode
from e2e.schema.workload import TrainSpec
from e2e.trainer import Trainer

ENVELOPE = 1.5
"""A path may be this many times as far from the baseline's as the furthest perturbed one. Source: METHOD.md B3.9."""
FLOOR = 8 * 2.0**-23
"""Of the loss, which is a float32: distances that its own rounding explains."""
LATE, BIAS = 0.2, 0.005
"""Share of the path at its end, and of the loss, by which a path may lie above or below there on average."""
_RATES = {"sgd": 1e-2, "adamw": 1e-4}
"""Learning rates at which a few steps lead somewhere; AdamW's is that of Liger's convergence tests in float32."""
_COARSER = 0.1
"""Of them, in a dtype of 16 bits."""


def ways(session: TrainingSession) -> dict[str, TrainSpec]:
    """The optimizers, by name: each as the workload sets it, at the rate of these paths."""
    share = 1.0 if session.cell.dtype == "float32" else _COARSER
    plain = {"momentum": 0.0, "weight_decay": 0.0}
    return {
        name: session.train.model_copy(
            update={"optimizer": name, "learning_rate": share * rate, **(plain if name == "sgd" else {})}
        )
        for name, rate in _RATES.items()
    }


def walked(session: TrainingSession, made: Callable[[], nn.Module], *, seed: int, steps: int) -> dict[str, Tensor]:
    """Losses of so many steps with every optimizer; `made` gives a model of its own each time.

    Shapes:
        -> (steps,), float32, each.
    """
    return {name: _path(session, made(), train, seed=seed, steps=steps) for name, train in ways(session).items()}


def _path(
    session: TrainingSession, model: nn.Module, train: TrainSpec, *, seed: int, steps: int, is_split: bool = False
) -> Tensor:
    program, trainer, losses = session.program(model.train()), Trainer(model, model, train), []
    for step in range(steps):
        batch = session.batch(seed + step)
        rows = tuple(row for part in batch for row in part.split(1)) if is_split else batch
        losses.append(trainer.advance(program, rows).float())
    return torch.stack(losses)


def perturbed(session: TrainingSession, *, seed: int, steps: int) -> dict[str, list[Tensor]]:
    """The baseline's own paths with legal changes, by optimizer: rounded weights, row by row, other attention."""
    found: dict[str, list[Tensor]] = {}
    for name, train in ways(session).items():
        for model, is_split in _changed(session.model, seed, has_rows=session.cell.batch > 1):
            path = _path(session, model, train, seed=seed, steps=steps, is_split=is_split)
            found.setdefault(name, []).append(path)
    return found


def _changed(model: nn.Module, seed: int, *, has_rows: bool) -> Iterator[tuple[nn.Module, bool]]:
    for draw in (1, 2):
        yield _jittered(model, seed + draw), False
    if has_rows:
        yield copy.deepcopy(model), True
    name = other_attention(model)
    if name is not None:
        other: Any = copy.deepcopy(model)
        other.set_attn_implementation(name)
        yield other, False


def _jittered(model: nn.Module, seed: int) -> nn.Module:
    """Every weight to the next number of its dtype, up or down."""
    changed = copy.deepcopy(model)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for item in changed.parameters():
            way = (torch.randint(0, 2, item.shape, generator=draw) * 2 - 1).to(item)
            item.mul_(1 + way * torch.finfo(item.dtype).eps)
    return changed


def judged(
    own: Mapping[str, Tensor], others: Mapping[str, list[Tensor]], theirs: Mapping[str, Tensor]
) -> list[dict[str, Any]]:
    """Fields of a LossPath for every optimizer: how far the candidate's path is, and how far it may be."""
    return [_row(name, own[name], others[name], theirs.get(name)) for name in own]


def _row(name: str, own: Tensor, others: list[Tensor], theirs: Tensor | None) -> dict[str, Any]:
    size, late = float(own.abs().max()), max(1, round(LATE * own.numel()))
    envelope = max(float((other - own).abs().max()) for other in others)
    sway = max(abs(float((other - own)[-late:].mean())) for other in others)
    row: dict[str, Any] = {
        "optimizer": name,
        "steps": own.numel(),
        "loss_first": float(own[0]),
        "loss_last": float(own[-1]),
        "losses": own.tolist(),
        "envelope": envelope,
        "allowed": ENVELOPE * envelope + FLOOR * size,
        "bias_allowed": ENVELOPE * sway + max(FLOOR * size, BIAS * abs(float(own[-late:].mean()))),
    }
    if theirs is None or theirs.shape != own.shape:
        return {**row, "code": ReasonCode.WRONG_OUTPUT_LAYOUT}
    row["losses_candidate"] = [value if math.isfinite(value) else None for value in theirs.tolist()]
    if not bool(torch.isfinite(theirs).all()):
        return {**row, "code": ReasonCode.NONFINITE_OUTPUT}
    apart, bias = float((theirs - own).abs().max()), float((theirs - own)[-late:].mean())
    is_wrong = apart > row["allowed"] or abs(bias) > row["bias_allowed"]
    return {**row, "apart": apart, "bias": bias, "code": ReasonCode.LOSS_PATH_LEFT if is_wrong else None}
