"""Every run stored in `results/` can be shown, and is judged today as its README says."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from e2e import registry
from e2e.gate import regate
from e2e.schema.selftest import SelftestReport
from e2e.schema.words import Outcome
from e2e.store import load
from e2e.surroundings import Surroundings

RESULTS = Path(__file__).parents[2] / "results"
RUNS = sorted(file.parent for file in RESULTS.glob("h200-*/result.json"))
SELFTESTS = sorted(RESULTS.glob("h200-selftest/*.json"))
CODES = {Outcome.CONFIRMED: 0, Outcome.REFUTED: 10, Outcome.INCONCLUSIVE: 11, Outcome.INCORRECT: 12}
STALE = 11


def test_there_are_stored_runs_of_every_kind_that_the_readme_shows() -> None:
    assert {load(run).outcome for run in RUNS} >= set(CODES)
    assert SELFTESTS


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_a_stored_run_can_be_shown_and_judged_again(run: Path) -> None:
    result = load(run)
    assert (run / "report.md").read_text(encoding="utf-8")
    for style in registry.names("reports"):
        assert result.run_id in registry.load("reports", style).render(result)
    assert result.outcome is not None
    gated = regate(result, None, Surroundings({}, ()), date(2026, 12, 1))
    assert gated.code == (STALE if result.method == "1" else CODES[result.outcome])


@pytest.mark.parametrize("file", SELFTESTS, ids=lambda file: file.stem)
def test_a_stored_self_test_has_no_false_alarm_and_no_missed_kernel(file: Path) -> None:
    report = SelftestReport.model_validate_json(file.read_bytes())
    assert report.faults == [] and report.identical is not None and report.identical.confirmed == 0
    assert all(catch.is_right for catch in report.catches)
