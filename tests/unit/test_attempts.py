from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from e2e.attempts import LEDGER, enter
from e2e.schema.result import Attempts, PreviousAttempt, Result
from e2e.schema.words import Outcome, Stage
from e2e.story import tell
from tests import results


def run(outcome: Outcome = Outcome.REFUTED, **changes: Any) -> Result:
    return results.result(outcome=outcome, **changes)


def counted(result: Result, folder: Path) -> Attempts | None:
    found = enter(result, folder)
    return None if found is None else found.model_copy(update={"previous": None})


def test_an_attempt_names_the_one_before_it_on_the_same_op_and_workload(tmp_path: Path) -> None:
    first = enter(run(), tmp_path)
    assert first is not None
    assert first.previous is None
    other = results.workload().model_copy(update={"name": "another"})
    enter(run(workload=other, run_id="elsewhere"), tmp_path)
    second = enter(run(Outcome.CONFIRMED), tmp_path)
    assert second is not None
    assert second.previous is not None
    assert (second.previous.run, second.previous.outcome) == (run().run_id, Outcome.REFUTED)
    assert second.previous.ratio == pytest.approx(1.0001)
    said = " ".join(tell(run(attempts=second)).marks)
    assert f"The one before, {run().run_id}, ended REFUTED at 1.00x." in said


def test_a_line_of_an_older_version_is_an_attempt_of_which_less_is_known(tmp_path: Path) -> None:
    old = {"run": "old", "workload": "llama-infer", "op": "rms_norm", "outcome": "refuted"}
    (tmp_path / LEDGER).write_text(json.dumps(old) + "\n")
    found = enter(run(), tmp_path)
    assert found is not None
    assert found.previous == PreviousAttempt(run="old", outcome=Outcome.REFUTED, ratio=None)


def test_attempts_are_counted_and_confirmed_ones_among_them(tmp_path: Path) -> None:
    outcomes = [Outcome.REFUTED, Outcome.CONFIRMED, Outcome.INCONCLUSIVE, Outcome.CONFIRMED]
    assert [counted(run(outcome), tmp_path) for outcome in outcomes] == [
        Attempts(number=1, confirmed=0),
        Attempts(number=2, confirmed=1),
        Attempts(number=3, confirmed=1),
        Attempts(number=4, confirmed=2),
    ]


@pytest.mark.parametrize("until", [Stage.BUILD, Stage.CHECK, Stage.SCREEN])
def test_a_run_that_asked_for_no_verdict_is_no_attempt(tmp_path: Path, until: Stage) -> None:
    cell = results.result().cells[0]
    asked = cell.model_copy(update={"evidence": cell.evidence.model_copy(update={"stage_asked": until})})
    assert counted(run(cells=[asked]), tmp_path) is None
    assert counted(run(), tmp_path) == Attempts(number=1, confirmed=0)


def test_another_op_or_workload_is_another_count(tmp_path: Path) -> None:
    counted(run(), tmp_path)
    other = results.workload().model_copy(update={"name": "another"})
    kernel = results.kernel()
    softmax = kernel.model_copy(update={"manifest": kernel.manifest.model_copy(update={"op": "softmax"})})
    assert counted(run(workload=other), tmp_path) == Attempts(number=1, confirmed=0)
    assert counted(run(kernels=[softmax]), tmp_path) == Attempts(number=1, confirmed=0)
    assert counted(run(), tmp_path) == Attempts(number=2, confirmed=0)


@pytest.mark.parametrize("code", [2, 6, 70, 130])
def test_a_run_that_ended_early_is_no_attempt(tmp_path: Path, code: int) -> None:
    assert counted(results.ended_early(code, "why"), tmp_path) is None
    assert counted(run(), tmp_path) == Attempts(number=1, confirmed=0)


@pytest.mark.parametrize(
    "damage",
    ["not json\n", "[]\n", "3\n", '{"workload": "llama-infer"}\n', '{"run": "torn', "\xff\n", "[" * 200_000 + "\n"],
)
def test_damaged_lines_are_skipped_and_do_not_swallow_the_next(tmp_path: Path, damage: str) -> None:
    counted(run(), tmp_path)
    with (tmp_path / LEDGER).open("a", encoding="latin-1") as ledger:
        ledger.write(damage)
    assert counted(run(), tmp_path) == Attempts(number=2, confirmed=0)
    assert counted(run(), tmp_path) == Attempts(number=3, confirmed=0)


def test_deleting_a_runs_folder_takes_back_no_attempt(tmp_path: Path) -> None:
    counted(run(run_id="gone"), tmp_path)
    assert not (tmp_path / "gone").exists()
    assert counted(run(), tmp_path) == Attempts(number=2, confirmed=0)


def test_a_ledger_that_cannot_be_written_leaves_the_number_unknown(tmp_path: Path) -> None:
    (tmp_path / LEDGER).mkdir()
    assert counted(run(), tmp_path) is None


def test_two_hundred_earlier_runs_cost_next_to_nothing(tmp_path: Path) -> None:
    result = run()
    for _ in range(200):
        counted(result, tmp_path)
    start = time.process_time()
    assert counted(result, tmp_path) == Attempts(number=201, confirmed=0)
    assert time.process_time() - start < 0.05
