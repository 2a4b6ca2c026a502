"""The clean side of a declared lossy kernel: what the policy's budget for a model's outputs would catch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from e2e.numerics.compare import distance_of
from e2e.patch import Occurrence, Patch, copy_sharing_weights, disjoint, sites_in
from e2e.protocols import Batch, Op, Session, Site, outputs_of

NORMAL = 1.96
"""Standard errors to the upper 97.5 % bound of a mean. Source: METHOD.md B3.6."""

Spoiling = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Surprise:
    """How much less likely the true next tokens are than with the baseline, nats per token."""

    difference: float
    lower: float
    """Lower 97.5 % bound."""
    upper: float
    """Upper 97.5 % bound."""


def surprise(value: Tensor, baseline: Tensor, labels: Tensor) -> Surprise | None:
    """The paired difference of negative log-likelihoods; None where no row has a next token.

    Shapes:
        value, baseline (answers, V), labels (answers,), -1 where there is none.
    """
    known = labels >= 0
    if int(known.sum()) < 2:
        return None
    differences = _unlikelihood(value[known], labels[known]) - _unlikelihood(baseline[known], labels[known])
    mean, error = float(differences.mean()), float(differences.std() / differences.numel() ** 0.5)
    return Surprise(mean, mean - NORMAL * error, mean + NORMAL * error)


def labels_of(session: Session, calls: Sequence[Batch]) -> Tensor | None:
    """What the session says should have been answered, call after call; None where it does not know.

    Shapes:
        -> (answers,).
    """
    found = [session.labels(*inputs) for inputs in calls]
    known = [labels.reshape(-1) for labels in found if labels is not None]
    return torch.cat(known) if known and len(known) == len(found) else None


def _unlikelihood(logits: Tensor, labels: Tensor) -> Tensor:
    """In slices, so that a large vocabulary fits."""
    step = max(1, 2**26 // logits.shape[-1])
    parts = zip(logits.split(step), labels.split(step), strict=True)
    return torch.cat([torch.nn.functional.cross_entropy(x.double(), y, reduction="none") for x, y in parts])


def gross_errors(
    session: Session, occurrences: Sequence[Occurrence], inputs: Batch, reference: Tensor, baseline: Tensor
) -> list[dict[str, Any]]:
    """What the model's outputs make of kernels that are plainly wrong at those sites, on one call of the exam.

    Shapes:
        reference, baseline (answers, V), that call's first.
    """
    rows, labels, own = [], labels_of(session, [inputs]), None
    is_distribution = session.answer.is_distribution
    for name, spoil in _SPOILINGS.items():
        model = copy_sharing_weights(session.model)
        for op, sites in disjoint(occurrences):
            Patch(op, sites_in(model, sites), partial(_spoiled, op, spoil))
        value = session.answers(model, *inputs)
        value = value.reshape(-1, value.shape[-1])
        count = value.shape[0]
        own = own or distance_of(baseline[:count], reference[:count], is_distribution=is_distribution)
        found = surprise(value, baseline[:count], labels) if labels is not None else None
        kl = distance_of(value, reference[:count], is_distribution=is_distribution).kl
        is_finite = bool(value.isfinite().all())
        rows.append(
            {
                "name": name,
                "kl_added": kl - own.kl if is_finite and kl is not None and own.kl is not None else None,
                "nll_upper": found.upper if found is not None and is_finite else None,
            }
        )
    return rows


def _spoiled(op: Op, spoil: Spoiling, site: Site) -> Callable[..., Any]:
    own = op.own(site)

    def function(*call: Any) -> Any:
        made = own(*call)
        outputs = tuple(spoil(item) if item.is_floating_point() else item for item in outputs_of(made))
        return outputs if isinstance(made, tuple | list) else outputs[0]

    return function


_SPOILINGS: Mapping[str, Spoiling] = {
    "zeros": torch.zeros_like,
    "the mean of the output": lambda y: torch.zeros_like(y) + y.float().mean().to(y.dtype),
    "the sign lost": lambda y: y.abs(),
    "neighbouring rows swapped": lambda y: y.reshape(-1, y.shape[-1]).roll(1, 0).reshape(y.shape),
}
