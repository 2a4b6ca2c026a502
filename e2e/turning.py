"""What would change a verdict: another question, another margin, a tighter interval, another kernel. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from e2e.schema.policy import Policy
from e2e.schema.result import CellResult, Result
from e2e.schema.verdict import Against, Latency
from e2e.schema.words import Label, Outcome, ReasonKind, kind_of
from e2e.wording import clean, estimate, opponent, outcome_word, percent


def turning_points(result: Result, deciding: CellResult | None) -> tuple[str, ...]:
    """Sentences; none where there is no verdict on the speed of one cell."""
    policy = result.policy
    if deciding is None or policy is None or policy.objective != "latency" or len(result.cells) > 1:
        return ()
    if result.outcome not in (Outcome.CONFIRMED, Outcome.REFUTED, Outcome.INCONCLUSIVE):
        return ()
    latency = deciding.verdict.latency
    row = next((item for item in latency.against if item.opponent == policy.decides), None)
    found = [*_flags(result), *(_margin(result.outcome, row, policy) if row is not None else ())]
    found += [*_ceiling(result, latency, policy), *_other_questions(latency, policy, result.outcome)]
    return tuple(map(clean, found))


def _flags(result: Result) -> Iterator[str]:
    blocking = [reason.code for reason in result.reasons if kind_of(reason.code) is ReasonKind.BLOCKING]
    if blocking and result.outcome is Outcome.INCONCLUSIVE:
        yield f"without what is flagged ({', '.join(blocking)}), the interval alone would decide"


def _margin(outcome: Outcome, row: Against, policy: Policy) -> Iterator[str]:
    """Margins at which the same interval says something else."""
    low, high = row.speedup.lower_bound - 1, row.speedup.upper_bound - 1
    if outcome is Outcome.CONFIRMED:
        yield f"a margin of {percent(low)} or more: the gain is shown to be larger than that, and no more"
    elif low > 0:
        yield f"a margin below {percent(low)}: a gain of that size is shown"
    elif outcome is Outcome.REFUTED and high > 0:
        yield f"a margin below {percent(high)} would leave it open: a gain of that size is not ruled out"
    elif outcome is Outcome.INCONCLUSIVE and high > policy.margin:
        half = (row.speedup.upper_bound - row.speedup.lower_bound) / 2
        yield f"a narrower interval: the margin of {percent(policy.margin)} lies inside this one of +- {percent(half)}"
    if outcome is not Outcome.CONFIRMED and high <= 0:
        yield "no margin above 0: it is shown to be no faster"


def _ceiling(result: Result, latency: Latency, policy: Policy) -> Iterator[str]:
    if latency.ceiling is None or result.outcome is Outcome.CONFIRMED:
        return
    most = latency.ceiling.upper_bound - 1
    if result.label is Label.NO_HEADROOM or most < policy.margin:
        yield f"no better kernel for this op: with the op for nothing the step wins {percent(max(0.0, most))} at most"
    else:
        yield f"a better kernel, within limits: with the op for nothing the step wins {percent(most)} at most"


def _other_questions(latency: Latency, policy: Policy, outcome: Outcome) -> Iterator[str]:
    for row in latency.against:
        if row.opponent != policy.decides and row.outcome is not outcome:
            said = f"{outcome_word(row.outcome)}, {estimate(row.speedup)}"
            yield f"asked against {opponent(row.opponent)} (`decides: {row.opponent}`), it is {said}"
