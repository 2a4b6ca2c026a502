"""Evidence + Policy -> Verdict: pure, and the only place where an outcome is decided.

`judge` computes the intervals once, asks every rule of `RULES` for its reasons, orders them by kind, and
reads outcome and label off the first one that is not advice. What was not observed (None) counts neither
against a kernel nor for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from e2e import stats, wording
from e2e.arm_names import AS_SHIPPED
from e2e.schema.evidence import ArmRecord, Evidence, OpCheck, Segment, SiteRecord, Where
from e2e.schema.policy import Opponent, Policy
from e2e.schema.verdict import Against, Estimate, Latency, MemoryVerdict, NumericsVerdict, Reason, Verdict
from e2e.schema.words import EXIT_CODES, Label, Outcome, ReasonCode, ReasonKind, Role, Stage, kind_of

PILOT_LOSS = 0.05
"""Pilot loss beyond which `screen` is not promising: outside a pilot's noise (METHOD.md: sd 0.3 to 2 %)."""
BUSY_RATIO = 0.7
"""Device-busy share below which the device is said to wait for the host."""
CPU_PRESSURE, STEAL = 0.10, 0.02
"""Shares of time above which others used the machine. Source: METHOD.md B5.3."""


def judge(evidence: Evidence, policy: Policy) -> Verdict:
    """What the evidence means under the policy.

    Raises:
        ValueError: a segment without steps or without time, or a fault that states a conclusion: no run of
            ours writes either.
    """
    case = _weigh(evidence, policy)
    reasons = _ordered([reason for rule in RULES for reason in rule(case)])
    if _headline(reasons) is None and _is_unfinished(evidence):
        reasons = [_incomplete(evidence), *reasons]
    headline = _headline(reasons)
    outcome = _outcome_of(headline)
    return Verdict(
        outcome=outcome,
        label=_LABELS.get(headline) if headline else None,
        reasons=reasons,
        latency=_latency(case, reasons, outcome),
        memory=_memory(evidence),
        numerics=_numerics(case),
    )


def decided(evidence: Evidence, policy: Policy) -> bool:
    """Whether the run may stop at this look: the interval rule answers for the deciding opponent.

    Only planned looks count: to stop whenever the interval happens to look good gives 9.4 % false confirms
    instead of 2.5 %.

    Source:
        METHOD.md B5.12 and B8.
    """
    if evidence.workers_finished not in policy.looks:
        return False
    row = _weigh(evidence, policy).deciding
    return row is not None and row.outcome is not Outcome.INCONCLUSIVE


def exit_code(outcome: Outcome | None) -> int:
    """Exit code of an outcome; 0 for None: the stage asked for was passed. Errors of a run have their own."""
    return 0 if outcome is None else EXIT_CODES[outcome]


_Workers = Mapping[int, Sequence[float]]
"""Block contrasts by worker."""

# What the segments say ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Case:
    """Evidence, policy, and the intervals between them."""

    evidence: Evidence
    policy: Policy
    against: list[Against]
    sham: Estimate | None
    ceiling: Estimate | None
    blocks: int
    workers: int
    """Workers whose verdict blocks count."""

    @property
    def bar(self) -> float:
        """Speed-up a candidate must clear."""
        return 1 + self.policy.margin

    @property
    def deciding(self) -> Against | None:
        """The candidate against the opponent that decides; None before two workers finished."""
        return next((row for row in self.against if row.opponent == self.policy.decides), None)

    @property
    def known_ceiling(self) -> Estimate | None:
        """The ceiling, if enough workers stand behind it to decide anything."""
        known = self.ceiling is not None and (self.ceiling.look or 0) >= self.policy.ceiling_workers
        return self.ceiling if known else None

    @property
    def exceeds_ceiling(self) -> bool:
        """Whether the candidate wins more than the whole op costs."""
        row, ceiling = self.deciding, self.known_ceiling
        return row is not None and ceiling is not None and row.speedup.lower_bound > ceiling.upper_bound

    @property
    def has_no_headroom(self) -> bool:
        """Whether no kernel can win the margin; a measured win above the ceiling contradicts it instead."""
        ceiling = self.known_ceiling
        return ceiling is not None and ceiling.upper_bound < self.bar and not self.exceeds_ceiling

    @property
    def is_at_verdict(self) -> bool:
        """Whether the long run was needed, asked for, and at least begun."""
        asked = self.evidence.stage_asked is Stage.VERDICT and not self.has_no_headroom
        begun = self.evidence.stage_finished is Stage.VERDICT or self.evidence.workers_finished > 0
        return asked and (begun or bool(_of_verdict(self.evidence)))

    @property
    def is_timed(self) -> bool:
        """Whether the candidate was timed at all, in a pilot or later."""
        finished = self.evidence.stage_finished
        is_screened = finished is not None and finished.rank >= Stage.SCREEN.rank
        return is_screened or self.is_at_verdict


