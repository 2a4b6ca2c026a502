"""What the intervals say, and whether they can be relied on."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from e2e import wording
from e2e.arm_names import AS_SHIPPED, is_adopted
from e2e.rules._words import some
from e2e.schema.evidence import ArmRecord, Evidence
from e2e.schema.verdict import Against, Reason
from e2e.schema.words import Outcome, ReasonCode, Role, Stage
from e2e.weighing import NEAR, Case, apart, find_arm, is_drowned, is_look, opponent_arm

PILOT_LOSS = 0.05
"""Pilot loss beyond which `screen` is not promising: outside a pilot's noise (METHOD.md: sd 0.3 to 2 %)."""


def no_headroom(case: Case) -> Iterator[Reason]:
    """The op's whole cost is below the margin, so no kernel for it can win."""
    ceiling = case.known_ceiling
    if ceiling is None or not case.has_no_headroom:
        return
    most = ceiling.upper_bound - 1
    message = "the step is no faster without this op: no kernel for it can win anything"
    if most > 0:
        message = f"without this op the step gains at most {wording.percent(most)}: no kernel for it can win more"
    behind = f"ceiling {wording.estimate(ceiling)} from {ceiling.look} workers"
    message += f" ({behind}, margin {wording.percent(case.policy.margin)})"
    yield Reason(code=ReasonCode.NO_HEADROOM, message=message)


def recompiled(case: Case) -> Iterator[Reason]:
    """Headroom arms are left out, and single ones of several kernels: one that recompiled only goes without its own
    ceiling or row.
    """
    beside = {arm.name for arm in case.evidence.arms if arm.role in (Role.HEADROOM, Role.PART)}
    arms = [name for name in case.evidence.recompiles if name not in beside]
    if arms:
        yield Reason(code=ReasonCode.RECOMPILED, message=f"compiled while timed: {some(arms)}")


def identical_code_differs(case: Case) -> Iterator[Reason]:
    """The reading does not stand out from what the same code gives through the same swap."""
    row, sham = case.deciding, case.sham
    if row is None or not case.is_at_verdict or not is_look(row.speedup, case.policy):
        return
    if is_drowned(row.speedup, sham, case.policy):
        message = "identical code was not timed in enough workers, so the swap's own effect is unknown"
        if sham is not None and is_look(sham, case.policy):
            reading = wording.estimate(row.speedup)
            message = f"identical code reads {wording.estimate(sham)}; {reading} does not stand out from it"
        yield Reason(code=ReasonCode.IDENTICAL_CODE_DIFFERS, message=message)


def exceeds_ceiling(case: Case) -> Iterator[Reason]:
    """The gain is larger than what removing the op altogether gives, so one of the two is wrong."""
    if case.exceeds_ceiling and case.deciding and case.ceiling:
        gain, most = wording.estimate(case.deciding.speedup), wording.estimate(case.ceiling)
        message = f"{gain}, where removing the op altogether gives {most}"
        yield Reason(code=ReasonCode.CEILING_EXCEEDED, message=message)


def has_too_few_workers(case: Case) -> Iterator[Reason]:
    """The long run began, and ended before the first look."""
    workers = min(case.workers, case.evidence.workers_finished)
    if case.is_at_verdict and workers < case.policy.looks[0]:
        done = f"worker processes finished with at least {case.policy.blocks} mirrored blocks"
        done = "mirrored groups of processes finished" if case.evidence.command_runs else done
        message = f"{workers} {done}; a verdict needs {case.policy.looks[0]}"
        yield Reason(code=ReasonCode.TOO_FEW_WORKERS, message=message)


