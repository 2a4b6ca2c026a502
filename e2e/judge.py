"""Evidence + Policy -> Verdict: pure, and the only place where an outcome is decided.

`judge` computes the intervals once (`weighing`), asks every rule of `RULES` for its reasons (`rules`), orders
them by kind, and reads outcome and label off the first one that is not advice. What was not observed (None)
counts neither against a kernel nor for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from e2e.rules import advice, conditions, correctness, drift, engagement, limits, lossy, memory, pins, speed
from e2e.schema.evidence import Evidence
from e2e.schema.policy import Policy
from e2e.schema.verdict import Ablated, Against, Latency, MemoryVerdict, Reason, Verdict
from e2e.schema.words import EXIT_CODES, Label, Outcome, ReasonCode, ReasonKind, kind_of
from e2e.weighing import Case, weigh

_Rule = Callable[[Case], Iterator[Reason]]

RULES: tuple[_Rule, ...] = (
    correctness.op_is_wrong,
    correctness.model_is_wrong,
    correctness.model_is_wrong_under_conditions,
    lossy.budget_is_exceeded,
    correctness.training_is_wrong,
    correctness.replay_differs,
    correctness.timed_outputs_differ,
    engagement.has_faults,
    engagement.misses_sites,
    speed.no_headroom,
    conditions.has_no_room,
    pins.policy_not_met,
    limits.limits_unseen,
    correctness.outputs_are_unverified,
    correctness.check_has_no_power,
    engagement.is_off_path,
    speed.recompiled,
    conditions.throttled,
    speed.identical_code_differs,
    speed.exceeds_ceiling,
    speed.baseline_is_unfair,
    speed.budget_is_exhausted,
    speed.has_too_few_workers,
    lossy.is_declared_lossy,
    drift.drifts,
    advice.advice,
    conditions.not_steady,
    conditions.drifts,
    conditions.clock_confound,
    conditions.carries_over,
    conditions.timers_disagree,
    conditions.allocator_churns,
    conditions.environment_changed,
    conditions.contention,
    memory.sources_disagree,
    memory.grows,
    limits.limits_exceeded,
)
"""Within a kind this order stands, and of two reasons with one code the first."""
OBJECTIVES: dict[str, tuple[_Rule, ...]] = {
    "latency": (speed.screened, speed.decided_by_interval),
    "memory": (memory.decided_by_memory,),
}
"""What answers the policy's question where no other rule stands in the way."""


def judge(evidence: Evidence, policy: Policy) -> Verdict:
    """What the evidence means under the policy.

    Raises:
        ValueError: a segment without steps or without time, or a fault that states a conclusion: no run of
            ours writes either.
    """
    case = weigh(evidence, policy)
    overlooked = {waiver.code for waiver in policy.waivers}
    found = [reason for rule in (*RULES, *OBJECTIVES[policy.objective]) for reason in rule(case)]
    reasons = _ordered([reason for reason in found if reason.code not in overlooked])
    if _headline(reasons) is None and case.is_unfinished:
        reasons = [_incomplete(evidence), *reasons]
    headline = _headline(reasons)
    outcome = _outcome_of(headline)
    latency = _latency(case, reasons, outcome)
    return Verdict(
        outcome=outcome,
        label=_LABELS.get(headline) if headline else None,
        reasons=reasons,
        latency=latency,
        memory=_memory(case, reasons, outcome),
        numerics=correctness.numerics_of(case),
        ablation=_ablation(case, reasons, outcome, latency.against),
        interaction=case.interaction if outcome not in _NO_CLAIM and not _is_tainted(reasons) else None,
    )


def decided(evidence: Evidence, policy: Policy) -> bool:
    """Whether the run may stop at this look: the interval against the deciding opponent answers the objective.

    Only planned looks count: to stop whenever the interval happens to look good gives 9.4 % false confirms
    instead of 2.5 %.

    Source:
        METHOD.md B5.12 and B8.
    """
    if evidence.workers_finished not in policy.looks:
        return False
    return weigh(evidence, policy).timing is not Outcome.INCONCLUSIVE


def exit_code(outcome: Outcome | None) -> int:
    """Exit code of an outcome; 0 for None: the stage asked for was passed. Errors of a run have their own."""
    return 0 if outcome is None else EXIT_CODES[outcome]


