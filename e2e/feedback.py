"""What the result says beside the verdict: set-up, claim, feedback. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from e2e import stats
from e2e.invocation import Invocation
from e2e.next_actions import next_actions
from e2e.schema.evidence import ArmRecord, Evidence, Isolated, Part
from e2e.schema.kernel import Kernel
from e2e.schema.policy import Policy
from e2e.schema.result import ClaimRecord, FailingCase, Feedback, LostTo, SetUp, TimeUse
from e2e.schema.verdict import Against, Verdict
from e2e.schema.words import Outcome, ReasonCode, ReasonKind, accusation, kind_of
from e2e.schema.workload import Cell
from e2e.units import Ratio, Seconds
from e2e.weighing import find_arm

_FAULTS: dict[ReasonCode, Literal["environment", "e2e"]] = {
    ReasonCode.IDENTICAL_CODE_DIFFERS: "environment",
    ReasonCode.BASELINE_UNFAIR: "environment",
    ReasonCode.NO_ROOM: "environment",
    ReasonCode.UNVERIFIED_OUTPUTS: "e2e",
    ReasonCode.CHECK_NO_POWER: "e2e",
    ReasonCode.RECOMPILED: "e2e",
}
"""Blocking flags that are somebody's fault; a short budget or a wide interval is nobody's."""
_NOT_BY_RETRYING = {
    ReasonCode.NO_ROOM,
    ReasonCode.CHECK_NO_POWER,
    ReasonCode.BASELINE_UNFAIR,
    ReasonCode.NOT_ON_PATH,
    ReasonCode.POLICY_NOT_MET,
}


def set_up(evidence: Evidence, verdict: Verdict | None = None) -> SetUp:
    """One-time costs, and the steps after which the candidate's are repaid.

    There is no break-even without a gain: given the verdict, one whose interval lies above 1.

    Units:
        Seconds; break-even in steps.
    """
    baseline, candidate = find_arm(evidence, evidence.baseline), find_arm(evidence, evidence.candidate)
    costs = SetUp(
        build_s=math.fsum(build.seconds for build in evidence.builds) if evidence.builds else None,
        bind_s=evidence.bind_s,
        prepare_s=evidence.prepare_s,
        first_step_s=_first_step(evidence, candidate),
        warm_step_s=_steady(evidence, candidate),
        baseline_first_step_s=_first_step(evidence, baseline),
        baseline_warm_step_s=_steady(evidence, baseline),
    )
    is_repaid = verdict is None or _gains(_against(verdict, "best_pytorch"))
    is_built = not any(build.cached for build in evidence.builds)  # what a cached build once cost is not known
    return costs.model_copy(update={"break_even_steps": _break_even(costs) if is_repaid and is_built else None})


def time_use(evidence: Evidence) -> TimeUse | None:
    """What the tool itself costs; None before anything was timed."""
    spent = {item.part: item.seconds for item in evidence.spent}
    irreducible = math.fsum(spent.get(part, 0.0) for part in IRREDUCIBLE)
    if not spent.get("timed") or irreducible <= 0:
        return None
    total = math.fsum(seconds for part, seconds in spent.items() if part != "afterwards")
    return TimeUse(to_verdict_s=total, irreducible_s=irreducible, overhead_ratio=total / irreducible)


IRREDUCIBLE: tuple[Part, ...] = ("load", "build", "compile", "timed")
"""Parts that any honest measurement of this kind has. Source: issue 3."""


def _break_even(costs: SetUp) -> int | None:
    before, after = costs.baseline_warm_step_s, costs.warm_step_s
    one_time = (costs.build_s, costs.bind_s, costs.first_step_s)
    known = [seconds for seconds in one_time if seconds is not None]
    if before is None or after is None or before <= after:
        return None
    if costs.baseline_first_step_s is None or len(known) < len(one_time):
        return None
    known += [costs.prepare_s] if costs.prepare_s is not None else []
    return max(0, math.ceil((math.fsum(known) - costs.baseline_first_step_s) / (before - after)))


def _first_step(evidence: Evidence, arm: ArmRecord | None) -> Seconds | None:
    """The longer of two: where it compiled, other arms had run before; where it ran alone, it was compiled before."""
    if arm is None or arm.first_step_s is None:
        return None
    alone = [record.first_step_s for record in evidence.memory if record.arm == arm.name]
    return max([arm.first_step_s, *(seconds for seconds in alone if seconds is not None)])


def _steady(evidence: Evidence, arm: ArmRecord | None) -> Seconds | None:
    """Median timed step; the pilot's while there is no other."""
    if arm is None:
        return None
    timed = stats.step_seconds((s for s in evidence.segments if s.phase == "verdict"), arm.name)
    return arm.step_s if timed is None else timed


def _gains(row: Against | None) -> bool:
    return row is not None and row.speedup.lower_bound > 1


def claim(kernels: Sequence[Kernel], evidence: Evidence, verdict: Verdict) -> ClaimRecord | None:
    """What the author says beside what op and workload show, against the opponent the author names.

    None when nobody claims anything and nothing was measured; and of several kernels, whose claims are each for one.
    """
    if len(kernels) > 1:
        return None
    (kernel,) = kernels
    claimed = kernel.manifest.claim
    against = claimed.against if claimed else "eager"
    row = _against(verdict, "as_shipped" if against == "eager" else "best_pytorch")
    isolated = _isolated(evidence.isolated, against)
    in_context = row.speedup.point_estimate if row else None
    if claimed is None and isolated is None and in_context is None:
        return None
    return ClaimRecord(claimed=claimed, isolated=isolated, in_context=in_context)


def _isolated(measured: Isolated | None, against: str) -> Ratio | None:
    if measured is None or measured.candidate_s <= 0:
        return None
    other_s = measured.eager_s if against == "eager" else measured.alternative_s
    return other_s / measured.candidate_s if other_s else None


def feedback(evidence: Evidence, verdict: Verdict, *, cell: Cell, policy: Policy, invocation: Invocation) -> Feedback:
    """What a kernel author or agent needs to act: whose fault, whether to retry, and what to type next."""
    headline = next((r.code for r in verdict.reasons if kind_of(r.code) is not ReasonKind.ADVICE), None)
    ceiling = verdict.latency.ceiling
    lost = list({row.arm: row for row in verdict.latency.against if row.outcome is Outcome.REFUTED}.values())
    return Feedback(
        fault=_fault(headline),
        retryable=verdict.outcome is Outcome.INCONCLUSIVE and headline not in _NOT_BY_RETRYING,
        left_to_win=ceiling.upper_bound if ceiling else None,
        lost_to=[row.arm for row in lost],
        lost_by=[
            LostTo(arm=row.arm, microseconds_per_step=1e6 * (row.candidate_step_s - row.arm_step_s)) for row in lost
        ],
        failing_case=_failing_case(evidence),
        next_actions=next_actions(
            evidence, verdict, headline=headline, cell=cell, policy=policy, invocation=invocation
        ),
    )


def _failing_case(evidence: Evidence) -> FailingCase | None:
    wrong = next((check for check in evidence.op_checks if check.status in ("wrong", "raised")), None)
    if wrong is None:
        return None
    same = {name: getattr(wrong, name) for name in FailingCase.model_fields if name != "error"}
    return FailingCase(**same, error=wrong.error_candidate)


def _fault(headline: ReasonCode | None) -> Literal["kernel", "environment", "e2e"] | None:
    if headline is None:
        return None
    if accusation(headline):
        return "kernel"
    return _FAULTS.get(headline)


def _against(verdict: Verdict, opponent: str) -> Against | None:
    return next((row for row in verdict.latency.against if row.opponent == opponent), None)
