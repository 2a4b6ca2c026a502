"""Re-judging a stored run: the same evidence under the same or another policy. Pure; needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from e2e.errors import StoredRunError, UsageError
from e2e.judge import exit_code, judge
from e2e.schema.policy import Policy, Waiver
from e2e.schema.result import METHOD, OLDER_METHODS, CellResult, Result
from e2e.schema.verdict import Reason
from e2e.schema.words import Outcome, ReasonCode, ReasonKind, kind_of
from e2e.story import reason_line
from e2e.surroundings import Comparison, Surroundings, changed_kernels, compare
from e2e.sweep import SweepVerdict, sweep
from e2e.wording import LABELS, clean, outcome_word

_REASONS_SHOWN = 3


@dataclass(frozen=True)
class Gate:
    """A stored run, judged again."""

    code: int
    text: str


def regate(result: Result, policy: Policy | None, here: Surroundings, today: date) -> Gate:
    """Judge every cell again; the exit code is 0 for CONFIRMED only, and 11 for stale evidence whatever it says.

    Waivers of the given policy count until their last day.

    Raises:
        UsageError: neither the run nor the caller has a policy.
        StoredRunError: measured by a method that this e2e does not know, or evidence that no run writes.
    """
    if result.method not in (METHOD, *OLDER_METHODS):
        known = ", ".join((*OLDER_METHODS, METHOD))
        raise StoredRunError(f"run {result.run_id} was measured by method {result.method!r}; this e2e knows {known}")
    if result.error is not None:
        return Gate(result.error.code, f"the run ended early: {clean(result.error.message)}\n")
    policy = policy or result.policy
    if policy is None:
        raise UsageError(f"run {result.run_id} stored no policy; give one with --policy")
    if not result.cells:
        return Gate(exit_code(Outcome.INCONCLUSIVE), "the run has no cell, so there is nothing to judge\n")
    waivers = [waiver for waiver in policy.waivers if _is_for(waiver, result)]
    in_force = [waiver for waiver in waivers if waiver.until >= today]
    cells, whole = _judged(result, policy.model_copy(update={"waivers": in_force}))
    compared = compare(result.environment, here)
    stale = _stale(result, compared, changed_kernels(result.kernels, here))
    if result.method == METHOD and any(waiver.code is ReasonCode.STALE_EVIDENCE for waiver in in_force):
        stale = None  # another method's evidence is nobody's to answer for
    outcome = Outcome.INCONCLUSIVE if stale else whole.outcome
    lines = [f"{outcome_word(outcome)}  {result.run_id}, policy {policy.name}"]
    if outcome is None:
        lines[0] = f"NO VERDICT  {result.run_id} ran only until the stage {result.stage}"
        outcome = Outcome.INCONCLUSIVE  # a gate must not open for what was never measured
    elif outcome is not result.outcome:
        lines.append(f"  stored as {outcome_word(result.outcome)}, under policy {_name(result.policy)}")
    lines += [f"  {reason_line(stale)}"] if stale else []
    lines += [
        _waiver_line(waiver, is_in_force=waiver in in_force) for waiver in policy.waivers if _is_for(waiver, result)
    ]
    lines += [f"  environment not compared: {clean(compared.unseen)}"] if compared.unseen else []
    for cell in cells:
        label = f", {LABELS[cell.verdict.label]}" if cell.verdict.label else ""
        lines.append(f"  {cell.cell.title}: {outcome_word(cell.verdict.outcome)}{label}")
    reasons = [reason for reason in whole.reasons if kind_of(reason.code) is not ReasonKind.ADVICE]
    lines += [f"    {reason_line(reason)}" for reason in reasons[:_REASONS_SHOWN]]
    return Gate(exit_code(outcome), "\n".join(lines) + "\n")


def _judged(result: Result, policy: Policy) -> tuple[list[CellResult], SweepVerdict]:
    try:
        cells = [cell.model_copy(update={"verdict": judge(cell.evidence, policy)}) for cell in result.cells]
        return cells, sweep(cells, policy)
    except ValueError as error:
        raise StoredRunError(f"run {result.run_id} holds evidence that no run writes: {error}") from error


def _is_for(waiver: Waiver, result: Result) -> bool:
    return waiver.kernel in (None, *(kernel.sha256 for kernel in result.kernels))


def _waiver_line(waiver: Waiver, *, is_in_force: bool) -> str:
    if is_in_force:
        return f"  waived until {waiver.until}: {waiver.code}: {clean(waiver.reason)}"
    return f"  a waiver of {waiver.code} ended on {waiver.until}"


def _stale(result: Result, compared: Comparison, kernels: Sequence[str]) -> Reason | None:
    why = [f"measured by method {result.method}; this e2e has {METHOD}"] if result.method != METHOD else []
    why += [f"measured in another environment: {', '.join(compared.changed)}"] if compared.changed else []
    why += [f"measured with another kernel: {', '.join(kernels)}"] if kernels else []
    message = f"{'; '.join(why)}: measure again"
    return Reason(code=ReasonCode.STALE_EVIDENCE, message=message) if why else None


def _name(policy: Policy | None) -> str:
    return policy.name if policy else "none"
