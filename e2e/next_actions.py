"""What to type next, after any verdict: the actions that would fix, resolve or use it. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from e2e import sizing, wording
from e2e.arm_names import ArmName, is_adopted
from e2e.invocation import Invocation
from e2e.schema.evidence import Evidence
from e2e.schema.policy import Policy
from e2e.schema.result import NextAction
from e2e.schema.verdict import Against, Verdict
from e2e.schema.words import Mode, ReasonCode, ReasonKind, Stage, kind_of
from e2e.schema.workload import Cell

SMALL_POLICY, FULL_POLICY, FULL_SECONDS = "demo", "standard", 900.0
"""The built-in policies, and the time the full one takes for a cell (DESIGN.md 3)."""
_STAGE_SECONDS = {Stage.BUILD: 10.0, Stage.CHECK: 30.0, Stage.SCREEN: 90.0}
"""What each earlier stage promises. Source: DESIGN.md 3."""
_AGAIN_SECONDS = 10.0
"""Of `e2e check`: most of it is imports and the build."""
_MOST_LARGER = 8
"""A larger shape is suggested at most so many times larger: beyond it the next limit is memory."""


@dataclass(frozen=True)
class _Case:
    cell: Cell
    evidence: Evidence
    verdict: Verdict
    policy: Policy
    invocation: Invocation

    @property
    def deciding(self) -> Against | None:
        rows = self.verdict.latency.against
        return next((row for row in rows if row.opponent == self.policy.decides), None)

    @property
    def workers_to_decide(self) -> int | None:
        return sizing.workers_to_decide(self.deciding, self.policy)

    @property
    def is_host_bound(self) -> bool:
        return any(reason.code is ReasonCode.HOST_BOUND for reason in self.verdict.reasons)


def next_actions(
    evidence: Evidence,
    verdict: Verdict,
    *,
    headline: ReasonCode | None,
    cell: Cell,
    policy: Policy,
    invocation: Invocation,
) -> list[NextAction]:
    """Actions for the headline, most useful first; without one, the next stage."""
    case = _Case(cell, evidence, verdict, policy, invocation)
    if headline is None:
        return [_next_stage(case)]
    by_code = _BY_CODE.get(headline) or _BY_KIND[kind_of(headline)]
    return by_code(case, headline)


def _next_stage(case: _Case) -> NextAction:
    """After a stage that was asked for and passed."""
    later = [stage for stage in Stage if stage.rank > case.evidence.stage_asked.rank]
    until = later[0] if later else Stage.VERDICT
    command = case.invocation.validate(until=until if until is not Stage.VERDICT else None)
    seconds = _STAGE_SECONDS.get(until, case.policy.budgets.cell_s)
    why = f"stage {case.evidence.stage_asked} passed; the next one is {until}, about {wording.span(seconds)}"
    return NextAction(kind="next_stage", why=why, command=command, seconds=seconds)


def _fix_check(case: _Case, code: ReasonCode) -> list[NextAction]:
    """Found by the op or model check, or earlier: the short loop shows whether a fix works."""
    fix = _fix(case, f"fix {_fault_place(case, code)}, then repeat the check", until=Stage.CHECK)
    return [*_see_again(case), fix]


def _see_again(case: _Case) -> list[NextAction]:
    """On the very inputs, without the model."""
    command = case.invocation.check() if case.evidence.failing_inputs else None
    why = "see it again in seconds, on the inputs that failed"
    return [NextAction(kind="reproduce", why=why, command=command, seconds=_AGAIN_SECONDS)] if command else []


def _fix_precision(case: _Case, code: ReasonCode) -> list[NextAction]:
    why = "compute in the model's own precision, or declare `precision:` in the kernel's block"
    return [_fix(case, f"{why}: then the policy's budget for the model's outputs decides", until=Stage.CHECK)]


def _fix_build(case: _Case, code: ReasonCode) -> list[NextAction]:
    return [_fix(case, f"fix {_fault_place(case, code)}, then build again", until=Stage.BUILD)]


def _fix_backward(case: _Case, code: ReasonCode) -> list[NextAction]:
    why = "add a backward to the kernel (`backward:` in its block), or validate it in an inference workload"
    return [_fix(case, why, until=Stage.CHECK)]


def _fix_timed(case: _Case, code: ReasonCode) -> list[NextAction]:
    """Found in timed steps, so only timing them again shows whether a fix works."""
    why = f"fix {_fault_place(case, code)}: outputs may depend on nothing but the step's own input"
    seconds = case.policy.budgets.cell_s
    return [NextAction(kind="fix", why=why, command=case.invocation.validate(), seconds=seconds)]


def _smaller(case: _Case, code: ReasonCode) -> list[NextAction]:
    why = "memory does not hold the workload here: take smaller cells, another dtype, or a larger device"
    seconds = case.policy.budgets.cell_s
    return [NextAction(kind="choose_workload", why=why, command=case.invocation.validate(), seconds=seconds)]


def _fix(case: _Case, why: str, *, until: Stage) -> NextAction:
    command = case.invocation.validate(until=until)
    return NextAction(kind="fix", why=why, command=command, seconds=_STAGE_SECONDS[until])


def _fault_place(case: _Case, code: ReasonCode) -> str:
    """`rmsnorm.cu:31`, or the kernel and where it was caught: the most exact place known."""
    where = next(reason.where for reason in case.verdict.reasons if reason.code is code)
    if where.file:
        return f"{where.file}:{where.line}" if where.line else where.file
    caught = where.site or where.parameter
    return f"the kernel (caught at {caught})" if caught else "the kernel"


def _elsewhere(case: _Case, code: ReasonCode) -> list[NextAction]:
    why = "choose a workload whose model has the op in the kernel's own meaning"
    other = NextAction(kind="choose_workload", why=why, command="e2e list workloads")
    return [other, _read(case, "the report names every site, and why it was not patched")]


def _read(case: _Case, why: str) -> NextAction:
    return NextAction(kind="read", why=why, command=case.invocation.on_run("report"))


def _trace(case: _Case, why: str) -> NextAction:
    return NextAction(kind="trace", why=why, command=case.invocation.on_run("trace"))


def _other_op(case: _Case, code: ReasonCode) -> list[NextAction]:
    why = "no kernel for this op can win here: look where the step's time goes, and take a larger op"
    return [NextAction(kind="choose_op", why=why, command=case.invocation.on_run("trace"))]


def _look_at_trace(case: _Case, code: ReasonCode) -> list[NextAction]:
    why = "compare the kernels of both arms in the trace: added copies, launches, and lost fusions"
    ceiling = case.verdict.latency.ceiling
    if ceiling is not None:
        why += f"; any kernel for this op can win at most {wording.ratio(ceiling.upper_bound)}"
    return [_trace(case, why), _screen_again(case)]


def _screen_again(case: _Case) -> NextAction:
    """The short loop for speed."""
    seconds = _STAGE_SECONDS[Stage.SCREEN]
    why = f"after a change, screen first: about {wording.span(seconds)}"
    command = case.invocation.validate(until=Stage.SCREEN)
    return NextAction(kind="screen", why=why, command=command, seconds=seconds)


def _use_pytorch(case: _Case, code: ReasonCode) -> list[NextAction]:
    row = case.deciding
    path = wording.arm(row.arm) if row else "the strongest PyTorch path"
    why = f"use {path} instead: as fast, and nothing to maintain"
    alternative = ArmName.parse(row.arm).alternative if row else None
    command = case.invocation.on_run("report")
    if alternative is not None and not is_adopted(alternative) and len(case.invocation.kernels) == 1:
        command = case.invocation.on_run("adopt", "--alternative", alternative)
    use = NextAction(kind="use_pytorch", why=why, command=command)
    return [use, *_look_at_trace(case, code)]


def _keep(case: _Case, code: ReasonCode) -> list[NextAction]:
    why = "let CI re-judge this run: exit code 0 while the verdict holds"
    gate = NextAction(kind="gate", why=why, command=case.invocation.on_run("gate"))
    return [gate, _read(case, "the evidence in full")]


def _full_verdict(case: _Case, code: ReasonCode) -> list[NextAction]:
    seconds = case.policy.budgets.cell_s
    why = f"the screen leaves room for a gain; a verdict takes up to {wording.span(seconds)}"
    return [NextAction(kind="next_stage", why=why, command=case.invocation.validate(), seconds=seconds)]


# What would resolve it ------------------------------------------------------------------------------------


def _more_time(case: _Case, code: ReasonCode) -> list[NextAction]:
    """The run ended early: time for the workers that a look needs or that would decide, at this pace."""
    looks, done = case.policy.looks, case.evidence.workers_finished
    workers = min(max(case.workers_to_decide or 0, looks[0]), looks[-1])
    budget_s = case.policy.budgets.cell_s * (max(2.0, workers / done) if done else 2.0)
    budget_s = 60.0 * math.ceil(budget_s / 60)
    why = f"{workers} workers are needed, {done} finished: give the run {wording.span(budget_s)}"
    command = case.invocation.validate(budget_s=budget_s)
    return [NextAction(kind="more_time", why=why, command=command, seconds=budget_s)]


def _resolve(case: _Case, code: ReasonCode) -> list[NextAction]:
    """The interval straddles the margin after the last look (or, at a screen, nothing decided yet)."""
    if case.evidence.stage_asked is not Stage.VERDICT:
        return _full_verdict_or_trace(case)
    actions = [*_full_policy(case), _repeat(case)]
    if case.is_host_bound:
        why = "the device waits for the host, and the host's time varies: the trace shows where"
        actions += [_larger_shape(case), _trace(case, why)]
    return actions


def _full_verdict_or_trace(case: _Case) -> list[NextAction]:
    seconds = case.policy.budgets.cell_s
    why = f"only a verdict run decides: up to {wording.span(seconds)}"
    verdict = NextAction(kind="next_stage", why=why, command=case.invocation.validate(), seconds=seconds)
    return [verdict, _trace(case, "where the pilot's step spent its time")]


def _full_policy(case: _Case) -> list[NextAction]:
    """The full policy, where this one was a first look or left out the graphs that a waiting device needs."""
    lacks_graphs = case.is_host_bound and Mode.CUDA_GRAPH not in case.policy.modes
    if case.policy.name != SMALL_POLICY and not lacks_graphs:
        return []
    kind, why = "full_policy", "more workers and longer segments than this first look"
    if lacks_graphs:
        kind, why = "graph_arms", "the device waits for the host: arms in a CUDA graph spare the host's part"
    command = case.invocation.validate(policy=FULL_POLICY)
    why += f": up to {wording.span(FULL_SECONDS)}"
    return [NextAction(kind=kind, why=why, command=command, seconds=FULL_SECONDS)]


def _repeat(case: _Case) -> NextAction:
    """How many workers would decide, in minutes; a fresh run, because adding to this one would be peeking."""
    known = wording.ruled_out(case.deciding.speedup) if case.deciding else "nothing"
    workers, seconds = case.workers_to_decide, case.policy.budgets.cell_s
    if workers is None:
        why = f"ruled out: {known}; the gain lies too near the margin for any schedule: run it again on a quieter"
        why += f" machine ({wording.span(seconds)}), or accept that it is about the margin"
        return NextAction(kind="again", why=why, command=case.invocation.validate(), seconds=seconds)
    seconds = sizing.repeat_seconds(case.evidence, case.policy, workers=workers)
    why = f"ruled out: {known}; about {workers} workers (up to {wording.span(seconds)}) should decide, in a fresh run"
    why += " that stands for itself"
    return NextAction(kind="repeat", why=why, command=case.invocation.repeat(workers), seconds=seconds)


def _larger_shape(case: _Case) -> NextAction:
    """A batch that would keep the device busy, if its time grows with the batch and the host's does not."""
    device = case.evidence.device
    busy = (device.busy_ratio if device else None) or 0.5
    batch = case.cell.batch * min(_MOST_LARGER, math.ceil(1 / busy))
    other = case.invocation.overriding({"cells.batch": f"[{batch}]", "cells.sequence": f"[{case.cell.sequence}]"})
    seconds = case.policy.budgets.cell_s
    why = f"a batch of {batch} gives the device more to do, and is another question: up to {wording.span(seconds)}"
    return NextAction(kind="other_shape", why=why, command=other.validate(), seconds=seconds)