def baseline_is_unfair(case: Case) -> Iterator[Reason]:
    """Eager as shipped, the opponent that decides or a required mode was not measured; or a mode was thrown out.

    A mode that cannot run is no opponent, unless the policy requires it. One that ran and was thrown out might
    have been the strongest: where the candidate profits from that mode, nothing is decided.
    """
    opponent = opponent_arm(case.evidence, case.policy.decides)
    arms = [find_arm(case.evidence, name) for name in (AS_SHIPPED, opponent)]
    bad = next((arm for arm in arms if arm is not None and arm.status in ("failed", "void")), None)
    if bad is None:
        bad = _lost_rival(case.evidence)
    lacking = _required_but_not_measured(case)
    if lacking is not None:
        yield Reason(code=ReasonCode.BASELINE_UNFAIR, message=lacking)
    suspect = _company_tells(case)
    if suspect is not None:
        yield Reason(code=ReasonCode.BASELINE_UNFAIR, message=suspect)
    if bad is not None:
        message = f"{bad.name} {bad.status}: {bad.reason or 'no reason was recorded'}"
        message += "; without the candidate it works" if bad.name in case.evidence.clean_works else ""
        yield Reason(code=ReasonCode.BASELINE_UNFAIR, message=message)
    elif case.is_at_verdict and opponent is None:
        message = f"no arm stands for the opponent {case.policy.decides}"
        yield Reason(code=ReasonCode.BASELINE_UNFAIR, message=message)


def _lost_rival(evidence: Evidence) -> ArmRecord | None:
    """A baseline that might have been the strongest: of the candidate's own mode, where none of that mode was timed or
    one was thrown out; or one that failed beside the candidate and works without it.
    """
    chosen = find_arm(evidence, evidence.candidate)
    baselines = [arm for arm in evidence.arms if arm.role is Role.BASELINE and not is_adopted(arm.alternative)]
    rivals = [arm for arm in baselines if chosen is not None and arm.mode is chosen.mode]
    is_lost = not any(arm.status == "ok" for arm in rivals)
    lost = [arm for arm in rivals if arm.status == "void" or (is_lost and arm.status == "failed")]
    return next(iter([*lost, *(arm for arm in baselines if arm.name in evidence.clean_works)]), None)


def _company_tells(case: Case) -> str | None:
    """Whether the deciding opponent is the same beside the candidate as without it."""
    row, evidence = case.deciding, case.evidence
    if row is None or not case.is_at_verdict:
        return None
    ratio = apart(evidence, case.policy, row.arm, row.speedup)
    if ratio is not None:
        return f"{row.arm} takes {ratio:.2f}x as long in every process that holds the candidate as it does without it"
    if row.outcome is not Outcome.CONFIRMED:
        return None
    if not evidence.clean_times:
        return "no path of PyTorch was timed without the candidate"
    return _better_without(evidence, row.arm) if row.opponent == "best_pytorch" else None


def _better_without(evidence: Evidence, opponent: str) -> str | None:
    """Whether the tournament, which the candidate's process held, let another path lose that wins without it."""
    last = [item for item in evidence.clean_times if item.worker is None] or evidence.clean_times
    clean = {arm: median(i.step_s for i in last if i.arm == arm) for arm in {item.arm for item in last}}
    best = min(clean, key=lambda arm: clean[arm])
    if opponent in clean and clean[best] * NEAR < clean[opponent]:
        ratio = clean[opponent] / clean[best]
        return f"without the candidate {best} is {ratio:.2f}x as fast as {opponent}, which won beside it"
    unseen = next((arm.name for arm in evidence.arms if _is_unseen(arm) and arm.name not in clean), None)
    if unseen is not None:
        return f"{unseen} was left out of the tournament; there was no time to see without the candidate that it loses"
    chosen, deciding = find_arm(evidence, evidence.candidate), find_arm(evidence, opponent)
    modes = {arm.mode for arm in evidence.arms if arm.name in clean}
    if chosen is None or deciding is None or chosen.mode in (deciding.mode, *modes):
        return None
    return f"no path of PyTorch in the candidate's own mode, {chosen.mode}, was timed without it"


def _is_unseen(arm: ArmRecord) -> bool:
    return arm.status == "left_out" and arm.role is Role.BASELINE and not is_adopted(arm.alternative)


def _required_but_not_measured(case: Case) -> str | None:
    """Baseline modes that the policy asks for and that have no time; judged once arms were timed at all."""
    if not case.is_timed:
        return None
    arms = [arm for arm in case.evidence.arms if arm.role is Role.BASELINE]
    measured = {arm.mode for arm in arms if arm.status == "ok" and arm.step_s is not None}
    lacking = []
    for mode in case.policy.required_modes:
        if mode not in measured:
            tried = next((arm for arm in arms if arm.mode is mode), None)
            why = f"{tried.status}: {tried.reason or 'no reason was recorded'}" if tried else "not tried"
            lacking.append(f"{mode} ({why})")
    return f"the policy requires a baseline in {some(lacking)}" if lacking else None


