"""The example loop for agents, with a validator that answers at once."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

import e2e
from e2e.schema.result import Result
from e2e.schema.words import Label, Outcome
from tests import results

FILE = Path(__file__).parents[2] / "examples" / "kernel_loop.py"
PASSED = {"outcome": None, "label": None, "reasons": []}


@pytest.fixture
def loop() -> Any:
    spec = importlib.util.spec_from_file_location("kernel_loop", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Validator:
    """Answers by kernel and stage; what it has no answer for passes."""

    def __init__(self, answers: dict[tuple[str, str], Result]) -> None:
        self.asked: list[tuple[str, str]] = []
        self._answers = answers

    def __call__(self, workload: str, kernel: str, *, until: str, policy: str | None, quiet: bool) -> Result:
        self.asked.append((kernel, until))
        return self._answers.get((kernel, until), results.result(**PASSED))


def ran(loop: Any, monkeypatch: pytest.MonkeyPatch, answers: dict[tuple[str, str], Result]) -> tuple[int, list[Any]]:
    validator = Validator(answers)
    monkeypatch.setattr(e2e, "validate", validator, raising=False)
    return loop.main(["w.yaml", "a.cpp", "b.cpp", "--policy", "demo"]), validator.asked


def test_a_wrong_kernel_ends_at_its_check_and_the_next_one_goes_on(
    loop: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = {("a.cpp", "check"): results.incorrect(), ("b.cpp", "verdict"): results.result(outcome=Outcome.CONFIRMED)}
    code, asked = ran(loop, monkeypatch, answers)
    assert code == 0
    assert asked == [("a.cpp", "check"), ("b.cpp", "check"), ("b.cpp", "screen"), ("b.cpp", "verdict")]
    first, *_, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["outcome"], first["stage"]) == ("incorrect", "check")
    assert last["outcome"] == "confirmed"


def test_where_there_is_nothing_to_win_no_further_kernel_is_tried(loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    none = results.result(outcome=Outcome.REFUTED, label=Label.NO_HEADROOM)
    code, asked = ran(loop, monkeypatch, {("a.cpp", "screen"): none})
    assert (code, asked) == (10, [("a.cpp", "check"), ("a.cpp", "screen")])