def _weigh(evidence: Evidence, policy: Policy) -> _Case:
    """Every interval the rules need, from segments of the phases that may speak for it."""
    timed = _of_verdict(evidence)
    sham = _speedup(_blocks(timed, policy, arm=_sham_arm(evidence), other=evidence.baseline), policy)
    arms = {opponent: opponent_arm(evidence, opponent) for opponent in policy.opponents}
    workers = {
        opponent: _blocks(timed, policy, arm=evidence.candidate, other=arm) for opponent, arm in arms.items()
    }
    rows = [_against(evidence, policy, opponent=o, workers=workers[o], sham=sham) for o in policy.opponents]
    return _Case(
        evidence=evidence,
        policy=policy,
        against=[row for row in rows if row is not None],
        sham=sham,
        ceiling=_ceiling(evidence, arms[policy.decides]),
        blocks=sum(map(len, workers[policy.decides].values())),
        workers=len(workers[policy.decides]),
    )


def opponent_arm(evidence: Evidence, opponent: Opponent) -> str | None:
    """Name of the arm that stands for an opponent; None when it was never chosen or made."""
    if opponent == "best_pytorch":
        return evidence.baseline
    return AS_SHIPPED if _arm(evidence, AS_SHIPPED) else None


def _of_verdict(evidence: Evidence) -> list[Segment]:
    """Segments that may stand behind a speed-up: pilots chose the arms, so they would flatter the winner."""
    return [segment for segment in evidence.segments if segment.phase == "verdict"]


def _blocks(timed: Sequence[Segment], policy: Policy, *, arm: str | None, other: str | None) -> _Workers:
    """Block contrasts of every worker with enough of them; a half-done worker does not count."""
    if arm is None or other is None:
        return {}
    workers = stats.block_contrasts(timed, arm=arm, other=other)
    return {worker: values for worker, values in workers.items() if len(values) >= policy.blocks}


def _speedup(workers: _Workers, policy: Policy) -> Estimate | None:
    estimates = stats.worker_estimates(workers)
    if len(estimates) < 2:
        return None
    interval = stats.t_interval(estimates, policy.level)
    return stats.as_estimate(interval, level=policy.level, look=len(estimates))


def _against(
    evidence: Evidence, policy: Policy, *, opponent: Opponent, workers: _Workers, sham: Estimate | None
) -> Against | None:
    arm, candidate = opponent_arm(evidence, opponent), evidence.candidate
    speedup = _speedup(workers, policy)
    if speedup is None or arm is None or candidate is None:
        return None
    segments = [segment for segment in _of_verdict(evidence) if segment.worker in workers]
    arm_step_s, candidate_step_s = (stats.step_seconds(segments, name) for name in (arm, candidate))
    if arm_step_s is None or candidate_step_s is None:
        return None
    return Against(
        opponent=opponent,
        arm=arm,
        arm_step_s=arm_step_s,
        candidate_step_s=candidate_step_s,
        speedup=speedup,
        outcome=_interval_rule(speedup, sham, policy),
    )


