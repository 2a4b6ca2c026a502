"""A run that has not ended: what is kept of it, read again, and refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.errors import StoredRunError, UsageError
from e2e.measure.audit import Fingerprint, Replay
from e2e.schema.result import ErrorRecord, Result
from e2e.store import UNFINISHED, Run
from e2e.unfinished import CellSoFar, Unfinished, VerdictSoFar, keep, load, shown
from tests import results

REPLAYS = [
    Replay("candidate:eager", Fingerprint(2**63 + 1, (0.1, -1 / 3)), Fingerprint(2**63 + 1, (0.1, -1 / 3))),
    Replay("baseline:eager", Fingerprint(-5, (5e-324,)), None, is_clean=True),
]
VERDICT = VerdictSoFar(plan={"baseline:eager": 3}, blocks=8, clean_arms=["baseline:eager"], replays=REPLAYS)


def unfinished(result: Result | None = None) -> Unfinished:
    stopped = ErrorRecord(code=130, message="the run was stopped before it ended")
    return Unfinished(
        result=(result or results.result()).model_copy(update={"error": stopped, "outcome": None}),
        cells=[CellSoFar(is_complete=False, used_s=12.5, weights="abc", verdict=VERDICT)],
        sources="s",
        data=None,
    )


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = Run.create(tmp_path, "killed")
    keep(unfinished(), made)
    return made


def test_what_was_kept_is_read_exactly_with_segments_and_fingerprints(run: Run) -> None:
    assert unfinished() == load(run.folder)
    assert results.segments() == load(run.folder).result.cells[0].evidence.segments
    assert VERDICT == load(run.folder).cells[0].verdict


def test_every_line_is_json_of_its_own(run: Run) -> None:
    head, body = (run.folder / UNFINISHED).read_text().splitlines()
    assert "e2e.unfinished/1" == json.loads(head, parse_constant=pytest.fail)["schema_version"]
    assert "cells" in json.loads(body, parse_constant=pytest.fail)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text.replace("12.5", "1.5"), "was edited"),
        (lambda text: text[: len(text) // 2], "was edited"),
        (lambda text: text.replace("unfinished/1", "unfinished/9", 1), "reads 'e2e.unfinished/1' only"),
        (lambda text: "", "is not what e2e writes there"),
        (lambda text: "[]\n[]\n", "is not what e2e writes there"),
        (lambda text: "\x00\xff", "is not what e2e writes there"),
    ],
)
def test_what_is_damaged_is_refused_in_one_line(run: Run, change: Callable[[str], str], words: str) -> None:
    file = run.folder / UNFINISHED
    file.write_text(change(file.read_text()))
    with pytest.raises(StoredRunError, match=words) as caught:
        load(run.folder)
    assert "\n" not in caught.value.message


def test_a_run_that_has_ended_is_not_gone_on_with(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "ended")
    run.finish(results.result())
    with pytest.raises(UsageError, match="has ended: there is nothing to resume"):
        load(run.folder)
    assert results.result().outcome == shown(run.folder).outcome


def test_a_folder_without_a_run_is_none(tmp_path: Path) -> None:
    with pytest.raises(StoredRunError, match="not a run"):
        load(tmp_path)
    with pytest.raises(StoredRunError, match="not a run"):
        shown(tmp_path)


def test_a_stopped_run_is_shown_with_what_it_has_and_without_an_outcome(run: Run) -> None:
    seen = shown(run.folder)
    assert (None, results.result().cells) == (seen.outcome, seen.cells)
    assert seen.error is not None
    assert "was stopped" in seen.error.message


def test_a_run_that_somebody_works_on_is_shown_as_going_on(run: Run) -> None:
    with run.held():
        seen = shown(run.folder)
    assert seen.error is not None
    assert "is still going" in seen.error.message


def test_what_an_interrupt_stored_is_shown_before_what_was_kept_for_going_on(run: Run) -> None:
    interrupted = run.finish(results.ended_early(130, "interrupted"))
    assert interrupted == shown(run.folder)
    assert unfinished() == load(run.folder)
