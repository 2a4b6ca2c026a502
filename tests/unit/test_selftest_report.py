"""A self-test's report: told, printed, kept for later results to quote, and turned into an exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from e2e import trials
from e2e.reports.text import printed
from e2e.schema.evidence import DeviceFacts
from e2e.schema.selftest import Catch, SelftestReport
from e2e.schema.words import Outcome
from e2e.selftest import exit_code
from e2e.selftest_store import keep, newest, note_of
from e2e.selftest_story import tell
from e2e.story import tell as tell_result
from tests import results
from tests.planted import POLICY, QUIET, timed_run, tried

CPU = DeviceFacts(kind="cpu", name="a CPU", count_threads=2)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("E2E_CACHE_DIR", str(tmp_path / "cache"))


def catch(kernel: str, *, wrong: bool = True, passed: bool = False) -> Catch:
    return Catch(
        op="rms_norm",
        kernel=kernel,
        kind="wrong" if wrong else "honest",
        stage="check",
        outcome=None if passed else Outcome.INCORRECT,
        codes=[],
    )


def report_of(runs: list[trials.Timed], *, catches: list[Catch] | None = None, **changes: Any) -> SelftestReport:
    found = tried(runs)
    caught = [catch("zeros"), catch("reference", wrong=False, passed=True)] if catches is None else catches
    effects = trials.effects_of(found)
    noise = trials.noise_of(runs, POLICY, opening_s=2.0, timed_s=9.0)
    fields: dict[str, Any] = {
        "created": "2026-12-01T10:20:30+00:00",
        "seconds": 612.0,
        "command": ["e2e", "selftest"],
        "workload": "tiny-llama-infer",
        "cell": "prefill 1 x 128 float32",
        "policy": POLICY,
        "overrides": {},
        "method": "1",
        "seed": 3,
        "device": CPU,
        "environment": {},
        "step_s": 0.01,
        "runs_asked": 20,
        "runs_done": len(runs),
        "is_interrupted": False,
        "identical": next((effect for effect in effects if effect.planted == 0), None),
        "effects": [effect for effect in effects if effect.planted != 0],
        "trials": found,
        "alarms": trials.alarms_of(found),
        "noise": noise,
        "resolvable": trials.resolvable(noise, POLICY) if noise else [],
        "catches": caught,
        "absent_ops": [],
        "telemetry": [],
        "unseen": [],
        "faults": trials.faults_of(effects, caught),
        "doubts": trials.doubts_of(effects, interrupted=changes.get("is_interrupted", False)),
    }
    return SelftestReport(**{**fields, **changes})


GOOD = report_of(QUIET)


# ---- What it says


def test_a_clean_self_test_passes_and_shows_every_planted_effect() -> None:
    text = printed(tell(GOOD))
    assert text.startswith("PASSED   tiny-llama-infer, prefill 1 x 128 float32, a CPU")
    for words in ("a gain of 1 %", "a gain of 5 %", "identical code", "a loss of 2 %", "20 of 20", "1 of 1", "0 of 1"):
        assert words in text
    assert 0 == exit_code(GOOD)


def test_a_missed_wrong_kernel_is_named_and_is_a_fault_of_e2e() -> None:
    report = report_of(QUIET[:2], catches=[catch("zeros", passed=True)])
    text = printed(tell(report))
    assert text.startswith("FAULT IN E2E")
    assert "`zeros` was not caught" in text
    assert 70 == exit_code(report)


def test_a_noisy_machine_is_inconclusive() -> None:
    noisy = report_of([timed_run(seed, block_sd=0.15, worker_sd=0.06) for seed in range(5)])
    assert printed(tell(noisy)).startswith("NOT SHOWN")
    assert 11 == exit_code(noisy)


def test_an_interrupted_one_says_so_and_is_not_a_pass() -> None:
    report = report_of(QUIET[:3], is_interrupted=True)
    text = printed(tell(report))
    assert text.startswith("INTERRUPTED")
    assert "It was interrupted after 3 of 20 runs." in text
    assert 130 == exit_code(report)


def test_an_interrupted_one_without_a_finished_run_does_not_ask_for_more_time() -> None:
    text = printed(tell(report_of([], is_interrupted=True)))
    assert "no run was finished before the interrupt" in text
    assert "--budget" not in text
    assert "time sufficed" not in text


def test_one_without_a_finished_run_has_no_invented_numbers() -> None:
    report = report_of([])
    text = printed(tell(report))
    assert "--budget" in text
    assert "Noise floor" not in text
    assert 11 == exit_code(report)


# ---- Kept and quoted


def test_the_report_is_strict_json_beside_the_runs(tmp_path: Path) -> None:
    path = keep(GOOD, tmp_path / "out")
    assert tmp_path / "out" / "selftest-20261201T102030Z.json" == path
    assert GOOD == SelftestReport.model_validate_json(path.read_text(), strict=True)
    assert "e2e.selftest/1" == json.loads(path.read_text())["schema_version"]


def test_the_newest_self_test_of_the_same_machine_is_quoted_in_a_result(tmp_path: Path) -> None:
    keep(report_of(QUIET[:2], workload="older"), tmp_path)
    keep(GOOD, tmp_path)
    note = newest(CPU)
    assert note_of(GOOD) == note
    assert note is not None
    assert (20, 0, 1, 1) == (note.runs, note.confirmed, note.wrong_caught, note.wrong)
    story = tell_result(results.result().model_copy(update={"selftest": note}))
    (line,) = [text for section in story.sections for label, text in section.facts if label == "this machine"]
    assert "20 runs of identical code, none confirmed" in line
    assert "self-test of 2026-12-01 on tiny-llama-infer" in line


def test_another_machine_is_not_quoted(tmp_path: Path) -> None:
    keep(GOOD, tmp_path)
    assert newest(CPU.model_copy(update={"count_threads": 4})) is None
    assert newest(CPU.model_copy(update={"name": "another CPU"})) is None
    assert newest(None) is None


def test_a_fault_is_quoted_as_a_fault(tmp_path: Path) -> None:
    keep(report_of(QUIET[:2], catches=[catch("zeros", passed=True)]), tmp_path)
    story = tell_result(results.result().model_copy(update={"selftest": newest(CPU)}))
    assert any("WITH 1 FAULT" in text for section in story.sections for _, text in section.facts)


@pytest.mark.parametrize("changes", [{"is_interrupted": True}, {"identical": None}])
def test_an_unfinished_self_test_replaces_no_whole_one(tmp_path: Path, changes: dict[str, Any]) -> None:
    keep(GOOD, tmp_path)
    keep(GOOD.model_copy(update={"workload": "other", **changes}), tmp_path)
    assert note_of(GOOD) == newest(CPU)


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"created": 1}'])
def test_a_damaged_note_is_as_good_as_none(tmp_path: Path, content: bytes) -> None:
    keep(GOOD, tmp_path)
    (file,) = (tmp_path / "cache" / "selftest").iterdir()
    file.write_bytes(content)
    assert newest(CPU) is None
