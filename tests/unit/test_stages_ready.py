"""Verdict workers get ready side by side where cores and memory allow, with workers that need no process."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from e2e.crew import Deadline
from e2e.measure.schedule import SeedSource
from e2e.schema.evidence import Segment
from e2e.schema.words import ReasonCode, Stage
from e2e.stages import ready as stage
from e2e.stages.course import Course
from e2e.stages.ready import ready, workers_at_once
from e2e.stages.screen import contending_headroom
from e2e.stages.verdict import _suffices
from e2e.workers import CandidateFault, Fault, Member
from tests.fakes import CANDIDATE, EAGER, arm, arms, evidence, kernel, policy, segment

SHAM = "sham:eager"
PLAN = {EAGER: 2, CANDIDATE: 2, SHAM: 2}
GIB = 2**30


class WaitingWorker:
    """Answers in the order in which it was asked."""

    def __init__(self, number: int, log: list[str]) -> None:
        self.number, self.log = number, log
        self.asked: list[str] = []

    def close(self) -> None:
        self.log.append(f"close {self.number}")

    def __enter__(self) -> WaitingWorker:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class ReadyCrew:
    """Starts such workers; the arm in `broken` takes its process with it."""

    def __init__(self, *, held: int = GIB, free: int | None = 100 * GIB, broken: str | None = None) -> None:
        self.log: list[str] = []
        self._room = {"held_bytes": held, "free_bytes": free}
        self._broken = broken
        self._count = 0
        self.members = [Member(kernel())]

    def begin(self, *, clean: bool) -> WaitingWorker:
        assert not clean
        self._count += 1
        self.log.append(f"begin {self._count}")
        return WaitingWorker(self._count, self.log)

    def candidate_worker(self, fqns: list[str], *, stage: Stage, begun: WaitingWorker) -> WaitingWorker:
        self.log.append(f"bind {begun.number}")
        return begun

    def send(self, worker: WaitingWorker, do: str, *, stage: Stage, arm: str, profiled: bool) -> None:
        assert do == "prepare" and not profiled
        self.log.append(f"send {worker.number}")
        worker.asked.append(arm)

    def hear(self, worker: WaitingWorker, do: str, *, stage: Stage, timeout_s: float) -> dict[str, Any]:
        name = worker.asked.pop(0)
        self.log.append(f"hear {worker.number}")
        if name == self._broken:
            raise CandidateFault(Fault(code=ReasonCode.CANDIDATE_CRASHED, message="it died", stage=stage))
        calls = [2] if name == CANDIDATE else None
        return {"first_step_s": 0.1, "graph_breaks": False, "regions": None, "kernel_calls": calls}

    def ask(self, worker: object, do: str, *, stage: Stage) -> dict[str, Any]:
        assert do == "room"
        return self._room


def course(crew: ReadyCrew, *, segments: list[Segment] | None = None, **changes: Any) -> Course:
    found = Course(
        crew=crew,  # type: ignore[arg-type]
        policy=policy(),
        progress=None,  # type: ignore[arg-type]
        deadline=Deadline(100),
        folder=Path(),
        evidence=evidence(segments or [], arms=arms(), **changes),
        traces=False,
        rng=random.Random(1),
        seeds=SeedSource(1),
    )
    found.pilot = object()  # type: ignore[assignment]
    return found


@pytest.fixture
def many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "thread_count", lambda: 16)


@pytest.mark.usefixtures("many_cores")
def test_as_many_workers_wait_as_half_of_the_free_memory_holds() -> None:
    assert workers_at_once(course(ReadyCrew(held=10 * GIB, free=100 * GIB))) == 5
    assert workers_at_once(course(ReadyCrew(held=90 * GIB, free=40 * GIB))) == 1


@pytest.mark.usefixtures("many_cores")
def test_memory_that_cannot_be_seen_is_not_relied_on() -> None:
    assert workers_at_once(course(ReadyCrew(free=None))) == 1


def test_on_few_cores_one_worker_at_a_time_gets_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "thread_count", lambda: 2)
    assert workers_at_once(course(ReadyCrew())) == 1


def test_workers_are_asked_side_by_side_and_none_is_handed_over_before_all_are_still() -> None:
    crew = ReadyCrew()
    with ready(course(crew), [PLAN, PLAN]) as workers:
        assert [worker.number for worker in workers] == [1, 2]  # type: ignore[attr-defined]
        assert crew.log[:4] == ["begin 1", "begin 2", "bind 1", "bind 2"]
        assert crew.log[4:] == ["send 1"] * 3 + ["send 2"] * 3 + ["hear 1"] * 3 + ["hear 2"] * 3
    assert crew.log[-2:] == ["close 2", "close 1"]


def test_arms_load_in_another_order_in_every_worker() -> None:
    orders = set()

    class Noting(ReadyCrew):
        def candidate_worker(self, fqns: list[str], *, stage: Stage, begun: WaitingWorker) -> WaitingWorker:
            return begun

        def send(self, worker: WaitingWorker, do: str, *, stage: Stage, arm: str, profiled: bool) -> None:
            worker.asked.append(arm)
            if len(worker.asked) == len(PLAN):
                orders.add(tuple(worker.asked))

    with ready(course(Noting()), [PLAN] * 8):
        assert len(orders) > 1


def test_a_candidate_that_dies_while_it_gets_ready_ends_all_that_wait() -> None:
    crew = ReadyCrew(broken=CANDIDATE)
    with pytest.raises(CandidateFault, match="it died"), ready(course(crew), [PLAN, PLAN]):
        pass
    assert {"close 1", "close 2"} <= set(crew.log)


def test_a_process_that_reads_nothing_is_the_candidates_fault() -> None:
    class Deaf(ReadyCrew):
        def send(self, worker: WaitingWorker, do: str, *, stage: Stage, arm: str, profiled: bool) -> None:
            raise CandidateFault(Fault(code=ReasonCode.TIMED_OUT, message="it did not read", stage=stage))

    with pytest.raises(CandidateFault, match="did not read"), ready(course(Deaf()), [PLAN]):
        pass


HEADROOM, SLOWER = "headroom:eager", "headroom:compile"


def ceiling_segments(*, slower_s: list[float]) -> list[Segment]:
    """Mirrored blocks of two headroom arms; the second takes what is given, block by block."""
    found = []
    for number, step_s in enumerate(slower_s):
        for position, name in enumerate([HEADROOM, SLOWER, SLOWER, HEADROOM]):
            seconds = step_s if name == SLOWER else 1.0
            found.append(
                segment(name, seconds=seconds, steps=1, phase="ceiling", worker=0, block=number, position=position)
            )
    return found


def with_headroom(slower_s: list[float]) -> Course:
    found = course(ReadyCrew(), segments=ceiling_segments(slower_s=slower_s))
    found.learn(arms=[arm(HEADROOM, step_s=1.0), arm(SLOWER, step_s=1.03)])
    return found


def test_a_headroom_arm_clearly_behind_the_fastest_rides_in_no_verdict_worker() -> None:
    assert contending_headroom(with_headroom([1.03, 1.031, 1.029, 1.03] * 3)) == [HEADROOM]


def test_a_headroom_arm_that_noise_may_have_put_behind_still_rides() -> None:
    assert contending_headroom(with_headroom([1.2, 0.95, 1.1, 0.99] * 3)) == [HEADROOM, SLOWER]


def test_a_headroom_arm_behind_by_less_than_matters_still_rides() -> None:
    assert contending_headroom(with_headroom([1.003] * 12)) == [HEADROOM, SLOWER]


def test_without_a_block_of_both_nothing_is_known_to_be_behind() -> None:
    assert contending_headroom(with_headroom([])) == [HEADROOM, SLOWER]


@pytest.mark.parametrize(
    ("left_s", "waiting", "goes_on"), [(60, 2, True), (40, 2, False), (40, 1, True), (20, 1, False)]
)
def test_the_last_worker_of_a_look_may_use_the_time_kept_for_traces(left_s: float, waiting: int, goes_on: bool) -> None:
    found = course(ReadyCrew())
    found.deadline, found.reserve_s = Deadline(left_s), 25.0
    assert _suffices(found, 30.0, range(waiting)) is goes_on