def _interval_rule(speedup: Estimate, sham: Estimate | None, policy: Policy) -> Outcome:
    """METHOD.md B5.12: confirm above margin and identical code, refute below the margin, else go on."""
    bar = 1 + policy.margin
    if not _is_look(speedup, policy) or _is_drowned(speedup, sham, policy):
        return Outcome.INCONCLUSIVE
    if speedup.lower_bound > bar:
        return Outcome.CONFIRMED
    return Outcome.REFUTED if speedup.upper_bound < bar else Outcome.INCONCLUSIVE


def _is_look(estimate: Estimate, policy: Policy) -> bool:
    return (estimate.look or 0) >= policy.looks[0]


def _is_drowned(speedup: Estimate, sham: Estimate | None, policy: Policy) -> bool:
    """Whether identical code differs so much (or was never timed) that this reading means nothing.

    A gain must clear the identical-code control. Where that control differs from 1 significantly and by more
    than half the margin, any reading must lie apart from it, and a loss must not be what hides a gain.

    Source:
        METHOD.md B5.12 (L > U_S) and B7 (AA_BIAS).
    """
    bar = 1 + policy.margin
    if sham is None or not _is_look(sham, policy):
        return speedup.lower_bound > bar
    is_above = speedup.lower_bound > sham.upper_bound
    if speedup.lower_bound > bar:
        return not is_above
    excludes_one = sham.lower_bound > 1 or sham.upper_bound < 1
    is_biased = excludes_one and abs(sham.point_estimate - 1) > policy.margin / 2
    is_below = speedup.upper_bound < sham.lower_bound
    hides_a_gain = speedup.upper_bound < bar <= speedup.upper_bound / sham.lower_bound
    return is_biased and not is_below and (hides_a_gain or not is_above)


def _ceiling(evidence: Evidence, opponent: str | None) -> Estimate | None:
    """Opponent's time over the fastest headroom arm of any mode.

    None when the opponent's or the candidate's mode has no headroom arm: a slower mode's ceiling is none.
    """
    if opponent is None or opponent in evidence.recompiles:
        return None
    arms = [arm for arm in evidence.arms if arm.role is Role.HEADROOM and arm.status == "ok"]
    arms = [arm for arm in arms if arm.name not in evidence.recompiles]
    contrasts = {arm: stats.block_contrasts(evidence.segments, arm=arm.name, other=opponent) for arm in arms}
    timed = [arm for arm in arms if contrasts[arm]]
    covered = {arm.mode for arm in arms if contrasts[arm] or arm.step_s is not None}
    runs = [_arm(evidence, name) for name in (opponent, evidence.candidate)]
    if not timed or not {run.mode for run in runs if run is not None} <= covered:
        return None
    fastest = max(timed, key=lambda arm: stats.median(chain.from_iterable(contrasts[arm].values())))
    return stats.ceiling_estimate(contrasts[fastest])


def _arm(evidence: Evidence, name: str | None) -> ArmRecord | None:
    return next((arm for arm in evidence.arms if arm.name == name), None)


def _sham_arm(evidence: Evidence) -> str | None:
    return next((arm.name for arm in evidence.arms if arm.role is Role.SHAM and arm.status == "ok"), None)


# Incorrect ------------------------------------------------------------------------------------------------


def _op_is_wrong(case: _Case) -> Iterator[Reason]:
    checks = case.evidence.op_checks
    bad = [(_code_of(check), check) for check in checks if check.status in ("wrong", "raised")]
    for code in dict.fromkeys(code for code, _ in bad):
        same = [check for other, check in bad if other is code]
        worst = max(same, key=_excess)
        errors = _errors(worst.error_candidate, worst.allowed)
        message = f"{len(same)} of {len(checks)} op checks; worst: {errors}, at {worst.site}, {worst.label}"
        message += f": {worst.message}" if worst.message else ""
        where = Where(site=worst.site, shape=worst.shape, dtype=worst.dtype)
        yield Reason(code=code, message=message, where=where)


def _code_of(check: OpCheck) -> ReasonCode:
    raised = check.status == "raised"
    return _accusation(check.code, ReasonCode.CANDIDATE_RAISED if raised else ReasonCode.OP_ERROR_EXCEEDED)


