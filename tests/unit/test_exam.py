"""Which inputs a run's model-level check gets, and when it gets fresh ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e import exam
from e2e.exam import SEED_SPACE, USES, draw, identity_of

ASKED = [{"name": "w", "cells": {"batch": [1]}}, "rms_norm", "cpu", None, 2]


def the_file(folder: Path) -> Path:
    (found,) = folder.glob("exam-*.json")
    return found


def test_runs_that_ask_the_same_share_an_exam_for_a_while_and_then_get_a_fresh_one(tmp_path: Path) -> None:
    drawn = [draw(tmp_path, ASKED) for _ in range(USES + 1)]
    assert {item.seed for item in drawn[:USES]} == {drawn[0].seed}
    assert drawn[USES].seed != drawn[0].seed
    assert [item.run for item in drawn] == [*range(1, USES + 1), 1]


@pytest.mark.parametrize("place", range(len(ASKED)))
def test_whoever_asks_something_else_gets_another_exam(tmp_path: Path, place: int) -> None:
    other = [*ASKED[:place], "another", *ASKED[place + 1 :]]
    assert draw(tmp_path, ASKED).seed != draw(tmp_path, other).seed
    assert identity_of(ASKED) != identity_of(other)


def test_another_version_of_e2e_asks_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity_of(ASKED)
    monkeypatch.setattr(exam, "_own_sources", lambda: "edited")
    assert before != identity_of(ASKED)


@pytest.mark.parametrize(
    "text", ["", "{", '{"seed": -1, "uses": 1}', f'{{"seed": {SEED_SPACE}, "uses": 1}}', '{"seed": 1}', '{"uses": 0}']
)
def test_a_damaged_file_is_followed_by_a_fresh_exam(tmp_path: Path, text: str) -> None:
    draw(tmp_path, ASKED)
    the_file(tmp_path).write_text(text)
    found = draw(tmp_path, ASKED)
    assert 0 <= found.seed < SEED_SPACE
    assert (found.run, draw(tmp_path, ASKED).seed) == (1, found.seed)


def test_a_cache_that_cannot_be_written_costs_nothing_but_the_reuse(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "references"
    assert draw(folder, ASKED).seed != draw(folder, ASKED).seed
