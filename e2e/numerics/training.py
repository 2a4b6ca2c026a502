"""Clean side of the training checks: gradients and updates against one precision higher."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from e2e.errors import UsageError
from e2e.numerics.captures import read_outputs
from e2e.numerics.compare import MODE_RATIO, error_of, floor_of
from e2e.numerics.reference import one_higher
from e2e.patch import Occurrence, put_references
from e2e.protocols import written_by
from e2e.schema.words import ReasonCode
from e2e.trainer import GRADIENT, MOVED, Trainer, accumulated

SURELY = 0.05
"""Share of a parameter's elements that move in the baseline, beyond which some have to move in every arm."""
PROBES = 2
"""Training steps, each from the snapshot, on which every arm's mode is compared with the reference."""


def compare(
    session: Any, occurrences: Sequence[Occurrence], baseline: Path, candidate: Path, *, ratio: float, seed: int
) -> dict[str, Any]:
    """The set of parameters with gradients, and the worst parameter's error beside the baseline's own."""
    model = _higher(session, occurrences)
    accumulated(Plain(session, model), session.batch(seed))
    exact = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    own, theirs = load_file(baseline, device=session.device), read_outputs(candidate, session.device)
    return worst_gradient(own, theirs, exact, ratio=ratio)


def _higher(session: Any, occurrences: Sequence[Occurrence]) -> nn.Module:
    """The model one precision higher, with the ops' sites in exact maths; torch's own optimizer is exact there."""
    model = one_higher(session.model, session.cell.dtype)
    put_references(model, [(op, sites) for op, sites in occurrences if not written_by(op)])
    return model


@dataclass(frozen=True)
class TrainingReference:
    """What single training steps leave, by the eager baseline and one precision higher."""

    own: list[dict[str, Tensor]]
    exact: list[dict[str, Tensor]]
    error_baseline: float
    """Relative error of what the eager baseline's steps tell for their fingerprints."""

    @classmethod
    def of(cls, session: Any, occurrences: Sequence[Occurrence], *, seed: int) -> TrainingReference:
        """Run them.

        Raises:
            UsageError: the step draws random numbers, such as for dropout, which every mode draws in its own way.
        """
        _need_no_chance(session, seed)
        found = []
        for model, exact in ((copy.deepcopy(session.model).train(), False), (_higher(session, occurrences), True)):
            program = Plain(session, model) if exact else session.program(model)
            trainer = Trainer(model, copy.deepcopy(model), session.train)
            batches = [session.batch(seed + place) for place in range(PROBES)]
            trainer.step(program, batches[0])
            trainer.restore()
            told = torch.stack([item for batch in batches for item in trainer.step(program, batch)[0][:-1]])
            found.append((told, [trainer.probe(program, batch) for batch in batches]))
        (own_told, own), (exact_told, right) = found
        return cls(own, right, error_of(own_told.reshape(1, -1), exact_told.reshape(1, -1)).total)

    def problem(self, found: Mapping[str, Tensor]) -> str | None:
        """Why an arm in whatever mode is wrong, by what its probes found; None where it is not."""
        for place, (own, exact) in enumerate(zip(self.own, self.exact, strict=True)):
            mark = f"{place}:"
            theirs = {name.removeprefix(mark): item for name, item in found.items() if name.startswith(mark)}
            gradients = [_gradients_of(item) for item in (own, theirs, exact)]
            row = worst_gradient(*gradients, ratio=MODE_RATIO, floors=MODE_RATIO)
            if row["missing"]:
                return f"{len(row['missing'])} parameters get no gradient, such as {row['missing'][0]}"
            if row["code"] is not None:
                error, baseline = row["worst_error_candidate"], row["worst_error_baseline"]
                size = "not finite or of another shape" if error is None else f"error {error:.1e}"
                where = row["worst_parameter"]
                return f"its gradients are wrong: {size} at {where} (eager baseline {baseline:.1e})"
            must = [name for name, share in own.items() if name.startswith(MOVED) and share > SURELY]
            still = [name for name in must if name not in theirs or not bool(theirs[name].any())]
            if still:
                return f"{len(still)} parameters do not move, such as {still[0].removeprefix(MOVED)}"
        return None


class Plain:
    """The loss in the model's own precision, whatever the workload casts to."""

    def __init__(self, session: Any, model: nn.Module) -> None:
        self._session, self._model = session, model

    def __call__(self, part: Tensor) -> tuple[Tensor]:
        return (self._session.loss(self._model, (part,)),)


def _gradients_of(found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(GRADIENT): item for name, item in found.items() if name.startswith(GRADIENT)}


def _need_no_chance(session: Any, seed: int) -> None:
    program, (part, *_) = session.program(copy.deepcopy(session.model).train()), session.batch(seed)
    losses = []
    for draw in (1, 1, 2):
        torch.manual_seed(draw)
        with torch.no_grad():
            losses.append(float(program(part)[0]))
    if losses[0] == losses[1] != losses[2]:
        raise UsageError(
            "this model's training step draws random numbers (dropout), and every mode draws its own, so that arms "
            "cannot be compared; set its dropout to zero, as in --set model.config.attention_dropout=0.0"
        )


def worst_gradient(
    own: Mapping[str, Tensor],
    theirs: Mapping[str, Tensor],
    exact: Mapping[str, Tensor],
    *,
    ratio: float,
    floors: float = 1.0,
) -> dict[str, Any]:
    """Which of the baseline's gradients are missing, and the one that is furthest from exact beside the baseline's.

    Allowed is `ratio` times the baseline's own error and so many `floors` of the dtype.

    Raises:
        UsageError: the baseline's own gradients are not finite.
    """
    missing = sorted(set(own) - set(theirs))
    worst: tuple[float, str, float | None, float] | None = None
    code: ReasonCode | None = None
    for name, mine in own.items():
        if not bool(torch.isfinite(mine).all() and torch.isfinite(exact[name]).all()):
            raise UsageError(f"PyTorch's own gradient of {name} is not finite in {mine.dtype}")
        if name not in theirs:
            continue
        if theirs[name].shape != mine.shape:
            worst, code = (math.inf, name, None, 0.0), ReasonCode.WRONG_OUTPUT_LAYOUT
            break
        base = error_of(_rows(mine), _rows(exact[name])).total
        if not bool(torch.isfinite(theirs[name]).all()):
            worst, code = (math.inf, name, None, base), ReasonCode.NONFINITE_OUTPUT
            break
        found = error_of(_rows(theirs[name]), _rows(exact[name])).total
        if found > ratio * base + floors * floor_of(mine.dtype):
            code = ReasonCode.GRADIENT_ERROR_EXCEEDED
        excess = found / max(base, 1e-30)
        if worst is None or excess > worst[0]:
            worst = (excess, name, found, base)
    code = ReasonCode.GRADIENTS_MISSING if missing else code
    return {
        "missing": missing,
        "worst_parameter": worst[1] if worst else None,
        "worst_error_candidate": worst[2] if worst else None,
        "worst_error_baseline": worst[3] if worst else None,
        "status": "wrong" if code else "passed",
        "code": code,
    }


def _rows(gradient: Tensor) -> Tensor:
    return gradient.reshape(1, -1)
