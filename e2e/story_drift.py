"""The part of a story on the model's outputs: how far they are from the reference, beside PyTorch and legal changes."""

from __future__ import annotations

from collections.abc import Iterator

from e2e.rules.drift import op_spread
from e2e.schema.evidence import Evidence, ModelCheck
from e2e.story_sections import Section, Table
from e2e.wording import ABSENT, count, percent, small


def drift_section(evidence: Evidence, prefix: str) -> Section:
    """Kernel, PyTorch as it is, and PyTorch under changes that nobody could call wrong."""
    check = evidence.model_check
    if check is None:
        return Section("")
    rows = [
        _row(
            "with the kernel", check.error_candidate, check.kl_candidate, check.kl_tail_candidate, check.top1_candidate
        ),
        _row("PyTorch", check.error_baseline, check.kl_baseline, check.kl_tail_baseline, check.top1_baseline),
    ]
    if check.envelope is not None:
        rows += [
            _row(f"PyTorch, {change.name}", change.error, change.kl, None, change.top1)
            for change in check.envelope.changes
        ]
    header = ("answers of the model", "error", "KL, mean", "KL, 99.9 %", f"same top {check.answer.per}")
    lines = tuple(_lines(evidence, check))
    return Section(f"{prefix}Drift of the model's outputs", Table(header, tuple(rows)), lines=lines)


def _row(name: str, error: float | None, kl: float | None, tail: float | None, top1: float | None) -> tuple[str, ...]:
    return name, small(error), small(kl), small(tail), percent(top1, digits=5)


def _lines(evidence: Evidence, check: ModelCheck) -> Iterator[str]:
    if check.nll_lower is not None and check.nll_upper is not None:
        yield f"log-likelihood of the true tokens: it loses {check.nll_lower:+.1e} to {check.nll_upper:+.1e} nats each"
    if check.envelope is not None:
        yield f"changes of PyTorch over {count(check.envelope.answers, check.answer.per)}; within them nothing is drift"
    yield from _choices(check)
    for found in check.conditions:
        errors = f"error {small(found.error_candidate)}, PyTorch's {small(found.error_baseline)}"
        yield f"{found.name}: {errors if found.status != 'declined' else 'the kernel refuses these calls'}"
    spread = op_spread(evidence.op_checks)
    if spread is not None:
        yield f"two calls of the op on the same input: {_apart(spread)}"
    if check.split_candidate is not None:
        own = ABSENT if check.split_baseline is None else _apart(check.split_baseline)
        yield f"a row alone and among others: {_apart(check.split_candidate)} (PyTorch: {own})"


def _choices(check: ModelCheck) -> Iterator[str]:
    """Where greedy text would part ways, and how sure PyTorch is there."""
    other, what = check.other_choices, check.answer.per
    if other is None:
        return
    if other.first is None:
        yield f"most likely {what}: PyTorch's own everywhere"
        return
    times = count(other.count, "time")
    margins = f"prefers its own by {small(other.first_margin)} nats (at most {small(other.widest_margin)})"
    yield f"most likely {what}: not PyTorch's {times}, first at number {other.first:,}, where PyTorch {margins}"


def _apart(distance: float) -> str:
    return f"{small(distance)} apart" if distance else "the same bits"
