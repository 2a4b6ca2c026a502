"""The parts of a story: one function per part, each from evidence and verdict to plain words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from e2e.figures import Figure, Grid, Ink, Mark, Strip, Tile, amount_axis, ratio_axis
from e2e.schema.evidence import ArmRecord, Evidence, KernelTime
from e2e.schema.policy import Policy
from e2e.schema.result import CellResult, Mix, Regions, Result
from e2e.schema.verdict import Estimate, Latency, MemoryVerdict
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
_WIDEST = 2.0
"""Intervals within this factor of each other share an axis; what lies beyond is an arrow at its end."""


@dataclass(frozen=True)
class Table:
    """Cells are text; the first column is on the left, numbers follow."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    strip: Strip | None = None
    """A drawing for every row, where a report can draw."""


@dataclass(frozen=True)
class Section:
    """One part of a report."""

    title: str
    table: Table | None = None
    facts: tuple[tuple[str, str], ...] = ()
    lines: tuple[str, ...] = ()
    figure: Figure | None = None
    """A drawing of the table's numbers, where a report can draw."""
    cell: str | None = None
    """The cell that it is about, where that does not decide."""
    is_folded: bool = False
    """Long, and for those who ask: shown only on demand, where a report can fold."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show."""
        return not (self.facts or self.lines or (self.table and self.table.rows))


def cells_section(result: Result) -> Section:
    """All cells of a sweep, one row each: where the kernel wins, and the rule that follows."""
    decides = result.policy.decides if result.policy else "best_pytorch"
    standings = [region.standing for region in result.regions.cells] if result.regions else [ABSENT] * len(result.cells)
    rows, found = [], []
    for cell, standing in zip(result.cells, standings, strict=True):
        against = [item for item in cell.verdict.latency.against if item.opponent == decides]
        found.append(against[0].speedup if against else None)
        outcome = outcome_word(cell.verdict.outcome)
        weight = () if cell.cell.weight is None else (f"{cell.cell.weight:g}",)
        rows.append((cell.cell.title, str(cell.cell.rows), *weight, estimate(found[-1]), outcome, standing))
    weighed = ("weight",) if result.cells[0].cell.weight is not None else ()
    header = ("cell", "rows", *weighed, "step ratio", "outcome", "the kernel")
    marks = [interval_mark(speedup, "kernel") for speedup in found]
    table = Table(header, tuple(rows), _ratio_strip("step ratio of every cell", marks, result.policy))
    lines = (*_on_the_mix(result.mix), *_dispatch(result.regions))
    return Section("Cells", table, lines=lines, figure=_heat_map(result, standings, found))


def _on_the_mix(mix: Mix | None) -> tuple[str, ...]:
    if mix is None:
        return ()
    if mix.speedup is None:
        return (f"on the workload's mix: not known, for want of a time in {', '.join(mix.missing)}",)
    times = f"{duration(mix.candidate_step_s)} a step with the kernel, {duration(mix.baseline_step_s)} without"
    return (f"on the workload's mix: {estimate(mix.speedup)}, {times}; every cell as often as the workload runs it",)


_INKS: dict[str, Ink] = {"wins": "good", "loses": "bad", "neither": "control"}


def _heat_map(result: Result, standings: Sequence[str], speedups: Sequence[Estimate | None]) -> Grid | None:
    """Batch by sequence, where a sweep has both; the colour says what the kernel does there, its depth how much."""
    cells = [item.cell for item in result.cells]
    batches, sequences = (list(dict.fromkeys(getattr(cell, name) for cell in cells)) for name in ("batch", "sequence"))
    if len(batches) < 2 or len(sequences) < 2:
        return None
    most = max((abs(item.point_estimate - 1) for item in speedups if item is not None), default=0.0)
    tiles = {}
    for cell, standing, speedup in zip(cells, standings, speedups, strict=True):
        depth = abs(speedup.point_estimate - 1) / most if speedup is not None and most else 0.0
        text = ratio(speedup.point_estimate if speedup else None)
        tiles[cell.batch, cell.sequence] = Tile(text, standing, _INKS.get(standing, "open"), depth)
    rows = tuple((str(batch), tuple(tiles.get((batch, sequence)) for sequence in sequences)) for batch in batches)
    return Grid("Step ratio by batch and sequence", "batch \\ sequence", tuple(map(str, sequences)), rows)


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
    is_told = chosen is not None and not cell.evidence.command_runs
    lines: tuple[str, ...] = (f"the kernel runs in its best mode: {arm(str(chosen))}",) if is_told else ()
    lines += ("* decides the outcome",) if starred else ()
    return [Section(f"{prefix}{title}", speed, lines=lines), Section(f"{prefix}Evidence", facts=facts)]


def kernels_section(result: Result) -> Section:
    """Of several kernels each alone and all together, and what that says of them; or which of them fail."""
    decides = result.policy.decides if result.policy else "best_pytorch"
    untimed = "passes" if any(item.code for item in result.ablation) else "not timed"
    rows = []
    for item in result.ablation:
        row = next((row for row in item.against if row.opponent == decides), None)
        said = outcome_word(row.outcome) if row else item.code or untimed
        against = (estimate(row.speedup), arm(row.arm)) if row else (ABSENT, "")
        rows.append((clean(" + ".join(item.kernels), 80), *against, said))
    header = ("kernels", "step ratio", "against", "outcome")
    return Section("Each kernel, and all together", Table(header, tuple(rows)), lines=_interaction(result.interaction))


def _interaction(seen: Estimate | None) -> tuple[str, ...]:
    if seen is None:
        return ()
    reading = f"{estimate(seen)} of it"
    if seen.upper_bound < 1:
        return (f"together they win less than the product of what each wins alone ({reading}): they share a cost",)
    if seen.lower_bound > 1:
        return (f"together they win more than the product of what each wins alone ({reading})",)
    return (f"together they win what each wins alone, multiplied, as far as this run can tell ({reading})",)