def _accusation(code: ReasonCode | None, fallback: ReasonCode) -> ReasonCode:
    """The check's own code, if it says what a failed check can say."""
    accuses = code is not None and kind_of(code) in (ReasonKind.INCORRECT, ReasonKind.FAILED)
    return code if code is not None and accuses else fallback


def _excess(check: OpCheck) -> float:
    """How far beyond what is allowed; an error that is not even a number is the worst."""
    return math.inf if check.error_candidate is None else check.error_candidate / (check.allowed or 1.0)


def _model_is_wrong(case: _Case) -> Iterator[Reason]:
    check = case.evidence.model_check
    if check is not None and check.status == "wrong":
        errors = _errors(check.error_candidate, check.allowed)
        message = f"logits over {check.tokens} tokens against {check.reference}: {errors}"
        yield Reason(code=_accusation(check.code, ReasonCode.MODEL_ERROR_EXCEEDED), message=message)


def _training_is_wrong(case: _Case) -> Iterator[Reason]:
    check = case.evidence.training
    if check is None:
        return
    lost = check.missing or check.with_gradient_candidate < check.with_gradient_baseline
    if lost:
        names = f": {_some(check.missing)}" if check.missing else ""
        counts = f"{check.with_gradient_candidate} of {check.with_gradient_baseline}"
        message = f"{counts} parameters keep their gradient{names}"
        where = Where(parameter=check.missing[0] if check.missing else None)
        yield Reason(code=ReasonCode.GRADIENTS_MISSING, message=message, where=where)
    if check.status == "wrong" and not (lost and check.code in (None, ReasonCode.GRADIENTS_MISSING)):
        own = wording.small(check.worst_error_baseline)
        message = f"worst gradient: error {wording.small(check.worst_error_candidate)}, baseline's own {own}"
        message += f", at {check.worst_parameter}" if check.worst_parameter else ""
        code = _accusation(check.code, ReasonCode.GRADIENT_ERROR_EXCEEDED)
        yield Reason(code=code, message=message, where=Where(parameter=check.worst_parameter))


def _replay_differs(case: _Case) -> Iterator[Reason]:
    """A mismatch accuses only where the baseline was seen to replay; else the outputs are just unverified."""
    audit = case.evidence.audit
    if audit is None:
        return
    found: dict[ReasonCode, list[str]] = {}
    for line in audit.mismatches:  # `arm: n of m`
        role = _role(case.evidence, line.rsplit(":", 1)[0])
        code = ReasonCode.UNVERIFIED_OUTPUTS
        if role is Role.CANDIDATE and audit.baseline_repeats is not None:
            code = ReasonCode.STALE_OUTPUT
        elif role in (Role.BASELINE, Role.SHAM) and audit.baseline_repeats:
            code = ReasonCode.CONTAMINATED_BASELINE
        found.setdefault(code, []).append(line)
    for code, lines in found.items():
        message = f"audited steps that another process did not reproduce: {_some(lines)}"
        yield Reason(code=code, message=message)


def _role(evidence: Evidence, name: str) -> Role | None:
    arm, prefix = _arm(evidence, name), name.split(":", 1)[0]
    if arm is not None:
        return arm.role
    return Role(prefix) if prefix in list(Role) else None


# Failed, not applicable, no headroom ----------------------------------------------------------------------


def _faults(case: _Case) -> Iterator[Reason]:
    """Every kind of fault; ordering by kind puts each where it belongs."""
    faults = case.evidence.faults
    for code in dict.fromkeys(fault.code for fault in faults):
        if kind_of(code) in (ReasonKind.NO_HEADROOM, ReasonKind.INTERVAL):
            raise ValueError(f"{code} is a conclusion, and evidence holds none")
        same = [fault for fault in faults if fault.code is code]
        more = f" (and {len(same) - 1} more)" if len(same) > 1 else ""
        message = f"{same[0].message}{more}, in stage {same[0].stage}"
        yield Reason(code=code, message=message, where=same[0].where)


