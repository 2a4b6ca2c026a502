"""A stopped run goes on: where nothing changed, and where something did; workers are lists of what was asked."""

from __future__ import annotations

import functools
import random
from pathlib import Path
from typing import Any

import pytest

from e2e import building, pipeline
from e2e.crew import Deadline
from e2e.errors import EnvironmentFault, UsageError
from e2e.measure.schedule import SeedSource
from e2e.pipeline import STAGES
from e2e.schema.evidence import SiteRecord, Telemetry
from e2e.schema.words import Stage, Trust
from e2e.stages import restart, verdict
from e2e.stages.course import Course
from e2e.stages.restart import TELEMETRY, start_again
from e2e.stages.verdict import time_verdict
from e2e.unfinished import CellSoFar, VerdictSoFar
from tests.fakes import CANDIDATE, EAGER, engagement, evidence, policy, site, timed

NORM = "model.norm"
PLAN = VerdictSoFar(plan={EAGER: 3, CANDIDATE: 3}, blocks=8, clean_arms=[])


class Watch:
    """Sees nothing."""

    def begin(self) -> None: ...

    def end(self) -> tuple[Telemetry, list[str]]:
        return Telemetry(), []


class NoOpponents:
    """A run that names no kernel adopted earlier."""

    adopted = ()
    sanitizers = ()


class Crew:
    """Knows a seed and a model."""

    def __init__(self) -> None:
        self.seed = 7
        self.weights: str | None = None
        self.members: list[Any] = []
        self.trust: Trust | None = None

    def remarks(self) -> list[str]:
        return []


class Progress:
    """Says nothing."""

    def note(self, text: str) -> None: ...


def course(**found: Any) -> Course:
    """One whose cell was begun by an earlier process."""
    made = Course(
        crew=Crew(),  # type: ignore[arg-type]
        policy=policy(),
        progress=Progress(),  # type: ignore[arg-type]
        deadline=Deadline(0),
        folder=Path(),
        evidence=evidence(),
        traces=False,
        rng=random.Random(0),
        seeds=SeedSource(0),
        watch=Watch(),  # type: ignore[arg-type]
    )
    before = evidence(**{"engagement": engagement(site(NORM)), "stage_asked": Stage.VERDICT, **found})
    made.take_up(before, CellSoFar(is_complete=False, used_s=5.0, weights="abc", verdict=PLAN))
    return made


class Machine:
    """What is found when the workload is opened again."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.weights, self.sites, self.threads = "abc", [site(NORM)], 2
        self.did: list[str] = []
        patch.setattr(restart, "open_model", self._open)
        patch.setattr(restart, "get_ahead", lambda course: self.did.append("get ahead"))
        patch.setattr(restart, "_start_pilot", self._start_pilot)

    def _start_pilot(self, course: Course) -> None:
        engagement = course.evidence.engagement
        assert engagement is not None
        assert engagement.calls, "an arm is judged by the calls that the check counted"
        self.did.append("pilot")

    def _open(self, course: Course) -> Machine:
        self.did.append("open")
        device = course.evidence.device
        assert device is not None
        course.crew.weights = self.weights
        known = device.model_copy(update={"count_threads": self.threads, "busy_ratio": None})
        counted = [item.model_copy(update={"calls": 0}) for item in self.sites]
        course.learn(device=known, engagement=engagement(*counted), unseen=["the op's calls were counted anew"])
        return self

    def close(self) -> None: ...


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.mark.parametrize(
    ("finished", "did"),
    [
        (None, []),
        (Stage.BUILD, []),
        (Stage.CHECK, ["open", "get ahead"]),
        (Stage.SCREEN, ["open", "pilot"]),
        (Stage.VERDICT, ["open", "pilot"]),
    ],
)
def test_processes_are_started_again_as_far_as_the_run_had_come(
    machine: Machine, finished: Stage | None, did: list[str]
) -> None:
    going = course(stage_finished=finished)
    before = going.evidence
    start_again(going)
    assert did == machine.did
    assert before == going.evidence


def test_that_the_machine_was_not_watched_all_the_time_is_said_once(machine: Machine) -> None:
    going = course(stage_finished=Stage.SCREEN, segments=timed(1.05))
    for _ in range(2):
        start_again(going)
    assert [TELEMETRY] == [line for line in going.evidence.unseen if line == TELEMETRY]


def test_starting_again_takes_none_of_the_cells_time(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    going = course(stage_finished=Stage.SCREEN)
    left_s = going.deadline.left_s
    assert going.policy.budgets.cell_s - 6 < left_s <= going.policy.budgets.cell_s - 5
    monkeypatch.setattr(restart, "_start_pilot", lambda course: course.set_clock(1000.0))
    start_again(going)
    assert abs(going.deadline.left_s - left_s) < 1


@pytest.mark.parametrize(
    ("name", "value", "error", "words"),
    [
        ("weights", "other", UsageError, "the model or its weights have changed"),
        ("sites", [site(NORM), site("model.layers.0.norm")], UsageError, "the sites of the op have changed"),
        ("threads", 3, EnvironmentFault, "the run was stopped on .* with 2 threads, and this is .* with 3 threads"),
    ],
)
def test_what_is_not_what_it_was_ends_the_run(
    machine: Machine, name: str, value: str | int | list[SiteRecord], error: type[Exception], words: str
) -> None:
    setattr(machine, name, value)
    with pytest.raises(error, match=words):
        start_again(course(stage_finished=Stage.SCREEN))


# ---- The pipeline


def test_a_build_that_was_complete_is_looked_up_and_no_stage_is_done_twice(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    did: list[Stage] = []
    works = [(stage, functools.partial(lambda stage, course: did.append(stage), stage)) for stage, _ in STAGES]
    monkeypatch.setattr(pipeline, "STAGES", works)
    monkeypatch.setattr(pipeline, "look_back", lambda course: None)
    monkeypatch.setattr(pipeline, "_is_final", lambda course: False)
    going = course(stage_finished=Stage.SCREEN)
    before = going.evidence
    building.build_all(going, loaded=NoOpponents(), run=None)  # type: ignore[arg-type]
    assert before == going.evidence
    pipeline._stages(going, pipeline.STAGES)
    assert [Stage.VERDICT] == did


# ---- The verdict


@pytest.mark.parametrize(("done", "places"), [(0, [0, 1, 2, 3, 4]), (3, [3, 4]), (5, [5, 6, 7]), (8, [8, 9, 10, 11])])
def test_a_verdict_goes_on_with_the_worker_after_the_last_finished_one(
    monkeypatch: pytest.MonkeyPatch, done: int, places: list[int]
) -> None:
    """Up to the next look, which decides here."""
    seen: list[int] = []

    def reach(course: Course, wanted: range, pace: object) -> bool:
        seen.extend(wanted)
        return True

    monkeypatch.setattr(verdict, "_reach", reach)
    monkeypatch.setattr(verdict, "settled", lambda *given, **more: bool(seen))
    going = course(stage_finished=Stage.SCREEN, workers_finished=done)
    time_verdict(going)
    assert places == seen
    assert going.verdict == PLAN, "plan and blocks are those of before"


def test_a_look_that_was_reached_before_the_stop_decides_without_another_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []
    monkeypatch.setattr(verdict, "_reach", lambda course, wanted, pace: seen.extend(wanted) or True)
    monkeypatch.setattr(verdict, "settled", lambda *given, **more: True)
    time_verdict(course(stage_finished=Stage.SCREEN, workers_finished=5))
    assert [] == seen
