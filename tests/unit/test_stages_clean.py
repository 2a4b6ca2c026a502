"""Which arms the clean process gets, and what becomes of their times, with workers that need no process."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from e2e.crew import Deadline
from e2e.exam import Exam
from e2e.measure.schedule import SeedSource
from e2e.processes import WorkerFault
from e2e.schema.evidence import Evidence
from e2e.stages.clean import make_ready, time_arms, time_losers
from e2e.stages.course import Course
from e2e.stages.earlier import remember
from tests.fakes import ALTERNATIVE, CANDIDATE, EAGER, STEP_S, arm, arms, evidence, policy

COMPILED, TWIN = "baseline:compile", "sham:eager"
NS = 1_000_000_000


class CleanWorker:
    """Prepares whatever is not in `broken`; a step of an arm takes what `step_s` says."""

    def __init__(self, *, broken: tuple[str, ...] = (), dies: bool = False, **step_s: float) -> None:
        self.prepared: list[str] = []
        self.timed: list[str] = []
        self._broken, self._dies, self._step_s = broken, dies, step_s
        self._turn: tuple[str, int] = ("", 0)

    def call(self, do: str, *, timeout_s: float, arm: str, profiled: bool) -> dict[str, Any]:
        assert do == "prepare"
        if arm in self._broken:
            raise WorkerFault("it does not compile", kind="crashed" if self._dies else "raised")
        self.prepared.append(arm)
        return {}

    def stage(self, arm: str, steps: int) -> None:
        self._turn = (arm, steps)
        self.timed.append(arm)

    def stamps(self, do: str, *, marks: int, timeout_s: float) -> tuple[list[int], dict[str, Any]]:
        name, steps = self._turn
        return [0, round(NS * steps * self._step_s.get(name, STEP_S))], {}


class CleanCrew:
    """Hands requests on to the clean worker."""

    def require(self, worker: CleanWorker, do: str, **fields: Any) -> dict[str, Any]:
        if do == "prepare":
            worker.prepared.append(fields["arm"])
        if do == "stage":
            worker.stage(fields["arm"], len(fields["seeds"]) - fields["settle"])
        return {}

    def make_arena(self, worker: CleanWorker) -> None:
        """Arms need no place here."""


def course(worker: CleanWorker, found: Evidence, *, left_s: float = 60.0) -> Course:
    crew: Any = CleanCrew()
    return Course(
        crew=crew,
        policy=policy(segment_s=0.03, min_steps=1),
        progress=crew,
        deadline=Deadline(left_s),
        folder=Path(),
        evidence=found,
        traces=False,
        rng=random.Random(0),
        seeds=SeedSource(0),
        clean=worker,  # type: ignore[arg-type]
    )


def test_the_arms_of_the_plan_are_made_simplest_first_and_one_alone_gets_identical_code() -> None:
    worker = CleanWorker()
    assert make_ready(course(worker, evidence()), {ALTERNATIVE: 3, EAGER: 3, CANDIDATE: 3}) == [EAGER, ALTERNATIVE]
    assert make_ready(course(CleanWorker(), evidence()), {EAGER: 3, CANDIDATE: 3}) == [EAGER, TWIN]


def test_a_baseline_that_failed_beside_the_candidate_is_tried_again() -> None:
    broken = arm(COMPILED, status="failed", reason="BackendCompilerFailed", step_s=None)
    made = course(CleanWorker(), evidence(arms=[*arms(), broken]))
    make_ready(made, {EAGER: 3})
    assert made.evidence.clean_works == [COMPILED]
    same = course(CleanWorker(broken=(COMPILED,)), evidence(arms=[*arms(), broken]))
    make_ready(same, {EAGER: 3})
    assert same.evidence.clean_works == []


def test_an_arm_that_would_compile_for_most_of_the_time_left_is_left_out() -> None:
    slow = [*arms(), arm(COMPILED, first_step_s=20.0)]
    assert COMPILED in make_ready(course(CleanWorker(), evidence(arms=slow), left_s=100), {EAGER: 3, COMPILED: 3})
    assert COMPILED not in make_ready(course(CleanWorker(), evidence(arms=slow), left_s=60), {EAGER: 3, COMPILED: 3})


def test_a_clean_process_that_ends_is_no_candidates_fault() -> None:
    made = course(CleanWorker(broken=(ALTERNATIVE,), dies=True), evidence())
    with pytest.raises(Exception, match="a process without the candidate failed"):
        make_ready(made, {ALTERNATIVE: 3})


def test_times_are_medians_without_the_first_block_and_without_identical_code() -> None:
    worker = CleanWorker(**{EAGER: 0.02})
    made = course(worker, evidence())
    time_arms(made, [EAGER, TWIN], worker=7, blocks=2)
    assert [(item.arm, item.worker, item.step_s) for item in made.evidence.clean_times] == [
        (EAGER, 7, pytest.approx(0.02))
    ]
    assert len(worker.timed) == 2 * 2 * 3, "two arms, twice a block, one block discarded"


def test_without_arms_or_time_nothing_is_timed() -> None:
    made = course(CleanWorker(), evidence())
    time_arms(made, [], worker=7, blocks=2)
    late = course(CleanWorker(), evidence(), left_s=0.0)
    time_arms(late, [EAGER], worker=7, blocks=2)
    assert made.evidence.clean_times == late.evidence.clean_times == []


@pytest.mark.parametrize(("step_s", "kept"), [(0.5, True), (0.001, False)])
def test_what_an_earlier_pilot_left_out_is_timed_after_all_and_a_wrong_choice_forgotten(
    tmp_path: Path, step_s: float, kept: bool
) -> None:
    left_out = arm(COMPILED, status="left_out", reason="far behind", step_s=None)
    made = course(CleanWorker(**{COMPILED: step_s}), evidence(arms=[*arms(), left_out]))
    made.crew.exam, made.crew.adopted, made.facts = Exam(1, tmp_path, "identity"), {}, {"weights": "w"}
    remember(made)
    assert made.evidence.baseline is not None
    time_losers(made, [made.evidence.baseline])
    assert COMPILED in {item.arm for item in made.evidence.clean_times}
    assert any(tmp_path.iterdir()) is kept


def test_losers_are_timed_beside_the_winner_the_candidates_mode_first() -> None:
    found = [*arms(), arm(COMPILED, step_s=0.5), arm("baseline:reduce-overhead", step_s=0.1)]
    found = [record.model_copy(update={"step_s": 0.2}) if record.name == EAGER else record for record in found]
    worker = CleanWorker()
    made = course(worker, evidence(arms=[*found, arm("candidate:compile")], candidate="candidate:compile"))
    time_losers(made, [ALTERNATIVE])
    assert worker.prepared == [COMPILED, "baseline:reduce-overhead"]
    assert {item.arm for item in made.evidence.clean_times} == {
        ALTERNATIVE,
        COMPILED,
        "baseline:reduce-overhead",
        EAGER,
    }
    assert {item.worker for item in made.evidence.clean_times} == {None}