def _sites(case: _Case) -> Iterator[Reason]:
    engagement = case.evidence.engagement
    if engagement is None:
        return
    found, patched, called = engagement.sites_found, engagement.sites_patched, engagement.sites_called
    if found == 0:
        yield Reason(code=ReasonCode.NO_SITES, message="0 sites found in this model")
    elif patched == 0:
        yield Reason(code=ReasonCode.SITES_INCOMPATIBLE, message=_why_unpatched(engagement.sites))
    elif called < patched:
        silent = [site.fqn for site in engagement.sites if site.status == "patched" and site.calls == 0]
        code = ReasonCode.PARTLY_APPLIED if called else ReasonCode.NEVER_CALLED
        message = f"the kernel ran at {called} of {patched} patched sites"
        message += f"; not at {_some(silent)}" if silent else ""
        yield Reason(code=code, message=message, where=Where(site=silent[0] if silent else None))


def _why_unpatched(sites: Sequence[SiteRecord]) -> str:
    reasons = list(dict.fromkeys(site.reason for site in sites if site.reason))
    why = _some(reasons) if reasons else "no reason was recorded"
    if sites and all(site.status == "declined" for site in sites):
        return f"the kernel's declared constraints exclude all {len(sites)} sites: {why}"
    return f"none of {len(sites)} sites could take the kernel: {why}"


def _no_headroom(case: _Case) -> Iterator[Reason]:
    ceiling = case.known_ceiling
    if ceiling is None or not case.has_no_headroom:
        return
    most = ceiling.upper_bound - 1
    message = "the step is no faster without this op: no kernel for it can win anything"
    if most > 0:
        message = f"this op is at most {wording.percent(most)} of the step: no kernel for it can win more"
    behind = f"ceiling {wording.estimate(ceiling)} from {ceiling.look} workers"
    message += f" ({behind}, margin {wording.percent(case.policy.margin)})"
    yield Reason(code=ReasonCode.NO_HEADROOM, message=message)


# Blocking -------------------------------------------------------------------------------------------------


def _outputs_are_unverified(case: _Case) -> Iterator[Reason]:
    audit = case.evidence.audit
    if not case.is_at_verdict:
        return
    message = None
    if audit is None:
        message = "no timed step was audited"
    elif audit.steps_committed < audit.steps_timed:
        message = f"{audit.steps_committed} of {audit.steps_timed} timed steps committed their outputs"
    elif audit.steps_audited == 0:
        message = f"none of {audit.steps_timed} timed steps was replayed"
    if message:
        yield Reason(code=ReasonCode.UNVERIFIED_OUTPUTS, message=message)


def _check_has_no_power(case: _Case) -> Iterator[Reason]:
    evidence = case.evidence
    survivors = [mutant.name for mutant in evidence.mutants if not mutant.caught]
    finished = evidence.stage_finished
    if survivors:
        number = f"{len(survivors)} of {len(evidence.mutants)}"
        message = f"{number} wrong kernels passed the check: {_some(survivors)}"
        yield Reason(code=ReasonCode.CHECK_NO_POWER, message=message)
    elif finished is not None and finished.rank >= Stage.CHECK.rank and not _captured(evidence, "passed"):
        message = "the kernel passed on no input captured from the model"
        yield Reason(code=ReasonCode.CHECK_NO_POWER, message=message)


def _captured(evidence: Evidence, *statuses: str) -> list[OpCheck]:
    """Checks on the model's own inputs."""
    checks = [check for check in evidence.op_checks if check.label == "captured"]
    return [check for check in checks if not statuses or check.status in statuses]


def _is_off_path(case: _Case) -> Iterator[Reason]:
    evidence = case.evidence
    if not case.is_timed or case.has_no_headroom:
        return
    arm, engagement = _arm(evidence, evidence.candidate), evidence.engagement
    message = None
    if arm is None or arm.status != "ok":
        message = f"candidate arm {evidence.candidate or '(none)'}: {arm.status if arm else 'not measured'}"
    elif not arm.kernel_calls:
        message = f"no call of the kernel was seen in {arm.name}"
    elif engagement is None or not engagement.proof:
        message = "no untimed step proved that the kernel runs at its sites"
    elif engagement.watermark_moved is False:
        message = "replacing the kernel's output by a constant did not change the model's output"
    if message:
        yield Reason(code=ReasonCode.NOT_ON_PATH, message=message)


