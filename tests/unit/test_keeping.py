"""What is on disk while a run goes on, and whether it may go on: without processes."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from e2e import keeping, unfinished
from e2e.configuration import LoadedWorkload
from e2e.crew import Deadline
from e2e.errors import UsageError
from e2e.keeping import Keeper, check_resume
from e2e.measure.devices import Device
from e2e.measure.schedule import SeedSource
from e2e.request import Loaded, Request
from e2e.schema.evidence import Fault
from e2e.schema.words import ReasonCode, Stage
from e2e.schema.workload import Cell, DataSpec, cells_of
from e2e.stages.course import Course
from e2e.store import Run
from tests import fakes, results

BUDGET_S = 100.0
POLICY = fakes.policy(budgets={"cell_s": BUDGET_S})


class Crew:
    """Has a cell and a model, and no process."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.seed = 7
        self.weights: str | None = None


def loaded(folder: Path, **asked: Any) -> Loaded:
    (folder / "text.txt").write_text("words\n")
    workload = results.workload().model_copy(update={"data": DataSpec(path="text.txt")})
    workload = workload.model_copy(update={"cells": workload.cells.model_copy(update={"batch": [1, 2]})})
    return Loaded(
        request=Request("w.yaml", ("k.cpp",), **asked),
        workload=LoadedWorkload(workload, folder / "w.yaml", {}, "0" * 64),
        policy=POLICY,
        kernels=(fakes.kernel(),),
        device=Device("cpu"),
        seed=7,
    )


def course(keeper: Keeper) -> Course:
    crew: Any = Crew(keeper.waiting()[0])
    made = Course(
        crew=crew,
        policy=POLICY,
        progress=crew,
        deadline=Deadline(BUDGET_S),
        folder=Path(),
        evidence=fakes.stopped_at(Stage.BUILD),
        traces=False,
        rng=random.Random(0),
        seeds=SeedSource(0),
    )
    keeper.follow(made)
    return made


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path / "results", "killed")


def resumed(asked: Loaded, run: Run) -> Loaded:
    return replace(asked, request=replace(asked.request, resume=unfinished.load(run.folder)))


def test_a_run_can_go_on_from_its_first_moment(tmp_path: Path, run: Run) -> None:
    asked = loaded(tmp_path)
    Keeper(asked, run)
    again = Keeper(resumed(asked, run), run)
    assert cells_of(asked.workload.workload) == again.waiting()
    assert [(0, None, 0)] == [(item.cell, item.stage, item.workers_finished) for item in again.result(None).resumed]


def test_a_finished_stage_is_on_disk_at_once_and_a_begun_one_is_not(tmp_path: Path, run: Run) -> None:
    at_work = course(Keeper(loaded(tmp_path), run))
    at_work.learn(unseen=["half"])
    assert [] == unfinished.load(run.folder).result.cells[0].evidence.unseen
    at_work.finish(Stage.CHECK)
    kept = unfinished.load(run.folder).result.cells[0].evidence
    assert (Stage.CHECK, ["half"]) == (kept.stage_finished, kept.unseen)


def test_what_goes_on_has_evidence_time_and_plan_of_before_and_fresh_inputs(tmp_path: Path, run: Run) -> None:
    asked = loaded(tmp_path)
    first = course(Keeper(asked, run))
    first.crew.weights = "abc"
    first.verdict = unfinished.VerdictSoFar(plan={"baseline:eager": 3}, blocks=8, clean_arms=[])
    first.set_clock(40.0)
    first.finish(Stage.SCREEN)
    again = resumed(asked, run)
    second = course(Keeper(again, run))
    assert first.evidence == second.evidence
    assert ("abc", first.verdict) == (second.crew.weights, second.verdict)
    assert 58 < second.deadline.left_s <= 60
    assert (0, 1) == (asked.sitting, again.sitting)
    assert 2 == resumed(again, run).sitting


def test_complete_cells_are_not_done_again_and_the_next_begins_from_nothing(tmp_path: Path, run: Run) -> None:
    asked = loaded(tmp_path)
    keeper = Keeper(asked, run)
    first = course(keeper)
    first.finish(Stage.VERDICT)
    keeper.complete()
    again = Keeper(resumed(asked, run), run)
    assert cells_of(asked.workload.workload)[1:] == again.waiting()
    assert Stage.BUILD is course(again).evidence.stage_finished
    assert first.evidence == again.result(None).cells[0].evidence


