"""What a profile has to tell, as a story that text and Markdown reports print. Pure."""

from __future__ import annotations

from e2e import wording
from e2e.arm_names import AS_SHIPPED
from e2e.schema.profile import OpProfile, ProfileReport, StepProfile
from e2e.story import Story
from e2e.story_sections import Section, Table
from e2e.wording import ABSENT, clean, count, duration, percent, span

_ROWS = 5
"""Operators, modules and kernels shown."""
_OPS = 12
_WORTH = {"yes": "yes", "maybe": "perhaps", "no": "no"}


def tell(report: ProfileReport) -> Story:
    """The story of a profile."""
    sections = [_ops(report), _step(report), _where(report), _left_out(report), _next(report)]
    return Story(
        tone="open",
        outcome=f"PROFILE, ENDED EARLY (exit code {report.error.code})" if report.error else "PROFILE",
        subject=clean(f"{report.workload.name}, {report.cell.title}, {report.device.name}"),
        asked="asked",
        sentence=None,
        marks=_marks(report),
        reasons=(clean(report.error.message),) if report.error else (),
        sections=tuple(section for section in sections if not section.is_empty),
        footer=_footer(report),
    )


def _marks(report: ProfileReport) -> tuple[str, ...]:
    marks = ["RANDOM WEIGHTS: time and memory are real; values mean little."] if report.random_weights else []
    if report.model is not None and report.model.is_synthetic:
        marks.append("SYNTHETIC DATA: inputs were drawn, not read.")
    if report.overrides:
        pairs = ", ".join(f"{key}={value}" for key, value in report.overrides.items())
        marks.append(clean(f"Overrides of the workload file: {pairs}"))
    if report.cells > 1:
        marks.append(f"The first of {report.cells} cells; others: --set cells.batch=[N] --set cells.sequence=[N]")
    return tuple(marks)


# ---- Ops


def _ops(report: ProfileReport) -> Section:
    shown = [op for op in report.ops if op.share is not None or op.ceiling is not None][:_OPS]
    header = ("op", "calls", "of the step", "any kernel at most", "2x as fast", "worth it", "for nothing")
    rows = tuple(_op_row(op) for op in shown)
    lines = []
    if rows:
        lines = [
            "of the step: eager as shipped; at most: the fastest PyTorch path over the op replaced by nothing,",
            "so an op's whole work counts, also what no kernel can save; in one process, a verdict takes five",
            f"worth it: whether that is above {1 + report.policy.margin:g}x; for nothing: the step with a PyTorch path",
        ]
    return Section("Ops, by what any kernel could win", Table(header, rows), lines=tuple(lines))


def _op_row(op: OpProfile) -> tuple[str, ...]:
    return (
        clean(op.op, 40),
        str(op.calls),
        percent(max(0.0, op.share.point_estimate), digits=2) if op.share else ABSENT,
        _short(op),
        f"{op.twice_as_fast_ratio:.3f}x" if op.twice_as_fast_ratio is not None else ABSENT,
        _WORTH[op.worth] if op.worth else "unknown",
        _free(op),
    )


def _short(op: OpProfile) -> str:
    """`1.065x (1.05 to 1.08)`."""
    if op.ceiling is None:
        return ABSENT
    bounds = f"{op.ceiling.lower_bound:.3f} to {op.ceiling.upper_bound:.3f}"
    return f"{op.ceiling.point_estimate:.3f}x ({bounds})"


def _free(op: OpProfile) -> str:
    """The surest of PyTorch's own paths, which a user could take today."""
    timed = [other for other in op.alternatives if other.speedup is not None]
    best = max(timed, key=lambda other: other.speedup.lower_bound if other.speedup else 0.0, default=None)
    return f"{best.speedup.point_estimate:.3f}x {clean(best.name, 40)}" if best and best.speedup else ""


# ---- The step


def _step(report: ProfileReport) -> Section:
    facts = [(_label(step, report), _step_facts(step, report)) for step in report.steps]
    others = [
        f"{wording.arm(arm.name)} {duration(arm.step_s, digits=3)}"
        for arm in report.modes
        if arm.step_s is not None and arm.name not in [step.arm for step in report.steps]
    ]
    failed = [
        f"{wording.arm(arm.name)}: {clean(arm.reason or arm.status, 60)}" for arm in report.modes if arm.step_s is None
    ]
    facts += [("other modes", "; ".join([*others, *failed]))] if others or failed else []
    facts += [("memory", _memory(report))] if report.memory else []
    return Section("Step", facts=tuple(facts))


