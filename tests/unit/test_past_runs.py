from __future__ import annotations

from pathlib import Path

import pytest

from e2e.errors import UsageError
from e2e.past_runs import read, tell
from e2e.reports.text import printed
from e2e.schema.result import CellResult, Result
from e2e.schema.words import Outcome
from e2e.store import RESULT, Run
from tests import results


def store(folder: Path, name: str, result: Result) -> None:
    (folder / name).mkdir(parents=True)
    Run(folder / name).finish(result.model_copy(update={"run_id": name}))


def at(hour: int, outcome: Outcome, ratio: float, arm: str = "baseline:eager") -> Result:
    told = results.verdict(outcome=outcome, label=None)
    row = told.latency.against[0].model_copy(update={"speedup": results.estimate(ratio, 0.002), "arm": arm})
    told = told.model_copy(update={"latency": told.latency.model_copy(update={"against": [row]})})
    cell = CellResult(cell=results.cell(), evidence=results.evidence(), verdict=told)
    return results.result([cell], created=f"2026-11-30T{hour:02}:00:00Z")


def test_runs_are_in_the_order_in_which_they_were_made(tmp_path: Path) -> None:
    store(tmp_path, "a", at(12, Outcome.REFUTED, 1.0))
    store(tmp_path, "b", at(10, Outcome.CONFIRMED, 1.05))
    assert ["b", "a"] == [row.folder for row in read(tmp_path).rows]


def test_a_trend_is_said_per_kernel_and_workload(tmp_path: Path) -> None:
    store(tmp_path, "a", at(10, Outcome.CONFIRMED, 1.05))
    store(tmp_path, "b", at(11, Outcome.CONFIRMED, 1.04))
    store(tmp_path, "c", at(12, Outcome.REFUTED, 1.0, "baseline:compile"))
    (section,) = tell(read(tmp_path)).sections
    assert "llama-infer: rms_norm by kernels/rmsnorm.cu, prefill 8 x 2048 bfloat16, NVIDIA H200" == section.title
    assert section.table is not None
    assert ("a", "1.050 (1.048-1.052)", "00000000", "2.11.0", "CONFIRMED") == section.table.rows[0]
    ratio, opponent, verdicts = section.lines
    assert ratio == "ratio 1.050x +- 0.002 (1.048 to 1.052) -> 1.000x +- 0.002 (0.998 to 1.002) over 3 runs"
    assert "the strongest opponent was eager as shipped, and is compile" == opponent
    assert "verdicts in order: CONFIRMED, REFUTED" == verdicts


def test_one_run_has_no_trend_and_other_kernels_have_their_own(tmp_path: Path) -> None:
    store(tmp_path, "a", at(10, Outcome.CONFIRMED, 1.05))
    other = results.kernel().model_copy(update={"spec": "kernels/other.cu"})
    store(tmp_path, "b", at(11, Outcome.CONFIRMED, 1.04).model_copy(update={"kernels": [other]}))
    story = tell(read(tmp_path))
    assert 2 == len(story.sections)
    assert all(section.lines == () for section in story.sections)
    assert "2 RUNS" == story.outcome


def test_every_cell_of_a_sweep_is_a_row_and_a_run_without_cells_too(tmp_path: Path) -> None:
    cells = [
        CellResult(cell=results.cell(batch=batch), evidence=results.evidence(), verdict=results.verdict())
        for batch in (1, 2)
    ]
    store(tmp_path, "a", results.result(cells))
    store(tmp_path, "b", results.ended_early(6, "no device"))
    found = read(tmp_path)
    assert ["prefill 1 x 2048 bfloat16", "prefill 2 x 2048 bfloat16", None] == [row.cell for row in found.rows]
    text = printed(tell(found))
    assert "CANNOT RUN HERE (exit code 6)" in text
    assert text.startswith("2 RUNS")


def test_a_damaged_run_is_named_and_hides_no_other(tmp_path: Path) -> None:
    store(tmp_path, "a", results.result())
    store(tmp_path, "b", results.result())
    (tmp_path / "b" / RESULT).write_text("{")
    found = read(tmp_path)
    assert ["a"] == [row.folder for row in found.rows]
    assert "is not whole, strict JSON" in found.unreadable[0]
    assert "Not readable" in printed(tell(found))


def test_an_empty_folder_has_no_runs_and_none_is_a_mistake(tmp_path: Path) -> None:
    assert printed(tell(read(tmp_path))).startswith("0 RUNS")
    with pytest.raises(UsageError, match="is no folder: give one that holds runs"):
        read(tmp_path / "none")