def test_a_second_kill_before_the_cell_goes_on_costs_nothing(tmp_path: Path, run: Run) -> None:
    asked = loaded(tmp_path)
    course(Keeper(asked, run)).finish(Stage.SCREEN)
    Keeper(resumed(asked, run), run)  # killed again before it came to its cell
    assert Stage.SCREEN is course(Keeper(resumed(asked, run), run)).evidence.stage_finished


def test_of_two_processes_that_want_to_go_on_the_second_finds_the_run_changed(tmp_path: Path, run: Run) -> None:
    asked = loaded(tmp_path)
    Keeper(asked, run)
    late = resumed(asked, run)
    course(Keeper(resumed(asked, run), run)).finish(Stage.CHECK)
    with pytest.raises(UsageError, match="another process went on with run"):
        Keeper(late, run)
    run.finish(results.result())
    run.end()
    with pytest.raises(UsageError, match="has ended"):
        Keeper(late, run)


def test_what_is_learnt_on_the_side_is_forgotten_but_for_faults(tmp_path: Path, run: Run) -> None:
    at_work = course(Keeper(loaded(tmp_path), run))
    at_work.finish(Stage.CHECK)
    before = unfinished.load(run.folder)
    fault = Fault(code=ReasonCode.CANDIDATE_CRASHED, message="it died", stage=Stage.CHECK)
    with at_work.on_the_side():
        at_work.learn(unseen=["again"])
        at_work.finish(Stage.BUILD)
        at_work.fail(fault)
    evidence = at_work.evidence
    assert (Stage.CHECK, [], [fault]) == (evidence.stage_finished, evidence.unseen, evidence.faults)
    assert before == unfinished.load(run.folder)


def test_draws_of_a_part_do_not_depend_on_what_was_drawn_before(tmp_path: Path, run: Run) -> None:
    keeper = Keeper(loaded(tmp_path), run)
    one, other = course(keeper), course(keeper)
    one.rng.random()
    one.draw_for("worker 3")
    other.draw_for("worker 3")
    assert one.rng.random() == other.rng.random()
    other.draw_for("worker 4")
    assert one.rng.random() != other.rng.random()


# ---- May it go on?


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kernels": (fakes.kernel().model_copy(update={"sha256": "f" * 64}),)}, "kernel .* has changed"),
        ({"kernels": (fakes.kernel().model_copy(update={"op_sha256": "f" * 64}),)}, "op rms_norm has changed"),
        ({"policy": fakes.policy(margin=0.5)}, "policy standard has changed"),
    ],
)
def test_what_the_verdict_rests_on_may_not_change(
    tmp_path: Path, run: Run, changes: dict[str, Any], words: str
) -> None:
    asked = loaded(tmp_path)
    Keeper(asked, run)
    with pytest.raises(UsageError, match=f"run {run.run_id} cannot go on, as {words}.*: put it back, or validate"):
        check_resume(unfinished.load(run.folder), replace(asked, **changes))


def test_nothing_changed_is_no_reason_to_refuse(tmp_path: Path, run: Run) -> None:
    asked = loaded(tmp_path)
    Keeper(asked, run)
    check_resume(unfinished.load(run.folder), asked)


def test_another_workload_other_inputs_and_another_place_are_named_together(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = loaded(tmp_path)
    Keeper(asked, run)
    (tmp_path / "text.txt").write_text("other words\n")
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    other = replace(asked, workload=replace(asked.workload, sha256="1" * 64))
    with pytest.raises(UsageError) as caught:
        check_resume(unfinished.load(run.folder), other)
    for words in ("workload w.yaml has changed", "data text.txt has changed", "environment has changed (variables:"):
        assert words in caught.value.message


def test_another_e2e_does_not_go_on(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = loaded(tmp_path)
    Keeper(asked, run)
    monkeypatch.setattr(keeping, "identity_of", lambda asked: "another hash")
    with pytest.raises(UsageError, match="e2e itself has changed"):
        check_resume(unfinished.load(run.folder), asked)