def _recompiled(case: _Case) -> Iterator[Reason]:
    """Headroom arms are left out: one that recompiled gives no ceiling, and touches nothing else."""
    headroom = {arm.name for arm in case.evidence.arms if arm.role is Role.HEADROOM}
    arms = [name for name in case.evidence.recompiles if name not in headroom]
    if arms:
        yield Reason(code=ReasonCode.RECOMPILED, message=f"compiled while timed: {_some(arms)}")


def _identical_code_differs(case: _Case) -> Iterator[Reason]:
    row, sham = case.deciding, case.sham
    if row is None or not case.is_at_verdict or not _is_look(row.speedup, case.policy):
        return
    if _is_drowned(row.speedup, sham, case.policy):
        message = "identical code was not timed in enough workers, so the swap's own effect is unknown"
        if sham is not None and _is_look(sham, case.policy):
            reading = wording.estimate(row.speedup)
            message = f"identical code reads {wording.estimate(sham)}; {reading} does not stand out from it"
        yield Reason(code=ReasonCode.IDENTICAL_CODE_DIFFERS, message=message)


def _exceeds_ceiling(case: _Case) -> Iterator[Reason]:
    if case.exceeds_ceiling and case.deciding and case.ceiling:
        gain, most = wording.estimate(case.deciding.speedup), wording.estimate(case.ceiling)
        message = f"{gain}, where removing the op altogether gives {most}"
        yield Reason(code=ReasonCode.CEILING_EXCEEDED, message=message)


def _has_too_few_workers(case: _Case) -> Iterator[Reason]:
    workers = min(case.workers, case.evidence.workers_finished)
    if case.is_at_verdict and workers < case.policy.looks[0]:
        blocks = f"with at least {case.policy.blocks} mirrored blocks"
        message = f"{workers} worker processes finished {blocks}; a verdict needs {case.policy.looks[0]}"
        yield Reason(code=ReasonCode.TOO_FEW_WORKERS, message=message)


def _baseline_is_unfair(case: _Case) -> Iterator[Reason]:
    opponent = opponent_arm(case.evidence, case.policy.decides)
    arms = [_arm(case.evidence, name) for name in (AS_SHIPPED, opponent)]
    bad = next((arm for arm in arms if arm is not None and arm.status in ("failed", "void")), None)
    if bad is not None:
        message = f"{bad.name} {bad.status}: {bad.reason or 'no reason was recorded'}"
        yield Reason(code=ReasonCode.BASELINE_UNFAIR, message=message)
    elif case.is_at_verdict and opponent is None:
        message = f"no arm stands for the opponent {case.policy.decides}"
        yield Reason(code=ReasonCode.BASELINE_UNFAIR, message=message)


def _budget_is_exhausted(case: _Case) -> Iterator[Reason]:
    row = case.deciding
    is_decided = row is not None and row.outcome is not Outcome.INCONCLUSIVE
    open_question = _is_unfinished(case.evidence) or case.is_at_verdict
    if case.evidence.budget_exhausted and open_question and not is_decided and not case.has_no_headroom:
        done = f"{case.evidence.workers_finished} of up to {case.policy.looks[-1]} workers"
        message = f"the budget of {case.policy.budgets.cell_s:.0f} s ended after {done}"
        yield Reason(code=ReasonCode.BUDGET_EXHAUSTED, message=message)


def _is_unfinished(evidence: Evidence) -> bool:
    finished = -1 if evidence.stage_finished is None else evidence.stage_finished.rank
    return finished < evidence.stage_asked.rank


def _incomplete(evidence: Evidence) -> Reason:
    last = evidence.stage_finished or "none"
    message = f"last finished stage: {last}; asked for: {evidence.stage_asked}"
    return Reason(code=ReasonCode.RUN_INCOMPLETE, message=message)


