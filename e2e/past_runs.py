"""All runs of a folder: one row for every cell, and how each kernel fared on each workload over time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from e2e.attempts import ops_of
from e2e.errors import StoredRunError, UsageError
from e2e.schema.record import Record
from e2e.schema.result import CellResult, Result
from e2e.schema.verdict import Against, Estimate
from e2e.schema.words import Label, Outcome
from e2e.store import RESULT, UNFINISHED, load_bare
from e2e.story import Story, headline
from e2e.story_facts import package
from e2e.story_sections import Section, Table
from e2e.units import Seconds
from e2e.wording import ABSENT, LABELS, arm, clean, count, estimate, outcome_word


class Row(Record):
    """One cell of one run; absent parts are None."""

    folder: str
    """Name of the run's folder: what `e2e compare` takes."""
    run: str
    created: str
    workload: str | None
    cell: str | None
    op: str | None
    kernel: str | None
    sha256: str | None
    """Of the kernel."""
    headline: str
    """Of the run."""
    outcome: Outcome | None
    """Of the cell."""
    label: Label | None
    opponent: str | None
    """Arm of the opponent that decides."""
    opponent_step_s: Seconds | None
    kernel_step_s: Seconds | None
    speedup: Estimate | None
    device: str | None
    torch: str | None
    method: str


@dataclass(frozen=True)
class History:
    """Rows by time, and why other folders have none."""

    folder: str
    rows: tuple[Row, ...]
    unreadable: tuple[str, ...]


def read(folder: Path) -> History:
    """Every finished run in a folder; of the others why there is nothing to read yet.

    Raises:
        UsageError: there is no such folder.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder: give one that holds runs, such as results")
    rows: list[Row] = []
    unreadable = []
    for place in sorted({file.parent for name in (RESULT, UNFINISHED) for file in folder.glob(f"*/{name}")}):
        try:
            rows += _rows(load_bare(place), place.name)
        except StoredRunError as error:
            unreadable.append(error.message)
    return History(str(folder), tuple(sorted(rows, key=lambda row: (row.created, row.run))), tuple(unreadable))


def _rows(result: Result, folder: str) -> list[Row]:
    return [_row(result, cell, folder) for cell in result.cells] or [_row(result, None, folder)]


def _row(result: Result, cell: CellResult | None, folder: str) -> Row:
    kernels = result.kernels
    against = _deciding(result, cell)
    device = cell.evidence.device if cell else None
    return Row(
        folder=folder,
        run=result.run_id,
        created=result.created,
        workload=result.workload.name if result.workload else None,
        cell=cell.cell.title if cell else None,
        op=ops_of(result) if kernels else None,
        kernel=" + ".join(kernel.spec for kernel in kernels) if kernels else None,
        sha256=kernels[0].sha256 if len(kernels) == 1 else None,
        headline=headline(result),
        outcome=cell.verdict.outcome if cell else None,
        label=cell.verdict.label if cell else None,
        opponent=against.arm if against else None,
        opponent_step_s=against.arm_step_s if against else None,
        kernel_step_s=against.candidate_step_s if against else None,
        speedup=against.speedup if against else None,
        device=device.name if device else None,
        torch=package(result, "torch"),
        method=result.method,
    )


def _deciding(result: Result, cell: CellResult | None) -> Against | None:
    rows = cell.verdict.latency.against if cell else []
    decides = result.policy.decides if result.policy else "best_pytorch"
    return next((row for row in rows if row.opponent == decides), None)


# ---- As a story


def tell(history: History) -> Story:
    """The rows, a section for every kernel on every cell of a workload and device."""
    groups = [list(rows) for _, rows in groupby(sorted(history.rows, key=_series), key=_series)]
    sections = [_section(rows) for rows in groups]
    if history.unreadable:
        sections.append(Section("Not readable", lines=tuple(map(clean, history.unreadable))))
    runs = len({row.run for row in history.rows})
    return Story(
        tone="open",
        outcome=count(runs, "RUN", "RUNS"),
        subject=clean(f"{history.folder}, in {len(groups)} series of one kernel, workload, cell and device each"),
        asked="asked",
        sentence=None,
        marks=(),
        reasons=(),
        sections=tuple(sections),
        footer=("Times of different runs are of different occasions; `e2e compare RUN RUN` says what moved.",),
    )


def _series(row: Row) -> tuple[str, ...]:
    """What stays the same along a trend; sources and versions may change."""
    return tuple(value or "" for value in (row.workload, row.cell, row.op, row.kernel, row.device))


def _section(rows: Sequence[Row]) -> Section:
    first = rows[0]
    what = f"{first.op} by {first.kernel}" if first.kernel else "no kernel"
    title = ", ".join(part for part in (f"{first.workload or ABSENT}: {what}", first.cell, first.device) if part)
    header = ("run", "ratio", "source", "torch", "verdict")
    return Section(clean(title), Table(header, tuple(map(_cells, rows))), lines=tuple(_trend(rows)))


def _cells(row: Row) -> tuple[str, ...]:
    verdict = outcome_word(row.outcome) if row.outcome else row.headline
    verdict += f": {LABELS[row.label]}" if row.outcome and row.label else ""
    bounds = row.speedup
    ratio = f"{bounds.point_estimate:.3f} ({bounds.lower_bound:.3f}-{bounds.upper_bound:.3f})" if bounds else ABSENT
    return clean(row.folder, 60), ratio, (row.sha256 or ABSENT)[:8], clean(row.torch or ABSENT, 20), verdict


def _trend(rows: Sequence[Row]) -> Iterable[str]:
    """From the first timed run to the last, where there are two."""
    timed = [row for row in rows if row.speedup is not None]
    if len(timed) < 2:
        return
    first, last = timed[0], timed[-1]
    yield f"ratio {estimate(first.speedup)} -> {estimate(last.speedup)} over {len(timed)} runs"
    if first.opponent and last.opponent and first.opponent != last.opponent:
        yield f"the strongest opponent was {arm(first.opponent)}, and is {arm(last.opponent)}"
    outcomes = [row.outcome for row in rows if row.outcome is not None]
    turns = [outcome for index, outcome in enumerate(outcomes) if index == 0 or outcome is not outcomes[index - 1]]
    if len(turns) > 1:
        yield f"verdicts in order: {', '.join(map(outcome_word, turns))}"
