"""The model's answers where a kernel may not take for granted what the step's own calls have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from e2e.numerics.compare import distance_of, floor_of
from e2e.numerics.places import MUCH
from e2e.protocols import Batch, Session
from e2e.schema.words import ReasonCode

Condition = tuple[str, Batch]


def conditions_of(session: Session, seed: int) -> Sequence[Condition]:
    """Those that the task knows of: none for most."""
    known: Any = getattr(session, "conditions", None)
    return known(seed) if known is not None else ()


def name_of(place: int) -> str:
    """Of the answers under a condition, in the candidate's file."""
    return f"condition.{place}"


def judged(name: str, value: Tensor | None, baseline: Tensor, reference: Tensor, *, ratio: float) -> dict[str, Any]:
    """Fields of a ConditionCheck, by the rule of the model's outputs.

    Shapes:
        (rows, S, V) each, zeros in the reference where nothing is compared.
    """
    exact, own = _flat(reference), _flat(baseline)
    answers = int(exact.ne(0).any(-1).sum())
    error = distance_of(own, exact, answers=answers, is_distribution=False).error
    allowed = ratio * error + floor_of(baseline.dtype)
    row = {"name": name, "tokens": answers, "error_baseline": error, "allowed": allowed}
    if value is None:
        return {**row, "status": "declined"}
    if value.shape != baseline.shape or value.dtype != baseline.dtype:
        return {**row, "status": "wrong", "code": ReasonCode.WRONG_OUTPUT_LAYOUT}
    if not bool(value.isfinite().all()):
        first: list[int] | None = _first((~value.isfinite()).any(-1))
        return {**row, "status": "wrong", "code": ReasonCode.NONFINITE_OUTPUT, "first": first}
    found = distance_of(_flat(value), exact, answers=answers, is_distribution=False).error
    if found <= allowed:
        return {**row, "status": "passed", "error_candidate": found}
    far = (value.double() - reference.double()).norm(dim=-1) > MUCH * allowed * _usual(reference)
    first = _first(far) if bool(far.any()) else None
    return {
        **{**row, "status": "wrong", "code": ReasonCode.MODEL_ERROR_EXCEEDED},
        **{"error_candidate": found, "first": first},
    }


def _flat(answers: Tensor) -> Tensor:
    return answers.reshape(-1, answers.shape[-1])


def _usual(reference: Tensor) -> float:
    """Size of an answer."""
    sizes = _flat(reference).double().norm(dim=-1)
    return float(sizes[sizes > 0].square().mean().sqrt())


def _first(marks: Tensor) -> list[int]:
    """Row and place of the first that is marked."""
    place = int(marks.reshape(-1).to(torch.uint8).argmax())
    return list(map(int, torch.unravel_index(torch.tensor(place), marks.shape)))
