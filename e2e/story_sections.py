"""The parts of a story: one function per part, each from evidence and verdict to plain words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from e2e.schema.evidence import ArmRecord, Evidence, KernelTime
from e2e.schema.policy import Policy
from e2e.schema.result import CellResult, Result
from e2e.schema.verdict import Latency, Verdict
from e2e.schema.words import Mode, Outcome, Role
from e2e.wording import (
    ABSENT,
    arm,
    clean,
    count,
    duration,
    estimate,
    outcome_word,
    percent,
    ratio,
    size,
    small,
    span,
)

_KERNELS_SHOWN = 8
_SITES_SHOWN = 4
_UNSEEN_SHOWN = 6


@dataclass(frozen=True)
class Table:
    """Cells are text; the first column is on the left, numbers follow."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Section:
    """One part of a report."""

    title: str
    table: Table | None = None
    facts: tuple[tuple[str, str], ...] = ()
    lines: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show."""
        return not (self.facts or self.lines or (self.table and self.table.rows))


def cells_section(result: Result) -> Section:
    """All cells of a sweep, one row each."""
    rows = []
    for cell in result.cells:
        verdict = cell.verdict
        decides = result.policy.decides if result.policy else "best_pytorch"
        against = [item for item in verdict.latency.against if item.opponent == decides]
        speedup = estimate(against[0].speedup) if against else ABSENT
        rows.append(
            (cell.cell.title, speedup, estimate(verdict.latency.ceiling), outcome_word(verdict.outcome))
        )
    return Section("Cells", Table(("cell", "step ratio", "ceiling", "outcome"), tuple(rows)))


def cell_sections(result: Result, cell: CellResult, prefix: str, *, is_deciding: bool) -> list[Section]:
    """Everything about one cell."""
    evidence, verdict = cell.evidence, cell.verdict
    facts = [
        *_numerics(evidence, verdict, result.policy),
        *_training(evidence),
        *_engagement(evidence),
        *_memory(verdict),
        *_resolution(evidence, verdict, result.policy),
        *(_set_up(result) if is_deciding else ()),
        *(_claim(result) if is_deciding else ()),
    ]
    return [
        Section(f"{prefix}Speed", _speed(evidence, verdict.latency, result.policy)),
        Section(f"{prefix}Evidence", facts=tuple((label, clean(text)) for label, text in facts)),
        Section(f"{prefix}Every way tried (pilot runs)", _arms(evidence)),
        _kernels(evidence, f"{prefix}Operators and device kernels, per step"),
    ]


# ---- Speed


def _speed(evidence: Evidence, latency: Latency, policy: Policy | None) -> Table:
    rows: list[tuple[str, ...]] = []
    alone = evidence.isolated
    if alone is not None:
        opponents = [("model's own module", alone.eager_s)]
        if alone.alternative is not None and alone.alternative_s is not None:
            opponents.append((clean(alone.alternative, 40), alone.alternative_s))
        for name, seconds in opponents:
            times = (duration(seconds, digits=3), duration(alone.candidate_s, digits=3))
            rows.append((f"op alone: {name}", *times, ratio(_quotient(seconds, alone.candidate_s)), ""))
    titles = {"best_pytorch": "step: best PyTorch,", "as_shipped": "step:"}
    for item in latency.against:
        decides = policy is not None and len(latency.against) > 1 and item.opponent == policy.decides
        times = (duration(item.arm_step_s), duration(item.candidate_step_s))
        verdict = outcome_word(item.outcome) + (" *" if decides else "")
        rows.append((f"{titles[item.opponent]} {arm(item.arm)}", *times, estimate(item.speedup), verdict))
    if latency.sham is not None:
        rows.append(("step: identical code", "", "", estimate(latency.sham), "control"))
    if latency.ceiling is not None:
        rows.append(("step: any kernel at most", "", "", estimate(latency.ceiling), "ceiling"))
    candidate = f"candidate ({_mode_of(evidence.candidate)})" if evidence.candidate else "candidate"
    return Table(("against", "PyTorch", candidate, "ratio, above 1 is faster", "outcome"), tuple(rows))


def _mode_of(name: str) -> str:
    return name.partition(":")[2].partition("+")[0] or name


def _quotient(over: float, under: float) -> float | None:
    return over / under if under > 0 else None


# ---- Evidence

Facts = Iterable[tuple[str, str]]


def _numerics(evidence: Evidence, verdict: Verdict, policy: Policy | None) -> Facts:
    numerics = verdict.numerics
    if evidence.op_checks:
        limit = f" (at most {ratio(policy.numerics.error_ratio)})" if policy else ""
        worst = numerics.worst_op_ratio
        text = f"{outcome_word(numerics.outcome)}; " if numerics.outcome is Outcome.INCORRECT else ""
        text += f"{count(len(evidence.op_checks), 'op input')} against a higher precision: error"
        text += " not measured" if worst is None else f" at most {ratio(worst)} the baseline's own{limit}"
        if numerics.mutants:
            text += f"; wrong kernels made on purpose: {numerics.mutants_caught} of {numerics.mutants} caught"
        yield "correct", text
    check = evidence.model_check
    if check is not None:
        error = ratio(numerics.model_ratio) if numerics.model_ratio is not None else "not measured"
        yield (
            "model drift",
            f"error {error}{' the baselines own' if numerics.model_ratio is not None else ''} against"
            f" {check.reference}; KL {small(check.kl_candidate)} nats per token (baseline"
            f" {small(check.kl_baseline)}); same top token {percent(check.top1_candidate, digits=5)}"
            f" (baseline {percent(check.top1_baseline, digits=5)}); {count(check.tokens, 'token')}",
        )


def _training(evidence: Evidence) -> Facts:
    check = evidence.training
    if check is None:
        return
    text = (
        f"{check.with_gradient_candidate} of {count(check.parameters, 'parameter')} receive a gradient"
        f" (baseline {check.with_gradient_baseline})"
    )
    if check.missing:
        text += f"; lost: {', '.join(check.missing[:_SITES_SHOWN])}"
    if check.loss_candidate is not None:
        text += f"; loss {check.loss_candidate:.6g} (baseline {_number(check.loss_baseline)})"
    if check.worst_parameter is not None:
        worst = f"{small(check.worst_error_candidate)} (baseline {small(check.worst_error_baseline)})"
        text += f"; worst gradient error {worst} at {check.worst_parameter}"
    yield "gradients", text


def _number(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.6g}"


def _engagement(evidence: Evidence) -> Facts:
    seen = evidence.engagement
    if seen is None:
        return
    text = (
        f"at {seen.sites_called} of {count(seen.sites_found, 'site')}, {count(seen.calls, 'call')} per step"
    )
    if seen.coverage is not None and seen.coverage < 1:
        text += f", coverage {percent(seen.coverage)}"
    yield "ran", f"{text}{seen.proof and f'; {seen.proof}'}"
    left_out = [site for site in seen.sites if site.status != "patched"]
    for site in left_out[:_SITES_SHOWN]:
        yield "left out", f"{site.fqn} ({site.owner}): {site.status}{site.reason and f', {site.reason}'}"
    if len(left_out) > _SITES_SHOWN:
        yield "left out", f"and {count(len(left_out) - _SITES_SHOWN, 'more site')}"


def _memory(verdict: Verdict) -> Facts:
    memory = verdict.memory
    if memory.baseline_bytes is None or memory.candidate_bytes is None:
        yield "memory", "not measured"
        return
    change = memory.candidate_bytes - memory.baseline_bytes
    yield (
        "memory",
        f"{size(memory.candidate_bytes)} with the kernel, {size(memory.baseline_bytes)} without"
        f" ({'+' if change >= 0 else ''}{size(change)}; {memory.measure})",
    )


def _resolution(evidence: Evidence, verdict: Verdict, policy: Policy | None) -> Facts:
    latency = verdict.latency
    if latency.half_width is not None:
        margin = f" for a margin of {percent(policy.margin)}" if policy else ""
        level = latency.against[0].speedup.confidence_level if latency.against else None
        yield (
            "resolved",
            f"half-width {percent(latency.half_width, digits=2)}{margin}:"
            f" {count(latency.processes, 'worker')} x {count(latency.blocks, 'block')}"
            f"{f', {percent(level)} confidence' if level is not None else ''}",
        )
    audit = evidence.audit
    if audit is not None:
        found = f"mismatches: {', '.join(audit.mismatches)}" if audit.mismatches else "no mismatch"
        yield (
            "verified",
            f"{audit.steps_audited:,} of {count(audit.steps_timed, 'timed step')} replayed in a fresh process:"
            f" {found}",
        )


def _set_up(result: Result) -> Facts:
    costs = result.set_up
    times = [("build", costs.build_s), ("first step", costs.first_step_s), ("warm step", costs.warm_step_s)]
    parts = [f"{name} {duration(seconds, digits=3)}" for name, seconds in times if seconds is not None]
    if costs.break_even_steps is not None:
        parts.append(f"repaid after {count(costs.break_even_steps, 'step')}")
    if parts:
        yield "set-up", ", ".join(parts)


def _claim(result: Result) -> Facts:
    record = result.claim
    if record is None or record.claimed is None:
        return
    claimed = record.claimed
    at = f" at {claimed.shapes}" if claimed.shapes else ""
    yield (
        "claim",
        f"its author says {ratio(claimed.speedup)} against {claimed.against}{at};"
        f" here {ratio(record.isolated)} alone, {ratio(record.in_context)} in the workload",
    )


# ---- Arms and kernels

_ROLES = list(Role)


def _arms(evidence: Evidence) -> Table:
    rows = []
    for record in sorted(evidence.arms, key=_arm_order):
        chosen = {evidence.baseline: "strongest", evidence.candidate: "best"}.get(record.name)
        status = chosen or ("" if record.status == "ok" else record.status)
        note = f"{status}{': ' if status and record.reason else ''}{record.reason or ''}"
        who = "PyTorch" if record.role is Role.BASELINE else str(record.role)
        name = arm(record.name)
        step, first = duration(record.step_s), duration(record.first_step_s, digits=3)
        rows.append(
            (f"{who}: {name}" if who in ("PyTorch", "candidate") else name, step, first, clean(note, 120))
        )
    return Table(("arm", "step", "first step", ""), tuple(rows))


def _arm_order(record: ArmRecord) -> tuple[int, bool, float]:
    return _ROLES.index(record.role), record.step_s is None, record.step_s or 0.0


def _kernels(evidence: Evidence, title: str) -> Section:
    """Rows that differ most between the arms; what only one of them runs is said in words."""
    rows = [
        (
            clean(row.name, 56),
            str(row.calls),
            duration(row.baseline_s, digits=3),
            duration(row.candidate_s, digits=3),
            "new" if row.baseline_s is None else "gone" if row.candidate_s is None else "",
        )
        for row in sorted(evidence.kernel_times, key=_change, reverse=True)[:_KERNELS_SHOWN]
    ]
    left = len(evidence.kernel_times) - len(rows)
    lines = (f"and {left} more in result.json; timelines: traces/",) if left else ()
    return Section(title, Table(("name", "calls", "baseline", "candidate", ""), tuple(rows)), lines=lines)


def _change(row: KernelTime) -> float:
    return abs((row.candidate_s or 0.0) - (row.baseline_s or 0.0))


# ---- What holds, what is next


def holds_section(result: Result, deciding: CellResult | None) -> Section:
    """What the outcome holds for, and what nobody looked at."""
    if deciding is None or result.workload is None:
        return Section("Holds for")
    cell = deciding.cell
    modes = ", ".join(mode for mode in (result.policy.modes if result.policy else list(Mode)))
    held = [f"{cell.title} of {result.workload.name}"] if len(result.cells) == 1 else ["the cells above"]
    device = deciding.evidence.device
    held += [device.name] if device else []
    held += [f"{key} {result.environment[key]}" for key in ("torch",) if result.environment.get(key)]
    held.append(f"modes {modes}")
    untested = ["other shapes, dtypes, devices and versions"]
    untested += ["training"] if cell.step != "train" else []
    untested += ["trained weights"] if deciding.evidence.random_weights else []
    facts = [("holds for", clean("; ".join(held))), ("not tested", "; ".join(untested))]
    unseen = list(dict.fromkeys([*result.unseen, *deciding.evidence.unseen]))
    if unseen:
        more = f" and {len(unseen) - _UNSEEN_SHOWN} more" if len(unseen) > _UNSEEN_SHOWN else ""
        facts.append(("cannot see", clean("; ".join(unseen[:_UNSEEN_SHOWN])) + more))
    return Section("What holds", facts=tuple(facts))


def next_section(result: Result) -> Section:
    """What to do next, with commands that can be pasted."""
    lines = []
    for action in result.feedback.next_actions if result.feedback else []:
        takes = f" (about {span(action.seconds)})" if action.seconds is not None else ""
        lines.append(clean(f"{action.why}{takes}"))
        if action.command:
            lines.append(f"  {clean(action.command)}")
    return Section("What to do next", lines=tuple(lines))
