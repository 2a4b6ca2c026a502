"""A profile of the tiny Llama with the real requests of a process, answered in this one: everything but the forks."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from e2e.builders.planted import REFERENCE
from e2e.capture_files import find_captures
from e2e.configuration import LoadedWorkload, load_workload
from e2e.crew import Deadline
from e2e.errors import UsageError
from e2e.measure.schedule import SeedSource
from e2e.numerics.captures import load_calls
from e2e.profile.timeline import BACKWARD, OPTIMIZER, REST
from e2e.schema.evidence import Evidence
from e2e.schema.words import Stage
from e2e.schema.workload import cells_of
from e2e.stages.course import Course
from e2e.stages.planted import planted
from e2e.stages.profile import Found, Profiler
from e2e.worker import Handlers
from e2e.workers import Member
from tests import tiny
from tests.fakes import policy


class Marks:
    """Takes the marks of timed segments, and stamps them."""

    def __init__(self) -> None:
        self.stamps: list[int] = []

    def send(self, message: dict[str, Any]) -> None:
        self.stamps.append(time.perf_counter_ns())


class Here:
    """A worker whose requests are answered in this process."""

    def __init__(self, opening: dict[str, Any]) -> None:
        self._marks: Any = Marks()
        self._handlers = Handlers(self._marks, clean=True)
        self.alive = self.clean = True
        self.facts = self._handlers.do_open(**opening)

    def call(self, do: str, *, timeout_s: float, **fields: Any) -> dict[str, Any]:
        return getattr(self._handlers, f"do_{do}")(**fields) or {}

    def stamps(self, do: str, *, marks: int, timeout_s: float) -> tuple[list[int], dict[str, Any]]:
        self._marks.stamps = []
        reply = self.call(do, timeout_s=timeout_s)
        assert len(self._marks.stamps) == marks
        return self._marks.stamps, reply


@dataclass
class CrewHere:
    """Opens the workload in this process."""

    workload: LoadedWorkload
    members: list[Member]
    scratch: Path
    device: str = "cpu"

    def worker(self, *, clean: bool) -> Here:
        workload = self.workload.workload
        return Here(
            {
                "workload": workload.model_dump(mode="json"),
                "task_sha256": None,
                "cell": cells_of(workload)[0].model_dump(mode="json"),
                "ops": [(member.op, None) for member in self.members],
                "root": str(self.workload.path.parent),
                "device": "cpu",
                "seed": 5,
                "exam": {"seed": 5, "folder": None, "identity": ""},
                "threads": 1,
                "exam_threads": 1,
                "extra_bytes": None,
            }
        )

    def make_arena(self, worker: Here) -> None:
        worker.call("arena", timeout_s=1, fqns=[member.fit for member in self.members])

    def require(self, worker: Here, do: str, *, stage: Any = None, timeout_s: float = 1, **fields: Any) -> Any:
        return worker.call(do, timeout_s=timeout_s, **fields)

    ask = require


class Quiet:
    """Progress that nobody reads."""

    def note(self, text: str) -> None: ...


@pytest.fixture
def collector() -> Iterator[None]:
    """Timing turns garbage collection off for the life of a process."""
    yield
    gc.unfreeze()
    gc.enable()


def course_of(folder: Path, workload: LoadedWorkload) -> Course:
    """One cell's way, in this process; an honest kernel has the candidate's place."""
    torch.set_num_threads(1)
    honest = planted("rms_norm", REFERENCE)
    crew: Any = CrewHere(workload, [Member(honest.kernel, honest)], folder)
    progress: Any = Quiet()
    course = Course(
        crew=crew,
        policy=policy(modes=["eager"], segment_s=0.001, min_steps=1, blocks=4, max_blocks=4, warm_steps=1, warm_s=0),
        progress=progress,
        deadline=Deadline(60.0),
        folder=folder / "run",
        evidence=Evidence(stage_asked=Stage.CHECK, stage_finished=None),
        traces=True,
        rng=random.Random(0),
        seeds=SeedSource(0),
    )
    course.folder.mkdir()
    return course


@pytest.mark.usefixtures("collector")
def test_the_process_finds_keeps_and_times_one_op_after_the_other(tmp_path: Path, tiny_workload: Path) -> None:
    course = course_of(tmp_path, load_workload(str(tiny_workload)))
    found = Found()
    profiler = Profiler(course, found)
    profiler.open()
    profiler.look_at_step()
    assert profiler.places("gelu") == 0
    looks = [look for op in ("linear", "rms_norm") for look in profiler.look_for(op)]
    profiler.choose_mode()
    for look in looks:
        profiler.measure(look)

    assert found.absent == ["gelu"]
    assert found.model is not None
    assert (found.model.model_class, found.strongest, found.unseen) == ("LlamaForCausalLM", "baseline:eager", [])
    norm, linear = found.ops["rms_norm"], found.ops["linear"]
    assert (norm.calls, norm.sites, linear.calls) == (tiny.SITES, tiny.SITES, 7 * tiny.LAYERS + 1)
    assert (norm.status, linear.status) == ("measured", "measured")
    assert linear.ceiling is not None
    assert norm.ceiling is not None
    assert norm.stopwatch_ratio is not None and linear.stopwatch_ratio is not None
    assert 0 < norm.stopwatch_ratio < linear.stopwatch_ratio < 1, "products are most of the step on any machine"
    assert [item.name for item in norm.alternatives if item.speedup is not None] == ["F.rms_norm"]
    step = found.steps[0]
    assert (step.kernels, step.idle_ratio) == (None, None)
    assert {"aten::mm"} <= {row.name for row in step.operators}
    assert next(row.calls for row in step.modules if row.name == "model.layers.*.mlp") == tiny.LAYERS
    assert sum(row.share_ratio or 0.0 for row in step.modules) == pytest.approx(1.0)

    kept = find_captures(str(course.folder), op="rms_norm")
    calls = load_calls(kept.path, "cpu")
    assert (kept.dtype, norm.capture and norm.capture.calls) == ("float32", len(calls))
    assert {tuple(item.call.tensors[0].shape) for item in calls} == {(1, 32, tiny.HIDDEN)}
    with pytest.raises(UsageError, match="it has: linear, rms_norm"):
        find_captures(str(course.folder), op="rope")


@pytest.mark.usefixtures("collector")
def test_a_training_step_is_profiled_by_phases_and_by_ops_with_their_backward(
    tmp_path: Path, tiny_workload: Path
) -> None:
    course = course_of(tmp_path, load_workload(str(tiny_workload), ["step=train"]))
    found = Found()
    profiler = Profiler(course, found)
    profiler.open()
    profiler.look_at_step()
    assert [profiler.places(op) for op in ("linear", "adamw")] == [7 * tiny.LAYERS + 1, 1]
    looks = [look for op in ("linear", "adamw") for look in profiler.look_for(op)]
    profiler.choose_mode()
    for look in looks:
        profiler.measure(look)
    linear, adamw = found.ops["linear"], found.ops["adamw"]
    assert (linear.status, adamw.status, adamw.calls, found.unseen) == ("measured", "measured", 1, [])
    assert linear.ceiling is not None
    assert adamw.ceiling is not None
    assert {row.name for row in found.steps[0].phases} == {REST, BACKWARD, OPTIMIZER}
    assert sum(row.share_ratio or 0.0 for row in found.steps[0].phases) == pytest.approx(1.0)
    assert any("Backward" in row.name for row in found.steps[0].operators)
