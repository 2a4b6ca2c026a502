"""Which processes measure memory and when, and which first steps count as cold."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from e2e import workers as workers_module
from e2e.arm_names import ArmName
from e2e.configuration import LoadedWorkload, load_workload
from e2e.crew import Crew, Deadline
from e2e.errors import EnvironmentFault
from e2e.exam import Exam
from e2e.measure.schedule import SeedSource
from e2e.processes import WorkerFault
from e2e.protocols import Built
from e2e.schema.kernel import Kernel
from e2e.schema.policy import Policy
from e2e.schema.words import Mode, Role, Stage
from e2e.schema.workload import cells_of
from e2e.stages.afterwards import look_back
from e2e.stages.course import Course
from e2e.stages.lineup import wait_for_caches, warm_caches
from e2e.stages.memory import LEAST_STEPS, MOST_STEPS, measure_memory
from e2e.stages.screen import record_of
from e2e.workers import Member
from tests import results
from tests.fakes import ALTERNATIVE, CANDIDATE, arms, evidence, kernel, policy

BOTH = [ALTERNATIVE, CANDIDATE]


class FakeProgress:
    """Says nothing."""

    def stage(self, name: str, detail: str = "") -> None: ...

    def advance(self, done: int, total: int, what: str = "", left_s: float | None = None) -> None: ...

    def note(self, text: str) -> None: ...


class FakeWorker:
    """Answers what memory an arm took, unless that arm breaks it."""

    alive = True
    clean = False

    def __init__(self, crew: FakeCrew) -> None:
        self._crew = crew
        self._sent: list[str] = []

    def __enter__(self) -> FakeWorker:
        self._crew.open += 1
        assert 1 == self._crew.open, "two processes on one device would see each other's memory"
        return self

    def __exit__(self, *error: object) -> None:
        self._crew.open -= 1

    def close(self) -> None:
        self._crew.open -= 1

    def send(self, do: str, *, arm: str) -> None:
        self._sent.append(arm)

    def answer(self, do: str, *, timeout_s: float) -> dict[str, Any]:
        arm = self._sent.pop(0)
        if arm == self._crew.breaks_on:
            raise WorkerFault("it did not compile", kind="raised")
        return {"first_step_s": float(len(arm))}

    def call(self, do: str, *, timeout_s: float, arm: str, steps: int) -> dict[str, Any]:
        assert "memory" == do
        self._crew.asked.append((arm, steps))
        if arm == self._crew.breaks_on:
            raise WorkerFault("it died", kind="crashed")
        return {"arm": "candidate's own word", "host_high_water_bytes": 2**30, "steps": steps}


class FakeCrew:
    """Hands out workers that need no process; remembers what they were asked."""

    handed_over = 0
    device = "cpu"
    adopted: ClassVar[dict[str, Any]] = {}
    workload = LoadedWorkload(results.workload(), Path("w.yaml"), {}, "0" * 64)

    def __init__(self, *, breaks_on: str | None = None, has_room: bool = True) -> None:
        self.open = 0
        self.starts_cold = {True: True, False: True}
        self.clean_workers: list[FakeWorker] = []
        self.compiled: list[str] = []
        self.asked: list[tuple[str, int]] = []
        self.breaks_on = breaks_on
        self.members = [Member(kernel())]
        self._has_room = has_room

    def candidate_worker(self, fqns: Sequence[str], *, stage: Stage) -> FakeWorker:
        if not self._has_room:
            raise EnvironmentFault("the device is full")
        return FakeWorker(self)

    def worker(self, *, clean: bool) -> FakeWorker:
        assert clean
        self.clean_workers.append(FakeWorker(self))
        self.clean_workers[-1].clean = True
        return self.clean_workers[-1]

    def make_arena(self, worker: FakeWorker) -> None:
        """Arms need no place here."""

    def hand_over_compiled(self, *, is_earlier: bool = False) -> None:
        self.handed_over += 1

    def has_compiled(self, arms: Sequence[str]) -> bool:
        return bool(self.compiled) and self.compiled == list(arms)

    def know_compiled(self, arms: Sequence[str]) -> None:
        self.compiled = list(arms)


def course(crew: Any, *, rules: Policy | None = None, left_s: float = 60.0, **changes: Any) -> Course:
    seen: dict[str, Any] = {"memory": [], **changes}
    return Course(
        crew=crew,
        policy=rules or policy(),
        progress=FakeProgress(),
        deadline=Deadline(left_s),
        folder=Path(),
        evidence=evidence(**seen),
        traces=False,
        rng=random.Random(0),
        seeds=SeedSource(0),
    )


def measured(made: Course) -> list[tuple[str, int]]:
    return [(record.arm, record.process) for record in made.evidence.memory]


# Memory


def test_memory_is_one_process_per_arm_one_after_the_other() -> None:
    made = course(FakeCrew())
    measure_memory(made, stage=Stage.VERDICT)
    assert [(ALTERNATIVE, 0), (CANDIDATE, 0)] == measured(made)


def test_a_memory_outcome_takes_as_many_pairs_as_the_policy_asks_for_and_either_arm_goes_first_in_turn() -> None:
    made = course(FakeCrew(), rules=policy(objective="memory", memory={"processes": 4}))
    measure_memory(made, stage=Stage.SCREEN)
    pairs = [measured(made)[start : start + 2] for start in (0, 2, 4, 6)]
    assert [BOTH, BOTH[::-1], BOTH, BOTH[::-1]] == [[arm for arm, _ in pair] for pair in pairs]
    assert [0, 1, 2, 3] == [pair[0][1] for pair in pairs]


@pytest.mark.parametrize(("expected", "step_s"), [(20, 0.05), (LEAST_STEPS, 3.0), (MOST_STEPS, 1e-4)])
def test_both_arms_run_as_many_steps_as_the_baselines_pilot_time_says(expected: int, step_s: float) -> None:
    crew = FakeCrew()
    measure_memory(course(crew, arms=arms(alternative={"step_s": step_s})), stage=Stage.VERDICT)
    assert [(arm, expected) for arm in BOTH] == crew.asked


def test_a_process_that_dies_leaves_what_was_seen_before_it() -> None:
    made = course(FakeCrew(breaks_on=CANDIDATE))
    measure_memory(made, stage=Stage.VERDICT)
    assert ([(ALTERNATIVE, 0)], ["memory: it died"]) == (measured(made), made.evidence.unseen)


def test_a_device_without_room_for_another_process_ends_no_run() -> None:
    made = course(FakeCrew(has_room=False))
    measure_memory(made, stage=Stage.VERDICT)
    assert ["memory: the device is full"] == made.evidence.unseen


def test_without_time_memory_is_not_seen() -> None:
    made = course(FakeCrew(), left_s=0.0)
    measure_memory(made, stage=Stage.VERDICT)
    assert ([], ["memory: the time was used up"]) == (measured(made), made.evidence.unseen)


def test_what_the_screen_measured_is_not_measured_again() -> None:
    crew = FakeCrew()
    made = course(crew)
    made.pilot = FakeWorker(crew)  # type: ignore[assignment]
    look_back(made)
    look_back(made)
    assert BOTH == [arm for arm, _ in crew.asked]


# First steps

COMPILED, EAGER = "candidate:compile", CANDIDATE


def first_step(made: Course, arm: str) -> float | None:
    reply = {"first_step_s": 0.5, "graph_breaks": False, "regions": 1, "kernel_calls": [13]}
    return record_of(made, ArmName.parse(arm), reply).first_step_s


def test_a_first_step_counts_in_the_process_that_compiled_it() -> None:
    made = course(FakeCrew())
    made.know_first_step(COMPILED, 30.0, clean=False)
    made.know_first_step(COMPILED, 0.5, clean=False)
    assert (30.0, 0.5) == (first_step(made, COMPILED), first_step(made, EAGER))


def test_a_first_step_out_of_a_cache_is_not_known() -> None:
    warm = FakeCrew()
    warm.starts_cold[False] = False
    made = course(warm)
    made.know_first_step(COMPILED, 0.5, clean=False)
    assert (None, 0.5) == (first_step(made, COMPILED), first_step(made, EAGER))
    assert None is first_step(course(FakeCrew()), COMPILED), "nobody said who compiled it"


def in_python(crew: FakeCrew) -> FakeCrew:
    (member,) = crew.members
    own = member.kernel.manifest.model_copy(update={"binding": "python"})
    member.kernel = member.kernel.model_copy(update={"manifest": own})
    return crew


@pytest.fixture
def many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("e2e.stages.lineup.thread_count", lambda: 16)


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("e2e.stages.lineup.thread_count", lambda: 2)


def that_compiles(crew: FakeCrew) -> Course:
    made = course(crew, rules=policy(modes=["eager", "compile"]))
    made.facts["alternatives"] = []
    return made


@pytest.mark.usefixtures("two_cores")
def test_on_few_cores_one_clean_process_compiles_the_models_own_code_and_no_other() -> None:
    made = that_compiles(FakeCrew())
    made.warmers = warm_caches(made)
    assert [(worker.clean, names) for worker, names in made.warmers] == [
        (True, ["baseline:compile", "headroom:compile"])
    ]
    wait_for_caches(made)
    assert made.crew.compiled == ["baseline:compile", "headroom:compile"]  # type: ignore[attr-defined]


@pytest.mark.usefixtures("two_cores")
def test_the_next_kernel_is_handed_what_they_compiled_and_waits_for_nothing() -> None:
    first, second = that_compiles(FakeCrew()), that_compiles(FakeCrew())
    second.crew.compiled = ["baseline:compile", "headroom:compile"]  # type: ignore[attr-defined]
    first.warmers = warm_caches(first)
    assert 0 == first.crew.handed_over  # type: ignore[attr-defined]
    assert warm_caches(second) == []
    assert 1 == second.crew.handed_over  # type: ignore[attr-defined]


@pytest.mark.usefixtures("many_cores")
def test_where_cores_abound_the_next_kernel_still_compiles_its_own_code_ahead() -> None:
    made = that_compiles(FakeCrew())
    made.crew.compiled = ["baseline:compile", "headroom:compile"]  # type: ignore[attr-defined]
    assert [(worker.clean, names) for worker, names in warm_caches(made)] == [(False, [COMPILED])]


@pytest.mark.usefixtures("many_cores")
def test_processes_that_warm_the_caches_are_those_whose_first_steps_count() -> None:
    made = course(in_python(FakeCrew(breaks_on="baseline:compile")), rules=policy(modes=["eager", "compile"]))
    made.facts["alternatives"] = []
    made.warmers = warmers = warm_caches(made)
    kinds = [["baseline:compile"], [EAGER, COMPILED], ["headroom:compile"]]
    assert kinds == [names for _, names in warmers]
    assert [True, False, True] == [worker.clean for worker, _ in warmers], (
        "the model's own code is no kernel's business"
    )
    wait_for_caches(made)
    assert 1 == made.crew.handed_over  # type: ignore[attr-defined]
    assert {arm: float(len(arm)) for arm in (EAGER, COMPILED, "headroom:compile")} == made.first_steps


def test_a_kernel_in_python_may_compile_itself_even_in_an_eager_arm() -> None:
    made = course(in_python(FakeCrew()))
    assert made.compiles(ArmName.parse(EAGER))
    assert not made.compiles(ArmName(Role.BASELINE, Mode.EAGER))
    assert not made.compiles(ArmName(Role.BASELINE, Mode.CUDA_GRAPH))


# The crew


class FakeZygote:
    """Imports nothing and forks nobody."""

    def __init__(self, *args: object, **fields: object) -> None: ...

    def close(self) -> None: ...


class AskedWorker:
    """Does whatever it is asked."""

    def call(self, do: str, **fields: object) -> dict[str, Any]:
        return {}

    def send(self, do: str, **fields: object) -> None: ...

    def answer(self, do: str, *, timeout_s: float) -> dict[str, Any]:
        return {}


class CrewOfOne(Crew):
    """A crew whose workers are no processes."""

    def worker(self, *, clean: bool) -> Any:
        return AskedWorker()


@pytest.fixture
def crew(tiny_workload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Crew:
    monkeypatch.setenv("E2E_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(workers_module, "Zygote", FakeZygote)
    loaded = load_workload(str(tiny_workload), [])
    fields: dict[str, Any] = {"device": "cpu", "policy": policy(), "scratch": tmp_path, "seed": 1, "exam": Exam(1)}
    return CrewOfOne(workload=loaded, cell=cells_of(loaded.workload)[0], members=[Member(own_kernel())], **fields)


def own_kernel() -> Kernel:
    return kernel().model_copy(update={"sha256": "ab" * 32})


def test_caches_are_cold_until_a_run_of_this_kernel_compiled_something(crew: Crew) -> None:
    (crew._caches(clean=True) / "inductor").mkdir(parents=True)
    crew.start()
    assert crew.starts_cold == {True: False, False: True}
    (crew._caches(clean=False) / "triton").mkdir(parents=True)
    crew.start()
    assert crew.starts_cold == {True: False, False: False}


def test_what_clean_workers_compiled_replaces_what_the_kernels_own_left(crew: Crew) -> None:
    clean, own = (crew._caches(clean=is_clean) / "inductor" for is_clean in (True, False))
    for folder, text in ((clean, "trusted"), (own, "poisoned")):
        folder.mkdir(parents=True)
        (folder / "baseline.py").write_text(text)
    (own / "candidate.py").write_text("kept")
    crew.hand_over_compiled()
    assert {file.name: file.read_text() for file in own.iterdir()} == {"baseline.py": "trusted", "candidate.py": "kept"}


def test_an_earlier_runs_code_makes_no_first_step_cold(crew: Crew) -> None:
    (crew._caches(clean=True) / "inductor").mkdir(parents=True)
    crew.start()
    crew.hand_over_compiled(is_earlier=True)
    assert crew.starts_cold == {True: False, False: False}


def test_what_was_compiled_is_known_to_a_run_of_the_same_workload_and_arms(crew: Crew) -> None:
    crew._caches(clean=True).mkdir(parents=True)
    crew.know_compiled(["baseline:compile", "headroom:compile"])
    other_kernel = replace(
        crew, members=[Member(own_kernel().model_copy(update={"sha256": "cd" * 32}))], seed=2, exam=Exam(2)
    )
    assert other_kernel.has_compiled(["headroom:compile", "baseline:compile"])
    assert not crew.has_compiled(["baseline:compile"])
    assert not replace(crew, cell=crew.cell.model_copy(update={"batch": 7})).has_compiled(
        ["baseline:compile", "headroom:compile"]
    )


def test_loading_the_kernel_is_timed_in_the_first_process_only(crew: Crew) -> None:
    crew.members[0].built = Built(kernel=own_kernel(), builder="python", artifact="k.py", seconds=1.0, cached=False)
    assert None is crew.bind_s
    crew.candidate_worker([], stage=Stage.CHECK)
    first = crew.bind_s
    crew.candidate_worker([], stage=Stage.CHECK)
    assert first is not None and first is crew.bind_s