_KINDS = list(ReasonKind)
_OUTCOMES = {
    ReasonKind.INCORRECT: Outcome.INCORRECT,
    ReasonKind.FAILED: Outcome.FAILED,
    ReasonKind.NOT_APPLICABLE: Outcome.NOT_APPLICABLE,
    ReasonKind.NO_HEADROOM: Outcome.REFUTED,
    ReasonKind.BLOCKING: Outcome.INCONCLUSIVE,
}
_INTERVAL_OUTCOMES = {
    ReasonCode.GAIN_CONFIRMED: Outcome.CONFIRMED,
    ReasonCode.MATCHED_BY_PYTORCH: Outcome.REFUTED,
    ReasonCode.REGRESSION: Outcome.REFUTED,
    ReasonCode.BELOW_MARGIN: Outcome.REFUTED,
    ReasonCode.INTERVAL_STRADDLES: Outcome.INCONCLUSIVE,
    ReasonCode.MEMORY_REDUCED: Outcome.CONFIRMED,
    ReasonCode.MEMORY_NOT_REDUCED: Outcome.REFUTED,
    ReasonCode.MEMORY_UNCERTAIN: Outcome.INCONCLUSIVE,
    ReasonCode.LIMIT_EXCEEDED: Outcome.REFUTED,
    ReasonCode.PROMISING: None,
}
_LABELS = {code: Label(code.value) for code in ReasonCode if code.value in list(Label)}
_TAINTS = {
    ReasonCode.UNVERIFIED_OUTPUTS,
    ReasonCode.CHECK_NO_POWER,
    ReasonCode.NOT_ON_PATH,
    ReasonCode.RECOMPILED,
    ReasonCode.CEILING_EXCEEDED,
}
"""Flags under which no interval means anything, whoever the opponent."""
_NO_CLAIM = {Outcome.INCORRECT, Outcome.FAILED, Outcome.NOT_APPLICABLE}
"""Outcomes beside which no speed is shown: a wrong kernel's time is nobody's time."""


def _incomplete(evidence: Evidence) -> Reason:
    last = evidence.stage_finished or "none"
    message = f"last finished stage: {last}; asked for: {evidence.stage_asked}"
    return Reason(code=ReasonCode.RUN_INCOMPLETE, message=message)


def _ordered(reasons: Sequence[Reason]) -> list[Reason]:
    """By kind, in DESIGN.md's order, one reason per code.

    Beside a kernel that is wrong or does not run there is no word on speed, nor on flags that only follow
    from it.
    """
    first: dict[ReasonCode, Reason] = {}
    for reason in reasons:
        first.setdefault(reason.code, reason)
    ranked = sorted(first.values(), key=lambda reason: _KINDS.index(kind_of(reason.code)))
    if ranked and _outcome_of(ranked[0].code) in _NO_CLAIM:
        silent = (ReasonKind.NO_HEADROOM, ReasonKind.BLOCKING, ReasonKind.INTERVAL)
        return [reason for reason in ranked if kind_of(reason.code) not in silent]
    return ranked


def _headline(reasons: Sequence[Reason]) -> ReasonCode | None:
    return next((reason.code for reason in reasons if kind_of(reason.code) is not ReasonKind.ADVICE), None)


def _outcome_of(code: ReasonCode | None) -> Outcome | None:
    """None: the stage asked for was passed."""
    if code is None:
        return None
    return _INTERVAL_OUTCOMES[code] if code in _INTERVAL_OUTCOMES else _OUTCOMES.get(kind_of(code))


def _latency(case: Case, reasons: Sequence[Reason], outcome: Outcome | None) -> Latency:
    """Under another objective: what it would be if latency were asked for."""
    if case.policy.objective != "latency":
        return judge(case.evidence, case.policy.model_copy(update={"objective": "latency"})).latency
    is_claimed = outcome not in _NO_CLAIM
    rows = _believed(case.against, reasons) if is_claimed else []
    return Latency(
        outcome=outcome if is_claimed and (case.is_timed or case.has_no_headroom) else None,
        against=rows,
        sham=case.sham,
        ceiling=case.ceiling,
        half_width=case.half_width if is_claimed else None,
        detectable_ratio=case.detectable if is_claimed else None,
        blocks=case.blocks,
        processes=case.workers,
    )


def _is_tainted(reasons: Sequence[Reason]) -> bool:
    """Whether a flag is among them under which no interval means anything."""
    return any(reason.code in _TAINTS for reason in reasons)


def _believed(rows: Sequence[Against], reasons: Sequence[Reason]) -> list[Against]:
    """The rows as they are, or as what nobody can rely on."""
    doubt = {"outcome": Outcome.INCONCLUSIVE} if _is_tainted(reasons) else {}
    return [row.model_copy(update=doubt) for row in rows]


def _ablation(
    case: Case, reasons: Sequence[Reason], outcome: Outcome | None, together: Sequence[Against]
) -> list[Ablated]:
    """Nothing for a single kernel; beside a failure only which of several fail."""
    kernels, tried = case.evidence.kernels, case.evidence.subsets
    if tried:
        found = [Ablated(kernels=subset.kernels, code=subset.code) for subset in tried]
        return [*found, Ablated(kernels=kernels, code=_headline(reasons))]
    if not any(case.alone.values()) or outcome in _NO_CLAIM:
        return []
    alone = [Ablated(kernels=[kernel], against=_believed(rows, reasons)) for kernel, rows in case.alone.items()]
    return [*alone, Ablated(kernels=kernels, against=list(together))]


def _memory(case: Case, reasons: Sequence[Reason], outcome: Outcome | None) -> MemoryVerdict:
    """Its outcome is the figures' own, whatever the step's time says."""
    seen = memory.memory_of(case)
    if outcome in _NO_CLAIM:
        return seen.model_copy(update={"outcome": None})
    if seen.outcome is not None and _is_tainted(reasons):
        return seen.model_copy(update={"outcome": Outcome.INCONCLUSIVE})
    return seen