# Interval rule --------------------------------------------------------------------------------------------


def _screened(case: _Case) -> Iterator[Reason]:
    if case.evidence.stage_asked is not Stage.SCREEN or _is_unfinished(case.evidence) or case.has_no_headroom:
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
    baseline, candidate = _arm(evidence, evidence.baseline), _arm(evidence, evidence.candidate)
    if baseline is None or candidate is None or baseline.step_s is None or not candidate.step_s:
        return None
    return baseline.step_s / candidate.step_s


def _decided_by_interval(case: _Case) -> Iterator[Reason]:
    row = case.deciding
    if row is None or not case.is_at_verdict or not _is_look(row.speedup, case.policy):
        return
    low, high = row.speedup.lower_bound, row.speedup.upper_bound
    reading = f"{wording.estimate(row.speedup)} against {wording.arm(row.arm)}"
    margin = wording.percent(case.policy.margin)
    if row.outcome is Outcome.CONFIRMED and case.sham is not None:
        message = f"{reading}; margin {margin}, identical code {wording.estimate(case.sham)}"
        yield Reason(code=ReasonCode.GAIN_CONFIRMED, message=message)
    elif row.outcome is Outcome.REFUTED:
        yield _refuted(case, row, reading)
    else:
        gain = f"no gain above {wording.percent(high - 1)}" if high > 1 else "no gain"
        loss = f"no loss above {wording.percent(1 - low)}" if low < 1 else "no loss"
        message = f"{reading}: {gain}, {loss}; the margin is {margin}"
        yield Reason(code=ReasonCode.INTERVAL_STRADDLES, message=message)


def _refuted(case: _Case, row: Against, reading: str) -> Reason:
    shipped = next((other for other in case.against if other.opponent == "as_shipped"), None)
    if row.speedup.upper_bound < 1 - case.policy.margin:
        return Reason(code=ReasonCode.REGRESSION, message=f"slower: {reading}")
    if row.opponent == "best_pytorch" and shipped is not None and shipped.outcome is Outcome.CONFIRMED:
        also = f"against eager as shipped it is {wording.estimate(shipped.speedup)}"
        message = f"matched by {wording.arm(row.arm)}: {wording.estimate(row.speedup)} against it; {also}"
        return Reason(code=ReasonCode.MATCHED_BY_PYTORCH, message=message)
    message = f"{reading}: below the margin of {wording.percent(case.policy.margin)}"
    return Reason(code=ReasonCode.BELOW_MARGIN, message=message)


# Advice ---------------------------------------------------------------------------------------------------


def _advice(case: _Case) -> Iterator[Reason]:
    evidence, row, device = case.evidence, case.deciding, case.evidence.device
    half = _half_width(row)
    if half is not None and half > 2 * case.policy.margin:
        message = f"half width {wording.percent(half)}, margin {wording.percent(case.policy.margin)}"
        yield Reason(code=ReasonCode.NOISY, message=message)
    if device and device.kind == "cuda" and device.busy_ratio is not None and device.busy_ratio < BUSY_RATIO:
        idle = wording.percent(1 - device.busy_ratio)
        message = f"the device is idle for {idle} of the best baseline's step"
        yield Reason(code=ReasonCode.HOST_BOUND, message=message)
    others = _contention(evidence)
    if others:
        yield Reason(code=ReasonCode.CONTENTION, message="; ".join(others))
    if evidence.unseen:
        yield Reason(code=ReasonCode.CANNOT_SEE, message="; ".join(evidence.unseen))
    if evidence.random_weights:
        message = "random weights: times hold, outputs mean little"
        yield Reason(code=ReasonCode.RANDOM_WEIGHTS, message=message)


def _contention(evidence: Evidence) -> list[str]:
    """Signs of others on the machine; what cannot be seen is no sign."""
    seen = evidence.telemetry
    found = []
    if seen.cpu_pressure_ratio is not None and seen.cpu_pressure_ratio > CPU_PRESSURE:
        found.append(f"processes waited for a CPU {wording.percent(seen.cpu_pressure_ratio)} of the time")
    if seen.steal_ratio is not None and seen.steal_ratio > STEAL:
        found.append(f"the hypervisor took {wording.percent(seen.steal_ratio)} of CPU time")
    if seen.foreign_processes is not None and seen.foreign_processes > 0:
        found.append(f"{seen.foreign_processes} other processes on the device")
    return found