def budget_is_exhausted(case: Case) -> Iterator[Reason]:
    """Time ended before anything was decided."""
    is_decided = case.timing is not Outcome.INCONCLUSIVE
    open_question = case.is_unfinished or case.is_at_verdict
    if case.evidence.budget_exhausted and open_question and not is_decided and not case.has_no_headroom:
        done = f"{case.evidence.workers_finished} of up to {case.policy.looks[-1]} workers"
        message = f"the budget of {case.policy.budgets.cell_s:.0f} s ended after {done}"
        yield Reason(code=ReasonCode.BUDGET_EXHAUSTED, message=message)


def screened(case: Case) -> Iterator[Reason]:
    """What a screen can say: worth a full verdict or not; it confirms and refutes nothing by intervals."""
    if case.evidence.stage_asked is not Stage.SCREEN or case.is_unfinished or case.has_no_headroom:
        return
    ceiling, ratio = case.known_ceiling, _pilot_ratio(case.evidence)
    seen = "pilots not compared" if ratio is None else f"pilot {ratio:.3f}x, provisional"
    if ceiling is None:
        message = f"the ceiling is not known from {case.policy.ceiling_workers} workers; {seen}"
        yield Reason(code=ReasonCode.INTERVAL_STRADDLES, message=message)
    elif ratio is not None and ratio < 1 - PILOT_LOSS:
        loss = f"a loss of more than {wording.percent(PILOT_LOSS)}"
        message = f"{seen}: {loss}, though a kernel can win up to {wording.estimate(ceiling)}"
        yield Reason(code=ReasonCode.INTERVAL_STRADDLES, message=message)
    else:
        message = f"a kernel can win up to {wording.estimate(ceiling)}; {seen}"
        yield Reason(code=ReasonCode.PROMISING, message=message)


def _pilot_ratio(evidence: Evidence) -> float | None:
    baseline, candidate = find_arm(evidence, evidence.baseline), find_arm(evidence, evidence.candidate)
    if baseline is None or candidate is None or baseline.step_s is None or not candidate.step_s:
        return None
    return baseline.step_s / candidate.step_s


def decided_by_interval(case: Case) -> Iterator[Reason]:
    """What the interval against the deciding opponent says, from the first look on."""
    row = case.deciding
    if row is None or not case.is_at_verdict or not is_look(row.speedup, case.policy):
        return
    reading = f"{wording.estimate(row.speedup)} against {wording.arm(row.arm)}"
    margin = wording.percent(case.policy.margin)
    if row.outcome is Outcome.CONFIRMED and case.sham is not None:
        message = f"{reading}; margin {margin}, identical code {wording.estimate(case.sham)}"
        yield Reason(code=ReasonCode.GAIN_CONFIRMED, message=message)
    elif row.outcome is Outcome.REFUTED:
        yield _refuted(case, row, reading)
    else:
        message = f"{reading}: {wording.ruled_out(row.speedup)}; the margin is {margin}"
        yield Reason(code=ReasonCode.INTERVAL_STRADDLES, message=message)


def _refuted(case: Case, row: Against, reading: str) -> Reason:
    shipped = next((other for other in case.against if other.opponent == "as_shipped"), None)
    if row.speedup.upper_bound < 1 - case.policy.margin:
        return Reason(code=ReasonCode.REGRESSION, message=f"slower: {reading}")
    if row.opponent == "best_pytorch" and shipped is not None and shipped.outcome is Outcome.CONFIRMED:
        also = f"against eager as shipped it is {wording.estimate(shipped.speedup)}"
        message = f"matched by {wording.arm(row.arm)}: {wording.estimate(row.speedup)} against it; {also}"
        return Reason(code=ReasonCode.MATCHED_BY_PYTORCH, message=message)
    message = f"{reading}: below the margin of {wording.percent(case.policy.margin)}"
    return Reason(code=ReasonCode.BELOW_MARGIN, message=message)