def _meet_policy(case: _Case, code: ReasonCode) -> list[NextAction]:
    """The same command asks for a fresh seed and the whole verdict by itself; what else is pinned is in the why."""
    missed = next(reason.message for reason in case.verdict.reasons if reason.code is code)
    invocation = case.invocation.as_the_file_is() if case.policy.pins.no_overrides else case.invocation
    seconds = case.policy.budgets.cell_s
    why = f"run what the policy pins ({missed}): up to {wording.span(seconds)}"
    return [NextAction(kind="meet_policy", why=why, command=invocation.validate(), seconds=seconds)]


def _again(case: _Case, code: ReasonCode) -> list[NextAction]:
    """The evidence is not what it claims to be; a fresh run may be."""
    seconds = case.policy.budgets.cell_s
    why = f"{_AGAIN_WHY.get(code, 'the evidence cannot be relied on')}; run it again: {wording.span(seconds)}"
    again = NextAction(kind="again", why=why, command=case.invocation.validate(), seconds=seconds)
    return [again, _read(case, "what was seen, in full")]


def _off_path(case: _Case, code: ReasonCode) -> list[NextAction]:
    span = wording.span(_STAGE_SECONDS[Stage.CHECK])
    why = f"find out why the kernel does not run in the timed arm; the check takes {span}"
    return [_fix(case, why, until=Stage.CHECK), _trace(case, "the kernels that did run")]


