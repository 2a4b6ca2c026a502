"""Whether outputs are right, and whether the checks that say so have any power."""

from __future__ import annotations

import math
from collections.abc import Iterator

from e2e import wording
from e2e.arm_names import WITH_KERNELS
from e2e.rules import drift, lossy
from e2e.rules._words import culprits, error_words, some
from e2e.schema.evidence import EXAMPLE, TYPICAL, Evidence, LossPath, OpCheck, Where
from e2e.schema.verdict import NumericsVerdict, Reason
from e2e.schema.words import Outcome, ReasonCode, ReasonKind, Role, Stage, accusation, kind_of
from e2e.weighing import Case, find_arm


def op_is_wrong(case: Case) -> Iterator[Reason]:
    """The op is wrong, or raised, on inputs it said it takes: one reason per code, the worst input named."""
    checks = case.evidence.op_checks
    bad = [(_code_of(check), check) for check in checks if check.status in ("wrong", "raised")]
    for code in dict.fromkeys(code for code, _ in bad):
        same = [check for other, check in bad if other is code]
        worst = max(same, key=_excess)
        errors = error_words(worst.error_candidate, worst.allowed)
        message = f"{len(same)} of {len(checks)} op checks; worst: {errors}, at {worst.site}, {worst.label}"
        message += f": {worst.message}" if worst.message else ""
        message += f"; {worst.position}" if worst.position else ""
        message += culprits(case.evidence)
        where = Where(file=worst.kernel, site=worst.site, shape=worst.shape, dtype=worst.dtype, position=worst.position)
        yield Reason(code=code, message=message, where=where)


def _code_of(check: OpCheck) -> ReasonCode:
    raised = check.status == "raised"
    return accusation(check.code) or (ReasonCode.CANDIDATE_RAISED if raised else ReasonCode.OP_ERROR_EXCEEDED)


def _excess(check: OpCheck) -> float:
    """How far beyond what is allowed; an error that is not even a number is the worst."""
    return math.inf if check.error_candidate is None else check.error_candidate / (check.allowed or 1.0)


def model_is_wrong(case: Case) -> Iterator[Reason]:
    """The model's outputs moved further than the baseline's own error allows."""
    check = case.evidence.model_check
    if check is not None and check.status == "wrong":
        errors = error_words(check.error_candidate, check.allowed)
        answers = wording.count(check.tokens, check.answer.per)
        message = f"{check.answer.what} over {answers} against {check.reference}: {errors}"
        if check.mutates:
            message += f"; it declares `mutates: [{', '.join(check.mutates)}]`, which the model may need afterwards"
        message += culprits(case.evidence)
        yield Reason(code=accusation(check.code) or ReasonCode.MODEL_ERROR_EXCEEDED, message=message)


def model_is_wrong_under_conditions(case: Case) -> Iterator[Reason]:
    """The same where the step's own calls do not go."""
    check = case.evidence.model_check
    for found in check.conditions if check is not None else ():
        if found.status != "wrong":
            continue
        place = f"row {found.first[0]}, token {found.first[1]}" if found.first and len(found.first) > 1 else None
        message = f"{found.name}, over {wording.count(found.tokens, 'token')}: "
        message += error_words(found.error_candidate, found.allowed) + (f", first at {place}" if place else "")
        message += culprits(case.evidence)
        code = accusation(found.code) or ReasonCode.MODEL_ERROR_EXCEEDED
        yield Reason(code=code, message=message, where=Where(position=place))


def training_is_wrong(case: Case) -> Iterator[Reason]:
    """A parameter lost its gradient, or has a wrong one."""
    check = case.evidence.training
    if check is None:
        return
    lost = check.missing or check.with_gradient_candidate < check.with_gradient_baseline
    if lost:
        names = f": {some(check.missing)}" if check.missing else ""
        counts = f"{check.with_gradient_candidate} of {check.with_gradient_baseline}"
        message = f"{counts} parameters keep their gradient{names}{culprits(case.evidence)}"
        where = Where(parameter=check.missing[0] if check.missing else None)
        yield Reason(code=ReasonCode.GRADIENTS_MISSING, message=message, where=where)
    if check.status == "wrong" and not (lost and check.code in (None, ReasonCode.GRADIENTS_MISSING)):
        own = wording.small(check.worst_error_baseline)
        message = f"worst gradient: error {wording.small(check.worst_error_candidate)}, baseline's own {own}"
        message += f", at {check.worst_parameter}" if check.worst_parameter else ""
        message += culprits(case.evidence)
        code = accusation(check.code) or ReasonCode.GRADIENT_ERROR_EXCEEDED
        yield Reason(code=code, message=message, where=Where(parameter=check.worst_parameter))
    for path in check.paths:
        if path.code is not None:
            yield Reason(code=accusation(path.code) or ReasonCode.LOSS_PATH_LEFT, message=_path_words(path))


def _path_words(path: LossPath) -> str:
    message = f"{path.steps} steps of {path.optimizer}: "
    if path.apart is None or path.bias is None:
        return message + "the losses are not finite"
    if path.apart > path.allowed:
        allowed = wording.small(path.allowed)
        return message + f"the loss is {wording.small(path.apart)} from the baseline's, allowed {allowed}"
    where = "above" if path.bias > 0 else "below"
    bias, allowed = wording.small(abs(path.bias)), wording.small(path.bias_allowed)
    return message + f"in the end the loss lies {bias} {where} the baseline's on average, allowed {allowed}"