def detail_sections(cell: CellResult, prefix: str) -> list[Section]:
    """Every arm tried, and where the step's time goes."""
    arms = [] if cell.evidence.command_runs else [_arms(cell.evidence)]
    return [
        *(Section(f"{prefix}Every way tried (pilot runs)", table) for table in arms),
        Section(f"{prefix}Memory, of either arm alone in a process", _memory(cell.verdict.memory)),
        _kernels(cell.evidence, f"{prefix}Operators and device kernels, per step"),
    ]


# ---- Speed


def _speed(evidence: Evidence, latency: Latency, policy: Policy | None) -> Table:
    rows: list[tuple[str, ...]] = []
    marks: list[Mark | None] = []
    main: Mark | None = None
    for alone in (evidence.isolated, *evidence.isolated_others):
        if alone is None:
            continue
        opponents = [("own module", alone.eager_s)]
        if alone.alternative is not None and alone.alternative_s is not None:
            opponents.append((clean(alone.alternative, 40), alone.alternative_s))
        whose = f", {clean(alone.kernel, 40)}" if alone.kernel is not None else ""
        for name, seconds in opponents:
            times = (duration(seconds, digits=3), duration(alone.candidate_s, digits=3))
            quotient = _quotient(seconds, alone.candidate_s)
            rows.append((f"op alone: {name}{whose}", *times, ratio(quotient), ""))
            marks.append(Mark("dot", quotient, "control") if quotient else None)
    baseline = "as it is" if evidence.command_runs else "PyTorch"
    best = "step:" if evidence.command_runs else "step: best PyTorch,"
    titles = {"best_pytorch": best, "as_shipped": "step:"}
    deciding = policy.decides if policy and policy.objective == "latency" and len(latency.against) > 1 else None
    for item in latency.against:
        decides = item.opponent == deciding
        times = (duration(item.arm_step_s), duration(item.candidate_step_s))
        verdict = outcome_word(item.outcome) + (" *" if decides else "")
        rows.append(
            (f"{titles.get(item.opponent, 'step: adopted,')} {arm(item.arm)}", *times, estimate(item.speedup), verdict)
        )
        marks.append(interval_mark(item.speedup, "kernel"))
        if policy is None or item.opponent == policy.decides:
            main = main or marks[-1]
    for name, found, word in (
        ("identical code", latency.sham, "control"),
        ("any kernel at most", latency.ceiling, "ceiling"),
    ):
        if found is not None:
            rows.append((f"step: {name}", "", "", estimate(found), word))
            marks.append(interval_mark(found, "control"))
    header = ("against", baseline, "kernel", "ratio, above 1 is faster", "outcome")
    return Table(header, tuple(rows), _ratio_strip("ratios with their intervals", marks, policy, main))


def interval_mark(value: Estimate | None, ink: Ink) -> Mark | None:
    """A point with its interval."""
    return None if value is None else Mark("interval", value.point_estimate, ink, value.lower_bound, value.upper_bound)


def _ratio_strip(
    title: str, marks: Sequence[Mark | None], policy: Policy | None, main: Mark | None = None
) -> Strip | None:
    """All on one axis, which `main` and the intervals nearest to 1 choose: one far away would make points of them."""
    known = [mark for mark in marks if mark and mark.lower and mark.upper]
    ends: list[float] = []
    for mark in sorted(known, key=lambda mark: (mark is not main, _distance(mark))):
        further = [*ends, *(end for end in (mark.lower, mark.upper) if end)]
        if not ends or max(further) <= _WIDEST * min(further):
            ends = further
    if not ends:
        return None
    axis = ratio_axis(ends, margin=policy.margin if policy else None)
    return Strip(title, axis, tuple((mark,) if mark else () for mark in marks))


def _distance(mark: Mark) -> float:
    """From 1, in either direction alike."""
    return abs(math.log(mark.value)) if mark.value > 0 else math.inf


def _quotient(over: float, under: float) -> float | None:
    return over / under if under > 0 else None


# ---- Memory, arms and kernels


def _memory(memory: MemoryVerdict) -> Table:
    rows = [(text, size(theirs), size(mine), change(mine - theirs)) for text, mine, theirs in memory_figures(memory)]
    return Table(("source", "PyTorch", "kernel", ""), tuple(rows))


_ROLES = list(Role)


def _arms(evidence: Evidence) -> Table:
    rows, marks = [], []
    who = {Role.BASELINE: "PyTorch: ", Role.CANDIDATE: "candidate: ", Role.PART: "candidate: "}
    for record in sorted(evidence.arms, key=_arm_order):
        chosen = {evidence.baseline: "strongest", evidence.candidate: "best"}.get(record.name)
        status = chosen or ("" if record.status == "ok" else record.status.replace("_", " "))
        note = ": ".join(part for part in (status, record.reason) if part)
        name = f"{who.get(record.role, '')}{arm(record.name)}"
        step, first = duration(record.step_s), duration(record.first_step_s, digits=3)
        rows.append((name, step, first, clean(note, 120)))
        ink = _ARM_INKS.get(record.role, "control")
        marks.append(() if record.step_s is None else (Mark("bar", record.step_s, ink),))
    axis = amount_axis([record.step_s for record in evidence.arms if record.step_s is not None])
    return Table(("arm", "step", "first step", ""), tuple(rows), Strip("step times", axis, tuple(marks)))


_ARM_INKS: dict[Role, Ink] = {Role.BASELINE: "pytorch", Role.CANDIDATE: "kernel"}


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