def _memory_is_open(case: _Case, code: ReasonCode) -> list[NextAction]:
    """Memory figures, or the step's time beside them, decided nothing."""
    if case.evidence.device is not None and case.evidence.device.kind == "cpu":
        why = "validate it on a GPU: a CPU shows too little of a step's memory for an outcome"
        return [NextAction(kind="choose_device", why=why, command="e2e doctor")]
    return _again(case, code)


def _within_limits(case: _Case, code: ReasonCode) -> list[NextAction]:
    missed = next(reason.message for reason in case.verdict.reasons if reason.code is code)
    seconds = case.policy.budgets.cell_s
    why = f"bring it within the policy's limits ({missed}), then run it again: up to {wording.span(seconds)}"
    return [NextAction(kind="fix", why=why, command=case.invocation.validate(), seconds=seconds)]


def _no_saving(case: _Case, code: ReasonCode) -> list[NextAction]:
    return [_read(case, "every source of memory figures, of both arms, is in the report"), _screen_again(case)]


_AGAIN_WHY = {
    ReasonCode.MEMORY_UNCERTAIN: "memory or time is too near its bound, or was not seen often enough",
    ReasonCode.IDENTICAL_CODE_DIFFERS: "identical code differs: quiet the machine",
    ReasonCode.UNVERIFIED_OUTPUTS: "timed outputs were not all verified",
    ReasonCode.RECOMPILED: "a timed segment compiled something; caches are warm now",
    ReasonCode.CEILING_EXCEEDED: "the gain exceeds the op's whole cost, so one of the two is wrong",
    ReasonCode.CHECK_NO_POWER: "the check catches too little: report it with this run",
    ReasonCode.BASELINE_UNFAIR: "the eager baseline did not run; make it run here (`e2e doctor`)",
    ReasonCode.RUN_INCOMPLETE: "the run ended before its last stage",
}
_BY_CODE: dict[ReasonCode, Callable[[_Case, ReasonCode], list[NextAction]]] = {
    ReasonCode.STALE_OUTPUT: _fix_timed,
    ReasonCode.PREPARED_STALE: _fix_timed,
    ReasonCode.CONTAMINATED_BASELINE: _fix_timed,
    ReasonCode.REPLAYED_OUTPUT: _fix_timed,
    ReasonCode.WORK_OUTSIDE_STEP: _fix_timed,
    ReasonCode.SETTINGS_CHANGED: _fix_timed,
    ReasonCode.TAMPERED: _fix_timed,
    ReasonCode.PRECISION_DOWNGRADED: _fix_precision,
    ReasonCode.BUILD_FAILED: _fix_build,
    ReasonCode.NO_BACKWARD: _fix_backward,
    ReasonCode.NO_ROOM: _smaller,
    ReasonCode.NOT_ON_PATH: _off_path,
    ReasonCode.POLICY_NOT_MET: _meet_policy,
    ReasonCode.TOO_FEW_WORKERS: _more_time,
    ReasonCode.BUDGET_EXHAUSTED: _more_time,
    ReasonCode.GAIN_CONFIRMED: _keep,
    ReasonCode.MATCHED_BY_PYTORCH: _use_pytorch,
    ReasonCode.REGRESSION: _look_at_trace,
    ReasonCode.BELOW_MARGIN: _look_at_trace,
    ReasonCode.INTERVAL_STRADDLES: _resolve,
    ReasonCode.PROMISING: _full_verdict,
    ReasonCode.MEMORY_REDUCED: _keep,
    ReasonCode.MEMORY_NOT_REDUCED: _no_saving,
    ReasonCode.MEMORY_UNCERTAIN: _memory_is_open,
    ReasonCode.LIMIT_EXCEEDED: _within_limits,
}
_BY_KIND: dict[ReasonKind, Callable[[_Case, ReasonCode], list[NextAction]]] = {
    ReasonKind.INCORRECT: _fix_check,
    ReasonKind.FAILED: _fix_check,
    ReasonKind.NOT_APPLICABLE: _elsewhere,
    ReasonKind.NO_HEADROOM: _other_op,
    ReasonKind.BLOCKING: _again,
}