def replay_differs(case: Case) -> Iterator[Reason]:
    """A mismatch accuses only where the baseline was seen to replay; else the outputs are just unverified."""
    audit = case.evidence.audit
    if audit is None:
        return
    found: dict[ReasonCode, list[str]] = {}
    for line in audit.mismatches:  # `arm: n of m`
        role = _role(case.evidence, line.rsplit(":", 1)[0])
        code = ReasonCode.UNVERIFIED_OUTPUTS
        if role in WITH_KERNELS and audit.baseline_repeats is not None:
            code = ReasonCode.STALE_OUTPUT
        elif role in (Role.BASELINE, Role.SHAM) and audit.baseline_repeats:
            code = ReasonCode.CONTAMINATED_BASELINE
        found.setdefault(code, []).append(line)
    for code, lines in found.items():
        message = f"audited steps that another process did not reproduce: {some(lines)}"
        yield Reason(code=code, message=message)


def timed_outputs_differ(case: Case) -> Iterator[Reason]:
    """In timed steps the candidate answered otherwise than the baseline did to the same input."""
    audit = case.evidence.audit
    if audit is not None and audit.disagreements:
        message = f"timed steps whose outputs are not the baseline's on the same input: {some(audit.disagreements)}"
        yield Reason(code=ReasonCode.MODEL_ERROR_EXCEEDED, message=message)


def _role(evidence: Evidence, name: str) -> Role | None:
    arm, prefix = find_arm(evidence, name), name.split(":", 1)[0]
    if arm is not None:
        return arm.role
    return Role(prefix) if prefix in list(Role) else None


def outputs_are_unverified(case: Case) -> Iterator[Reason]:
    """Not every timed step left a fingerprint of its outputs, or none was replayed."""
    audit = case.evidence.audit
    if not case.is_at_verdict or not case.evidence.workers_finished:
        return  # no worker finished: there is no claim whose outputs would need verifying
    message = None
    if audit is None:
        message = "no timed step was audited"
    elif audit.steps_committed < audit.steps_timed:
        message = f"{audit.steps_committed} of {audit.steps_timed} timed steps committed their outputs"
    elif not audit.steps_compared and case.timing is Outcome.CONFIRMED:
        message = f"none of {audit.steps_timed} timed steps was compared with the baseline's on the same input"
    elif audit.steps_audited == 0:
        message = f"none of {audit.steps_timed} timed steps was replayed"
    if message:
        yield Reason(code=ReasonCode.UNVERIFIED_OUTPUTS, message=message)


def check_has_no_power(case: Case) -> Iterator[Reason]:
    """The check let a wrong kernel through, or never saw an input of this model."""
    evidence = case.evidence
    survivors = [mutant.name for mutant in evidence.mutants if not mutant.caught]
    finished, unjudged = evidence.stage_finished, lossy.is_not_judged(case)
    if unjudged:
        yield Reason(code=ReasonCode.CHECK_NO_POWER, message=unjudged)
    elif survivors:
        number = f"{len(survivors)} of {len(evidence.mutants)}"
        message = f"{number} wrong kernels passed the check: {some(survivors)}"
        yield Reason(code=ReasonCode.CHECK_NO_POWER, message=message)
    elif evidence.model_check is not None and evidence.model_check.kernel_calls == 0:
        message = "the kernel's constraints exclude every call of the model-level check, which so says nothing"
        yield Reason(code=ReasonCode.CHECK_NO_POWER, message=message)
    elif finished is not None and finished.rank >= Stage.CHECK.rank:
        for kernel in evidence.kernels or (None,):
            if not _has_passed(evidence, kernel):
                yield Reason(code=ReasonCode.CHECK_NO_POWER, message=_never_passed(evidence, kernel))


def _never_passed(evidence: Evidence, kernel: str | None) -> str:
    if any(check.label == EXAMPLE for check in evidence.op_checks):
        return "the kernel declines the op's example"
    return f"{kernel or 'the kernel'} passed on no input captured from the model"


def _has_passed(evidence: Evidence, kernel: str | None) -> bool:
    """Whether the kernel was right on an input of this model, or has no site that could be asked alone."""
    found = evidence.engagement.sites if evidence.engagement else []
    sites = [site for site in found if site.status == "patched" and site.kernel == kernel]
    if sites and all(site.unchecked for site in sites):
        return evidence.model_check is not None or evidence.training is not None
    return any(check.kernel == kernel for check in _typical(evidence, "passed", "lossy"))


def numerics_of(case: Case) -> NumericsVerdict:
    """Drift beside the baseline's own, and what the rules above make of it."""
    evidence, model = case.evidence, case.evidence.model_check
    codes = [reason.code for rule in _WRONG for reason in rule(case)]
    checks = _typical(evidence)
    ratios = [drift.over(check.error_candidate, check.error_baseline) for check in checks]
    return NumericsVerdict(
        outcome=Outcome.INCORRECT if any(kind_of(code) is ReasonKind.INCORRECT for code in codes) else None,
        op_checks=len(evidence.op_checks),
        worst_op_ratio=max((ratio for ratio in ratios if ratio is not None), default=None),
        model_ratio=drift.model_ratio(model) if model else None,
        depth_slope=drift.slope(model.depth) if model else None,
        depth_jump=drift.jump(model.depth) if model else None,
        mutants_caught=sum(mutant.caught for mutant in evidence.mutants),
        mutants=len(evidence.mutants),
    )


_WRONG = (op_is_wrong, model_is_wrong, model_is_wrong_under_conditions, lossy.budget_is_exceeded, training_is_wrong)


def _typical(evidence: Evidence, *statuses: str) -> list[OpCheck]:
    """Checks on inputs that the kernel must take."""
    checks = [check for check in evidence.op_checks if check.label in TYPICAL]
    return [check for check in checks if not statuses or check.status in statuses]
