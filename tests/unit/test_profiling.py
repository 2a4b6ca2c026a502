"""The parent's part of a profile: in which order ops come, what is stored when it ends early, what it suggests."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from e2e import profile_store, profiling
from e2e.crew import Deadline
from e2e.errors import E2EError, EnvironmentFault
from e2e.request import Request
from e2e.schema.evidence import DeviceFacts, Evidence
from e2e.schema.profile import OpProfile
from e2e.schema.words import Stage
from e2e.stages.profile import Found, Look
from tests.fakes import policy
from tests.profiles import estimate, norm, step

PLACES = {"rms_norm": 33, "linear": 113, "attention": 16, "rope": 16, "silu": 16}
SHARES = {"rms_norm": 0.14, "linear": 0.6, "attention": 0.1, "rope": 0.05, "silu": 0.02}


class FakeProfiler:
    """Finds those ops, and remembers what it was asked."""

    asked: list[str]
    ends: dict[str, BaseException]
    """What a request ends with."""
    left_s: float = 60.0
    """Of the budget, when it begins."""

    def __init__(self, course: Any, found: Found) -> None:
        self._found = found

    def _say(self, what: str) -> None:
        self.asked.append(what)
        if what in self.ends:
            raise self.ends[what]

    def open(self) -> None:
        self._say("open")
        self._found.device = DeviceFacts(kind="cuda", name="NVIDIA H200", count_threads=16)

    def look_at_step(self) -> None:
        self._found.steps.append(step())

    def places(self, op: str) -> int:
        return PLACES.get(op, 0)

    @contextlib.contextmanager
    def guarded(self, op: str) -> Iterator[None]:
        yield

    def look_for(self, op: str) -> list[Look]:
        self._say(f"look for {op}")
        self._found.ops[op] = OpProfile(op=op, status="not_measured", stopwatch_ratio=SHARES[op])
        return [Look(op, ["site"], [])]

    def choose_mode(self) -> None:
        self._say("modes")

    def measure(self, look: Look) -> None:
        self._say(f"measure {look.op}")
        most = 1 + SHARES[look.op] / 5
        self._found.ops[look.op] = norm(op=look.op, ceiling=estimate(most), worth="yes" if most > 1.01 else "no")


class Nothing:
    """A crew that starts nothing, and progress that nobody reads."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


@pytest.fixture
def profiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a profile of the shipped tiny workload with that profiler; gives it its end, if any."""
    monkeypatch.chdir(Path(__file__).parents[2])
    monkeypatch.setenv("E2E_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(profiling, "Profiler", FakeProfiler)

    def course_of(*_: Any) -> Any:
        return SimpleNamespace(
            crew=Nothing(),
            policy=policy(budgets={"cell_s": 60.0}),
            progress=Nothing(),
            deadline=Deadline(FakeProfiler.left_s),
            evidence=Evidence(stage_asked=Stage.CHECK, stage_finished=None),
        )

    monkeypatch.setattr(profiling, "course_of", course_of)

    def run(*ops: str, **ends: BaseException) -> Any:
        FakeProfiler.asked, FakeProfiler.ends = [], {name.replace("_", " "): error for name, error in ends.items()}
        request = Request(
            "tiny_llama_infer", (), device="cpu", seed=1, out=tmp_path / "out", command=("e2e", "profile")
        )
        return profiling.profile(request, ops=ops, progress=Nothing())  # type: ignore[arg-type]

    return run


def test_ops_are_looked_for_by_their_places_and_measured_by_their_share(profiled: Any) -> None:
    profiled()
    looked = [what.removeprefix("look for ") for what in FakeProfiler.asked if what.startswith("look for")]
    measured = [what.removeprefix("measure ") for what in FakeProfiler.asked if what.startswith("measure")]
    assert looked == ["attention", "rope", "silu", "rms_norm", "linear"]
    assert measured == ["linear", "rms_norm", "attention", "rope", "silu"]


def test_ops_for_which_the_time_does_not_suffice_are_named_unless_they_were_asked_for(
    profiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeProfiler, "left_s", 30.0)
    report = profiled()
    assert {op.op: op.status for op in report.ops} == dict.fromkeys(PLACES, "not_looked_at")
    assert {op.reason for op in report.ops} == {"the time for looking was used up"}
    assert [op.status for op in profiled("rope").ops] == ["measured"]


def test_only_the_ops_asked_for_are_looked_at_and_each_once(profiled: Any) -> None:
    report = profiled("rope", "rms_norm", "rope")
    assert [op.op for op in report.ops] == ["rms_norm", "rope"]


def test_the_commands_are_those_for_ops_that_can_win_and_have_a_template(
    profiled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiling, "templates", lambda language: ["linear", "rms_norm", "silu"])
    report = profiled()
    (folder,) = (tmp_path / "out").iterdir()
    assert report.next == [
        "e2e new kernel linear --lang cpp",
        shlex.join(["e2e", "check", "linear.cpp", "--captures", str(folder)]),
        "e2e validate tiny_llama_infer --kernel linear.cpp --device cpu",
        "e2e new kernel rms_norm --lang cpp",
    ], "attention has no template here, and silu is not worth one"


@pytest.mark.parametrize(("ended", "code"), [(KeyboardInterrupt(), 130), (E2EError("it broke"), 70)])
def test_what_is_known_when_it_ends_early_is_stored(
    profiled: Any, tmp_path: Path, ended: BaseException, code: int
) -> None:
    report = profiled(measure_attention=ended)
    (folder,) = (tmp_path / "out").iterdir()
    assert report.error is not None
    assert report.error.code == code
    assert profile_store.load(folder) == report
    assert {op.op: op.status for op in report.ops}["linear"] == "measured"
    assert {op.op: op.status for op in report.ops}["silu"] == "not_measured"


@pytest.mark.parametrize("ended", [KeyboardInterrupt(), EnvironmentFault("no such device")])
def test_where_nothing_is_known_nothing_is_left(profiled: Any, tmp_path: Path, ended: BaseException) -> None:
    with pytest.raises(type(ended)):
        profiled(open=ended)
    assert list((tmp_path / "out").iterdir()) == []
