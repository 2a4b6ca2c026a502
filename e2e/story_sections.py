"""The parts of a story: one function per part, each from evidence and verdict to plain words."""

from __future__ import annotations

from dataclasses import dataclass

from e2e.schema.evidence import ArmRecord, Evidence, KernelTime
from e2e.schema.policy import Policy
from e2e.schema.result import CellResult, Regions, Result
from e2e.schema.verdict import Latency, MemoryVerdict
from e2e.schema.words import Role, Stage
from e2e.story_facts import facts_of, memory_figures
from e2e.wording import (
    ABSENT,
    arm,
    change,
    clean,
    duration,
    estimate,
    outcome_word,
    ratio,
    size,
    span,
)

_KERNELS_SHOWN = 8


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
    """All cells of a sweep, one row each: where the kernel wins, and the rule that follows."""
    decides = result.policy.decides if result.policy else "best_pytorch"
    standings = [region.standing for region in result.regions.cells] if result.regions else [ABSENT] * len(result.cells)
    rows = []
    for cell, standing in zip(result.cells, standings, strict=True):
        against = [item for item in cell.verdict.latency.against if item.opponent == decides]
        speedup = estimate(against[0].speedup) if against else ABSENT
        outcome = outcome_word(cell.verdict.outcome)
        rows.append((cell.cell.title, str(cell.cell.rows), speedup, outcome, standing))
    header = ("cell", "rows", "step ratio", "outcome", "the kernel")
    return Section("Cells", Table(header, tuple(rows)), lines=_dispatch(result.regions))


def _dispatch(regions: Regions | None) -> tuple[str, ...]:
    if regions is None:
        return ()
    if regions.rule is not None:
        return (f"dispatch to the kernel where {regions.rule} ({regions.limits})",)
    standings = {region.standing for region in regions.cells}
    if standings == {"wins"}:
        return ("it wins in every cell; beyond them nothing was measured",)
    return ("no single threshold parts the cells where it wins from the rest",) if "wins" in standings else ()


def first_sections(result: Result, cell: CellResult, prefix: str, *, is_deciding: bool) -> list[Section]:
    """The two parts of a cell that belong on the first screen."""
    facts = facts_of(result, cell, is_deciding=is_deciding)
    speed = _speed(cell.evidence, cell.verdict.latency, result.policy)
    title = "Speed, provisional" if cell.evidence.stage_finished is Stage.SCREEN else "Speed"
    starred = any("*" in row[-1] for row in speed.rows)
    chosen = cell.evidence.candidate
    lines: tuple[str, ...] = (f"the kernel runs in its best mode: {arm(chosen)}",) if chosen else ()
    lines += ("* decides the outcome",) if starred else ()
    return [Section(f"{prefix}{title}", speed, lines=lines), Section(f"{prefix}Evidence", facts=facts)]


def detail_sections(cell: CellResult, prefix: str) -> list[Section]:
    """Every arm tried, and where the step's time goes."""
    return [
        Section(f"{prefix}Every way tried (pilot runs)", _arms(cell.evidence)),
        Section(f"{prefix}Memory, of either arm alone in a process", _memory(cell.verdict.memory)),
        _kernels(cell.evidence, f"{prefix}Operators and device kernels, per step"),
    ]


# ---- Speed


def _speed(evidence: Evidence, latency: Latency, policy: Policy | None) -> Table:
    rows: list[tuple[str, ...]] = []
    alone = evidence.isolated
    if alone is not None:
        opponents = [("own module", alone.eager_s)]
        if alone.alternative is not None and alone.alternative_s is not None:
            opponents.append((clean(alone.alternative, 40), alone.alternative_s))
        for name, seconds in opponents:
            times = (duration(seconds, digits=3), duration(alone.candidate_s, digits=3))
            rows.append((f"op alone: {name}", *times, ratio(_quotient(seconds, alone.candidate_s)), ""))
    titles = {"best_pytorch": "step: best PyTorch,", "as_shipped": "step:"}
    deciding = policy.decides if policy and policy.objective == "latency" and len(latency.against) > 1 else None
    for item in latency.against:
        decides = item.opponent == deciding
        times = (duration(item.arm_step_s), duration(item.candidate_step_s))
        verdict = outcome_word(item.outcome) + (" *" if decides else "")
        rows.append(
            (f"{titles.get(item.opponent, 'step: adopted,')} {arm(item.arm)}", *times, estimate(item.speedup), verdict)
        )
    if latency.sham is not None:
        rows.append(("step: identical code", "", "", estimate(latency.sham), "control"))
    if latency.ceiling is not None:
        rows.append(("step: any kernel at most", "", "", estimate(latency.ceiling), "ceiling"))
    return Table(("against", "PyTorch", "kernel", "ratio, above 1 is faster", "outcome"), tuple(rows))


def _quotient(over: float, under: float) -> float | None:
    return over / under if under > 0 else None


# ---- Memory, arms and kernels


def _memory(memory: MemoryVerdict) -> Table:
    rows = [(text, size(theirs), size(mine), change(mine - theirs)) for text, mine, theirs in memory_figures(memory)]
    return Table(("source", "PyTorch", "kernel", ""), tuple(rows))


_ROLES = list(Role)


def _arms(evidence: Evidence) -> Table:
    rows = []
    who = {Role.BASELINE: "PyTorch: ", Role.CANDIDATE: "candidate: "}
    for record in sorted(evidence.arms, key=_arm_order):
        chosen = {evidence.baseline: "strongest", evidence.candidate: "best"}.get(record.name)
        status = chosen or ("" if record.status == "ok" else record.status.replace("_", " "))
        note = ": ".join(part for part in (status, record.reason) if part)
        name = f"{who.get(record.role, '')}{arm(record.name)}"
        step, first = duration(record.step_s), duration(record.first_step_s, digits=3)
        rows.append((name, step, first, clean(note, 120)))
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


# ---- What is next


def next_section(result: Result) -> Section:
    """What to do next, with commands that can be pasted."""
    lines = []
    for action in result.feedback.next_actions if result.feedback else []:
        takes = span(action.seconds) if action.seconds is not None else ""
        is_said = takes in action.why
        lines.append(clean(action.why if is_said else f"{action.why} (about {takes})"))
        if action.command:
            lines.append(f"  {clean(action.command)}")
    return Section("What to do next", lines=tuple(lines))
