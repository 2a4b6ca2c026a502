"""Which inputs a run's model-level check gets, and when it gets fresh ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from e2e import exam
from e2e.configuration import LoadedWorkload
from e2e.exam import SEED_SPACE, USES, Exam, draw, identity_of
from e2e.measure.devices import Device
from e2e.outset import exam_of
from e2e.request import Loaded, Request
from e2e.schema.words import Stage
from tests import results
from tests.fakes import kernel, policy

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


# ---- Which exam a run takes


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("E2E_CACHE_DIR", str(tmp_path))
    return tmp_path


def taken(*, seed: int, chosen: bool = False, until: Stage = Stage.VERDICT, batch: int = 1, **rules: Any) -> Exam:
    """The exam of one run; `seed` is the run's own."""
    loaded = Loaded(
        request=Request("w.yaml", ("k.cpp",), until=until, seed=seed if chosen else None),
        workload=LoadedWorkload(results.workload(), Path("w.yaml"), {}, "0" * 64),
        policy=policy(**rules),
        kernels=(kernel(),),
        device=Device("cpu"),
        seed=seed,
    )
    return exam_of(loaded, results.cell(batch=batch))


def test_runs_of_one_workload_and_cell_share_the_exam_whatever_their_own_seeds(cache: Path) -> None:
    one, two, other = taken(seed=1), taken(seed=2), taken(seed=3, batch=2)
    assert (one.seed, one.identity, one.folder) == (two.seed, two.identity, cache / "references")
    assert (one.run, two.run, other.run) == (1, 2, 1)
    assert other.identity != one.identity


def test_a_seed_that_the_caller_chose_is_the_exams_too_and_counts_for_nobody(cache: Path) -> None:
    found = taken(seed=7, chosen=True)
    assert (found.seed, found.run, found.identity) == (7, 1, taken(seed=8).identity)
    assert taken(seed=9).run == 2, "of the runs that did not choose"


@pytest.mark.parametrize("rules", [{"numerics": {"reuse": False}}, {"pins": {"fresh_seed": True}}])
def test_where_reuse_is_off_the_exam_is_the_runs_own_and_nothing_is_kept(cache: Path, rules: dict[str, Any]) -> None:
    assert taken(seed=7, **rules) == Exam(7)
    assert list(cache.iterdir()) == []


def test_a_run_that_only_builds_uses_no_exam_up(cache: Path) -> None:
    taken(seed=7, until=Stage.BUILD)
    assert taken(seed=8).run == 1