def _label(step: StepProfile, report: ProfileReport) -> str:
    return "strongest" if step.arm == report.strongest != AS_SHIPPED else "as shipped"


def _step_facts(step: StepProfile, report: ProfileReport) -> str:
    parts = [f"{duration(step.step_s)} ({wording.arm(step.arm)})"]
    if report.device.kind == "cuda":
        known = step.idle_ratio is not None
        idle = f"the device waits {percent(step.idle_ratio, digits=2)} of it" if known else "no device events: unknown"
        parts.append(idle)
    return ", ".join(parts)


def _memory(report: ProfileReport) -> str:
    memory = report.memory
    assert memory is not None
    parts = [f"weights {wording.size(memory.parameters_bytes)}"]
    parts += [f"buffers {wording.size(memory.buffers_bytes)}"] if memory.buffers_bytes else []
    if memory.peak_bytes is not None and memory.held_bytes is not None:
        parts.append(f"the eager step adds {wording.size(memory.peak_bytes - memory.held_bytes)}")
        parts.append(f"peak {wording.size(memory.peak_bytes)}")
    else:
        parts.append("what the step adds cannot be seen on a CPU")
    return ", ".join(parts)


def _where(report: ProfileReport) -> Section:
    """The eager step by module, operator and kernel; own times, so that each kind sums to the whole."""
    step = next((step for step in report.steps if step.arm == AS_SHIPPED), None)
    if step is None or step.trace is None:
        return Section("")
    rows = [("phase", row.name, row.calls, row.seconds, row.share_ratio) for row in step.phases]
    rows += [
        ("module", f"{row.name} ({row.owner})", row.calls, row.own_s, row.share_ratio) for row in step.modules[:_ROWS]
    ]
    rows += [("operator", row.name, row.calls, row.seconds, row.share_ratio) for row in step.operators[:_ROWS]]
    rows += [("kernel", row.name, row.calls, row.seconds, row.share_ratio) for row in (step.kernels or [])[:_ROWS]]
    table = tuple(
        (kind, f"{calls:.0f}", duration(seconds, digits=3), percent(share, digits=2), clean(name, 56))
        for kind, name, calls, seconds, share in rows
    )
    what = "device time" if step.kernels is not None else "host time"
    title = f"Where the step as shipped spends its {what}, without what is inside"
    is_blind = report.device.kind == "cuda" and step.kernels is None
    lines = ("no device events in the trace: what the device did is unknown",) if is_blind else ()
    return Section(title, Table(("", "calls", "own time", "share", "name"), table), lines=lines)


def _left_out(report: ProfileReport) -> Section:
    """Ops that were not measured, and sites that no kernel can take, by the reason."""
    lines: dict[str, list[str]] = {}
    for op in report.ops:
        name = clean(op.op, 40)
        if op.status != "measured":
            name += f" (about {percent(op.stopwatch_ratio, digits=2)} of the step)" if op.stopwatch_ratio else ""
            lines.setdefault(f"{op.status.replace('_', ' ')}: {op.reason}", []).append(name)
        elif op.ceiling is None:
            lines.setdefault(f"ceiling unknown: {op.ceiling_reason}", []).append(name)
        for group in op.not_sites if op.sites else ():
            lines.setdefault(f"cannot take a kernel: {group.reason}", []).append(f"{len(group.sites)} of {name}")
    return Section("Left out", Table(("op", "why"), tuple((", ".join(ops), clean(why)) for why, ops in lines.items())))


def _next(report: ProfileReport) -> Section:
    named = {worth: [clean(op.op, 40) for op in report.ops if op.worth == worth] for worth in ("yes", "maybe")}
    lines = [", ".join(named["yes"]) or "none for certain, of those that were measured"]
    lines += [f"perhaps, a larger --budget tells: {', '.join(named['maybe'])}"] if named["maybe"] else []
    return Section("Ops worth a kernel", lines=(*lines, *(f"  {clean(command)}" for command in report.next)))


def _footer(report: ProfileReport) -> tuple[str, ...]:
    absent = f"do not occur here: {', '.join(report.absent)}" if report.absent else ""
    ran = f"run {report.run_id}, {span(report.seconds)}, seed {report.seed}, method {report.method}"
    unseen = f"cannot see: {'; '.join(report.unseen)}" if report.unseen else ""
    return tuple(
        clean(line) for line in (absent, unseen, f"{ran}, {count(report.device.count_threads, 'thread')}") if line
    )
