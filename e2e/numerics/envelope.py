"""What changes that nobody could call wrong do to this model's answers (METHOD.md B3.7).

PyTorch promises the same bits for none of them: another attention backend, another number of rows at once. Whatever
moves the answers no further than they do is no drift.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from e2e.patch import copy_sharing_weights
from e2e.protocols import Batch, Session

MANY = 4
"""Rows of a batch that a row which comes alone is put into."""
SHARE = 1 / 8
"""Of the exam's calls, one at least: ratios of errors need fewer tokens than the exam has."""
AS_IT_IS = "as it is"
RESPLIT = "resplit"
"""Name of a first row's answers among others of a candidate."""
Change = Callable[[Batch], Tensor]
_MEASURES = ("square", "size", "apart", "kl", "same", "answers")
"""Of a row, summed over its answers: squared errors, squares of the reference, squared distances from the baseline,
KL(reference || value), whether the most likely class is the reference's, and how many there are."""


def resplit(session: Session, model: nn.Module, inputs: Batch) -> Tensor:
    """The answers to a call with its rows one by one, or a single row's with others at once.

    Shapes:
        inputs (B, ...) -> (B, ...).
    """
    rows = int(inputs[0].shape[0])
    if rows == 1:
        many = tuple(tensor.expand(MANY, *tensor.shape[1:]).contiguous() for tensor in inputs)
        found: Tensor = session.answers(model, *many)[:1]
        return found
    alone = [tuple(tensor[row : row + 1] for tensor in inputs) for row in range(rows)]
    return torch.cat([session.answers(model, *one) for one in alone])


def resplit_first(session: Session, model: nn.Module, inputs: Batch) -> Tensor:
    """Of `resplit` the first row's.

    Shapes:
        inputs (B, ...) -> (1, ...).
    """
    first = tuple(tensor[:1] for tensor in inputs)
    return resplit(session, model, first) if len(inputs[0]) == 1 else session.answers(model, *first)


def split_words(rows: int) -> str:
    """What `resplit` does to a call of so many rows."""
    return f"in a batch of {MANY}" if rows == 1 else "row by row"


def other_attention(model: nn.Module) -> str | None:
    """Of Transformers' two implementations that need nothing else the one that the model does not use."""
    own = getattr(getattr(model, "config", None), "_attn_implementation", None)
    return {"sdpa": "eager", "eager": "sdpa"}.get(own or "")


def changes(session: Session, rows: int) -> dict[str, Change]:
    """Legal ways to answer a call of so many rows, by name."""
    model = session.model
    found: dict[str, Change] = {
        "once more": lambda inputs: session.answers(model, *inputs),
        split_words(rows): lambda inputs: resplit(session, model, inputs),
    }
    other = other_attention(model)
    if other is not None:
        attending: Any = copy_sharing_weights(model)
        with contextlib.suppress(ValueError):  # not every family has both
            attending.set_attn_implementation(other)
            found[f"attention {other}"] = lambda inputs: session.answers(attending, *inputs)
    return found


def measures(value: Tensor, reference: Tensor, baseline: Tensor, *, is_distribution: bool) -> Tensor:
    """Row by row what `summed` adds up.

    Shapes:
        (B, ..., V) each -> (B, 6), float64.
    """
    flat = (item.double().reshape(item.shape[0], -1, item.shape[-1]) for item in (value, reference, baseline))
    found, exact, own = flat
    is_answer = exact.ne(0).any(-1)
    kl = same = torch.full((len(found),), torch.nan, dtype=torch.float64, device=found.device)
    if is_distribution:
        log_p = exact.log_softmax(-1)
        kl = (log_p.exp() * (log_p - found.log_softmax(-1))).sum(-1).clamp_min(0.0).sum(-1)
        same = ((exact.argmax(-1) == found.argmax(-1)) & is_answer).sum(-1).double()
    squares = [item.square().sum((1, 2)) for item in (found - exact, exact, found - own)]
    return torch.stack([*squares, kl, same, is_answer.sum(-1).double()], -1)


def measured(
    session: Session, calls: Sequence[Batch], ways: Mapping[str, Change], reference: Tensor, baseline: Tensor
) -> Tensor:
    """Those of the baseline as it is, then of every change.

    Shapes:
        reference, baseline (rows, ..., V), the calls' first -> (rows, 1 + changes, 6), on the host.
    """
    parts, first = [], 0
    for inputs in calls:
        rows = slice(first, first + int(inputs[0].shape[0]))
        values = [baseline[rows], *(way(inputs) for way in ways.values())]
        exact, own = reference[rows], baseline[rows]
        told = [measures(value, exact, own, is_distribution=session.answer.is_distribution) for value in values]
        parts.append(torch.stack(told, 1).cpu())
        first = rows.stop
    return torch.cat(parts)


def summed(found: Tensor, names: Sequence[str]) -> dict[str, Any]:
    """Fields of an Envelope, without changes under which the model gives no numbers.

    Shapes:
        found (rows, 1 + names, 6).
    """
    rows = [_row(name, sums) for name, sums in zip((AS_IT_IS, *names), found.sum(0), strict=True)]
    answers = int(found[:, 0, _MEASURES.index("answers")].sum())
    return {
        "answers": answers,
        "error_baseline": rows[0]["error"],
        "changes": [row for row in rows[1:] if math.isfinite(row["error"])],
    }


def _row(name: str, sums: Tensor) -> dict[str, Any]:
    of = dict(zip(_MEASURES, sums.tolist(), strict=True))
    size, answers = max(of["size"], 1e-300), max(1.0, of["answers"])
    is_known = not math.isnan(of["kl"])
    return {
        "name": name,
        "error": (of["square"] / size) ** 0.5,
        "apart": (of["apart"] / size) ** 0.5,
        "kl": of["kl"] / answers if is_known else None,
        "top1": of["same"] / answers if is_known else None,
    }