# From reasons to a verdict --------------------------------------------------------------------------------

RULES: tuple[Callable[[_Case], Iterator[Reason]], ...] = (
    _op_is_wrong,
    _model_is_wrong,
    _training_is_wrong,
    _replay_differs,
    _faults,
    _sites,
    _no_headroom,
    _outputs_are_unverified,
    _check_has_no_power,
    _is_off_path,
    _recompiled,
    _identical_code_differs,
    _exceeds_ceiling,
    _baseline_is_unfair,
    _budget_is_exhausted,
    _has_too_few_workers,
    _screened,
    _decided_by_interval,
    _advice,
)
_NUMERICS_RULES = (_op_is_wrong, _model_is_wrong, _training_is_wrong)
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


def _latency(case: _Case, reasons: Sequence[Reason], outcome: Outcome | None) -> Latency:
    codes = {reason.code for reason in reasons}
    is_claimed = outcome not in _NO_CLAIM
    rows = case.against if is_claimed else []
    if codes & _TAINTS:
        rows = [row.model_copy(update={"outcome": Outcome.INCONCLUSIVE}) for row in rows]
    return Latency(
        outcome=outcome if is_claimed and (case.is_timed or case.has_no_headroom) else None,
        against=rows,
        sham=case.sham,
        ceiling=case.ceiling,
        half_width=_half_width(case.deciding) if is_claimed else None,
        blocks=case.blocks,
        processes=case.workers,
    )


def _half_width(row: Against | None) -> float | None:
    return None if row is None else (row.speedup.upper_bound - row.speedup.lower_bound) / 2


def _memory(evidence: Evidence) -> MemoryVerdict:
    """The two numbers, or None; no policy asks for a memory outcome yet, so there is none."""
    on_device = evidence.device is not None and evidence.device.kind == "cuda"
    measure = "peak of memory allocated by torch" if on_device else "resident high-water mark of the process"
    return MemoryVerdict(
        outcome=None,
        baseline_bytes=_peak(evidence, evidence.baseline, on_device=on_device),
        candidate_bytes=_peak(evidence, evidence.candidate, on_device=on_device),
        measure=measure if evidence.memory else "not measured",
    )


def _peak(evidence: Evidence, arm: str | None, *, on_device: bool) -> int | None:
    records = [record for record in evidence.memory if record.arm == arm]
    peaks = [record.peak_allocated_bytes if on_device else record.host_high_water_bytes for record in records]
    return max((peak for peak in peaks if peak is not None), default=None)


def _numerics(case: _Case) -> NumericsVerdict:
    evidence, model = case.evidence, case.evidence.model_check
    codes = [reason.code for rule in _NUMERICS_RULES for reason in rule(case)]
    checks = _captured(evidence)
    ratios = [_error_ratio(check.error_candidate, check.error_baseline) for check in checks]
    return NumericsVerdict(
        outcome=Outcome.INCORRECT if any(kind_of(code) is ReasonKind.INCORRECT for code in codes) else None,
        op_checks=len(evidence.op_checks),
        worst_op_ratio=max((ratio for ratio in ratios if ratio is not None), default=None),
        model_ratio=_error_ratio(model.error_candidate, model.error_baseline) if model else None,
        mutants_caught=sum(mutant.caught for mutant in evidence.mutants),
        mutants=len(evidence.mutants),
    )


def _error_ratio(candidate: float | None, baseline: float | None) -> float | None:
    return None if candidate is None or not baseline else candidate / baseline


# Words ----------------------------------------------------------------------------------------------------


def _errors(error: float | None, allowed: float | None) -> str:
    return f"error {wording.small(error)}, allowed {wording.small(allowed)}"


def _some(items: Sequence[str], most: int = 3) -> str:
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more
