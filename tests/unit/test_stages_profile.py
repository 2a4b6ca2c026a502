"""The order of a profile, and what becomes of ops that go wrong, with a worker that needs no process."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from e2e.builders.planted import REFERENCE
from e2e.crew import Deadline
from e2e.errors import E2EError
from e2e.measure.schedule import SeedSource
from e2e.processes import WorkerFault
from e2e.schema.evidence import NOT_CALLED, Evidence
from e2e.schema.profile import OpProfile
from e2e.schema.words import Stage
from e2e.stages.course import Course
from e2e.stages.planted import planted
from e2e.stages.profile import Found, Look, Profiler
from e2e.workers import Member
from tests.fakes import EAGER, HEADROOM, STEP_S, policy

COMPILED, COMPILED_HEADROOM = "baseline:compile", "headroom:compile"
NS = 1_000_000_000


@dataclass(frozen=True)
class Planted:
    """An op of the invented model."""

    share: float = 0.1
    incompatible: str | None = None
    alternatives: tuple[str, ...] = ()
    captured_bytes: int = 1000


@dataclass
class Script:
    """What every process of the invented workload does."""

    ops: dict[str, Planted]
    faults: dict[str, WorkerFault] = field(default_factory=dict)
    """By `do`, `do op` or `do arm`: raised once."""
    compiled: float | None = None
    """Step of the compiled model over the eager one's; None: it does not compile."""
    compile_s: float = 3.0
    noise: float = 0.0
    """Standard deviation of a segment, as a share of it."""
    opened: int = 0
    asked: list[str] = field(default_factory=list)


class FakeWorker:
    """Answers as a process would; a step takes what the script says, by an invented clock."""

    def __init__(self, script: Script) -> None:
        self.alive, self.clean = True, True
        model = {"model_class": "Llama", "parameters": 10, "dtypes": {"float32": 10}, "data": "text"}
        self.facts = {"device": "a CPU", "memory": None, "facts": model}
        self._script, self._op, self._turn, self._now = script, "", ("", 0), 0
        self._random = random.Random(1)
        script.opened += 1

    def call(self, do: str, *, timeout_s: float, **fields: Any) -> dict[str, Any]:
        self._script.asked.append(do)
        named = (do, f"{do} {self._op}", f"{do} {fields.get('arm')}")
        fault = next((self._script.faults.pop(name) for name in named if name in self._script.faults), None)
        if fault is not None:
            self.alive = fault.kind == "raised"
            raise fault
        answer: dict[str, Any] = getattr(self, f"do_{do}", lambda **_: {})(**fields)
        return answer

    def do_turn_to(self, *, op: str, op_sha256: str | None) -> dict[str, Any]:
        self._op = op
        known = self._script.ops.get(op)
        return {"sites": int(known is not None), "alternatives": list(known.alternatives) if known else []}

    def do_survey(self, **_: Any) -> dict[str, Any]:
        why = self._script.ops[self._op].incompatible
        row = {"fqn": f"model.{self._op}", "owner": "Owner", "incompatible": why, "dims": {}, "all_dims": []}
        return {"sites": [row]}

    def do_forms(self, *, most: int) -> dict[str, Any]:
        tensor = {"shape": [2, 3], "stride": [3, 1], "dtype": "float32"}
        return {"calls": 4, "sites": 1, "forms": [{"calls": 4, "tensors": [tensor, None], "scalars": [1e-6]}]}

    def do_stopwatch(self) -> dict[str, Any]:
        return {"op_s": self._script.ops[self._op].share * STEP_S, "step_s": STEP_S}

    def do_save_captured(self, *, path: str, op: str, budget_bytes: int) -> dict[str, Any]:
        size = self._script.ops[op].captured_bytes
        if size > budget_bytes:
            return {"calls": 0, "bytes": size}
        Path(path).write_bytes(b"x" * size)
        return {"calls": 2, "bytes": size}

    def do_step_memory(self, *, arm: str) -> dict[str, Any]:
        return {
            "parameters_bytes": 10,
            "buffers_bytes": 0,
            "held_bytes": None,
            "peak_bytes": None,
            "host_high_water_bytes": 99,
        }

    def do_trace(self, *, arm: str, path: str, steps: int, by_module: bool) -> dict[str, Any]:
        event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 10, "tid": 1}
        one = {**event, "cat": "user_annotation", "name": "e2e module: model.layers.0.mlp MLP"}
        other = {**one, "name": "e2e module: model.layers.1.mlp MLP", "ts": 20}
        Path(path).write_text(json.dumps({"traceEvents": [event, *([one, other] if by_module else [])]}))
        return {"steps": steps}

    def do_prepare(self, *, arm: str) -> dict[str, Any]:
        if "compile" in arm and self._script.compiled is None:
            raise WorkerFault("it does not compile", kind="raised")
        is_compiled = "compile" in arm
        return {"first_step_s": self._script.compile_s if is_compiled else 0.1, "regions": 1 if is_compiled else None}

    def do_warm_up(self, *, arm: str, **_: Any) -> dict[str, Any]:
        return {"steps": 10, "seconds": 0.1, "is_steady": True, "change_ratio": 0.0}

    def do_stage(self, *, arm: str, seeds: list[int], settle: int) -> dict[str, Any]:
        self._turn = (arm, len(seeds) - settle)
        return {}

    def stamps(self, do: str, *, marks: int, timeout_s: float) -> tuple[list[int], dict[str, Any]]:
        self.call(do, timeout_s=timeout_s)
        arm, steps = self._turn
        step_s = STEP_S * (self._script.compiled or 1.0 if "compile" in arm else 1.0)
        if "headroom" in arm:
            step_s *= 1 - self._script.ops[self._op].share
        step_s *= self._random.gauss(1, self._script.noise)
        start, self._now = self._now, self._now + round(NS * steps * step_s)
        return [start, self._now], {"digests": [], "device_s": None, "allocations": None, "recompiled": False}


@dataclass
class FakeCrew:
    """Starts invented processes."""

    script: Script
    members: list[Member]
    device: str = "cpu"
    scratch: Path = Path()
    workload: Any = None

    def worker(self, *, clean: bool) -> FakeWorker:
        assert clean, "no process of a profile may hold a candidate"
        return FakeWorker(self.script)

    def make_arena(self, worker: FakeWorker) -> None:
        """Arms need no place here."""

    def require(self, worker: FakeWorker, do: str, *, timeout_s: float = 1, stage: Any = None, **fields: Any) -> Any:
        try:
            return worker.call(do, timeout_s=timeout_s, **fields)
        except WorkerFault as fault:
            raise E2EError(f"a process without the candidate failed: {fault.message}") from fault

    ask = require

    def blame(self, fault: WorkerFault, *, stage: Any, worker: FakeWorker) -> E2EError:
        return E2EError(fault.message)


class Quiet:
    """Progress that nobody reads."""

    def stage(self, name: str, detail: str = "") -> None: ...

    def note(self, text: str) -> None: ...

    def advance(self, done: int, total: int, what: str, left_s: float | None = None) -> None: ...


class Told:
    """A workload file's one fact that is asked for."""

    class workload:
        class model:
            weights = "pretrained"


@dataclass
class Scene:
    """A profiler over an invented workload."""

    profiler: Profiler
    found: Found
    script: Script
    folder: Path

    def opened(self) -> Scene:
        self.profiler.open()
        self.profiler.look_at_step()
        return self

    def measured(self, op: str) -> OpProfile:
        """One op, from its sites to its ceiling."""
        looks = []
        with self.profiler.guarded(op):
            looks = self.profiler.look_for(op)
        self.profiler.choose_mode()
        for look in looks:
            with self.profiler.guarded(op):
                self.profiler.measure(look)
        return self.found.ops[op]


@pytest.fixture
def scene(tmp_path: Path) -> Any:
    numbers = itertools.count()

    def made(ops: dict[str, Planted], *, left_s: float = 60.0, **script: Any) -> Scene:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        honest = planted("rms_norm", REFERENCE)
        acts = Script(ops, **script)
        crew: Any = FakeCrew(acts, [Member(honest.kernel, honest)], scratch=folder, workload=Told())
        course = Course(
            crew=crew,
            policy=policy(modes=["eager", "compile"], segment_s=0.01, min_steps=1, blocks=4, max_blocks=6),
            progress=Quiet(),
            deadline=Deadline(left_s),
            folder=folder,
            evidence=Evidence(stage_asked=Stage.CHECK, stage_finished=None),
            traces=True,
            rng=random.Random(0),
            seeds=SeedSource(0),
        )
        found = Found()
        return Scene(Profiler(course, found), found, acts, folder)

    return made


def test_an_op_is_followed_from_its_sites_to_its_ceiling(scene: Any) -> None:
    made = scene({"rms_norm": Planted(share=0.2, alternatives=("F.rms_norm",))}).opened()
    op = made.measured("rms_norm")
    assert (op.status, op.sites, op.calls, op.strongest, op.worth) == ("measured", 1, 4, EAGER, "yes")
    assert op.share is not None
    assert op.ceiling is not None
    assert op.share.point_estimate == pytest.approx(0.2, abs=1e-6)
    assert op.ceiling.point_estimate == pytest.approx(1.25, rel=1e-6)
    assert op.forms[0].tensors[0] is not None
    assert (op.forms[0].tensors[0].stride, op.forms[0].tensors[1]) == ([3, 1], None)
    assert [item.name for item in op.alternatives] == ["F.rms_norm"]


def test_inputs_are_kept_in_the_runs_folder_whole_or_not_at_all(scene: Any) -> None:
    made = scene({"rms_norm": Planted(), "linear": Planted(captured_bytes=2**40)}).opened()
    small, large = made.measured("rms_norm").capture, made.measured("linear").capture
    assert small is not None
    assert large is not None
    assert (made.folder / str(small.path)).stat().st_size == small.bytes == 1000
    assert (large.path, large.calls) == (None, 0)
    assert "one call takes" in str(large.reason)
    assert [item.name for item in (made.folder / "captures").iterdir()] == ["rms_norm.safetensors"]


def test_the_ceiling_is_taken_in_the_strongest_mode_too(scene: Any) -> None:
    op = scene({"rms_norm": Planted(share=0.2)}, compiled=0.5).opened().measured("rms_norm")
    assert op.strongest == COMPILED
    assert op.strongest_s == pytest.approx(0.5 * STEP_S)
    assert {arm.name for arm in op.arms} == {EAGER, HEADROOM, COMPILED, COMPILED_HEADROOM}


@pytest.mark.parametrize(("share", "blocks"), [(0.3, 4), (0.01, 6)])
def test_blocks_go_on_only_while_they_might_decide(scene: Any, share: float, blocks: int) -> None:
    made = scene({"rms_norm": Planted(share=share)}, noise=0.01).opened()
    made.profiler.look_for("rms_norm")
    made.profiler.choose_mode()
    before = made.script.asked.count("go")
    made.profiler.measure(Look("rms_norm", ["model.rms_norm"], []))
    segments = made.script.asked.count("go") - before
    assert segments == (2 + blocks) * 2 * 2, "two blocks first; two arms, twice a block"


def test_without_time_to_compile_the_ceiling_is_unknown_and_says_so(scene: Any) -> None:
    made = scene({"rms_norm": Planted(share=0.2)}, compiled=0.5, compile_s=9.0, left_s=20.0).opened()
    op = made.measured("rms_norm")
    assert (op.strongest, op.ceiling, op.worth) == (COMPILED, None, None)
    assert "a larger --budget allows it" in str(op.ceiling_reason)
    assert op.share is not None


def test_with_hardly_any_time_nothing_is_compiled(scene: Any) -> None:
    made = scene({"rms_norm": Planted(share=0.2)}, compiled=0.5, left_s=2.0).opened()
    assert made.measured("rms_norm").worth == "yes"
    assert [(arm.name, arm.reason) for arm in made.found.modes if arm.status == "skipped"] == [
        (COMPILED, "there is no time to compile it")
    ]


def test_a_mode_that_fails_is_shown_with_its_reason(scene: Any) -> None:
    made = scene({"rms_norm": Planted()}).opened()
    made.measured("rms_norm")
    assert [(arm.name, arm.status, arm.reason) for arm in made.found.modes] == [
        (EAGER, "ok", None),
        (COMPILED, "failed", "it does not compile"),
    ]
    assert made.found.strongest == EAGER


def test_an_op_that_has_no_place_or_is_never_called_is_absent(scene: Any) -> None:
    made = scene({"rope": Planted(incompatible=NOT_CALLED)}).opened()
    assert (made.profiler.places("rope"), made.profiler.places("silu")) == (1, 0)
    assert made.profiler.look_for("rope") == []
    assert (made.found.ops, made.found.absent) == ({}, ["silu", "rope"])


def test_sites_that_no_kernel_can_take_are_named_with_their_reason(scene: Any) -> None:
    made = scene({"softmax": Planted(incompatible="its attention is 'sdpa'")}).opened()
    assert made.profiler.look_for("softmax") == []
    found = made.found.ops["softmax"]
    assert (found.status, found.reason) == ("incompatible", "its attention is 'sdpa'")
    assert found.not_sites[0].sites == ["model.softmax"]


@pytest.mark.parametrize("kind", ["raised", "crashed"])
@pytest.mark.parametrize("where", ["survey rms_norm", "retarget rms_norm"])
def test_an_op_that_goes_wrong_is_remarked_and_the_next_one_goes_on(scene: Any, where: str, kind: Any) -> None:
    made = scene({"rms_norm": Planted(), "rope": Planted(share=0.3)}).opened()
    made.script.faults[where] = WorkerFault("out of memory", kind=kind)
    bad, good = made.measured("rms_norm"), made.measured("rope")
    assert bad.status != "measured"
    assert "out of memory" in str(bad.reason)
    assert (good.status, good.worth) == ("measured", "yes")
    assert made.script.opened == (1 if kind == "raised" else 2)


def test_an_arm_that_ends_its_process_is_left_out_of_the_next_one(scene: Any) -> None:
    made = scene({"attention": Planted(share=0.3, alternatives=("flash", "maths"))}).opened()
    made.script.faults["prepare baseline:eager+flash"] = WorkerFault("killed by SIGSEGV", kind="crashed")
    op = made.measured("attention")
    assert made.script.opened == 2
    assert {arm.name: arm.status for arm in op.arms}["baseline:eager+flash"] == "failed"
    assert {item.name: item.speedup is not None for item in op.alternatives} == {"flash": False, "maths": True}
    assert op.worth == "yes"


def test_a_trace_that_cannot_be_had_is_among_what_was_not_seen(scene: Any) -> None:
    made = scene({})
    made.profiler.open()
    made.script.faults["trace"] = WorkerFault("no profiler", kind="raised")
    made.profiler.look_at_step()
    (step,) = made.found.steps
    assert (step.trace, step.kernels, step.idle_ratio, step.operators) == (None, None, None, [])
    assert made.found.unseen == ["trace of baseline:eager: a process without the candidate failed: no profiler"]


def test_modules_that_differ_in_their_number_are_one_row(scene: Any) -> None:
    (step,) = scene({}).opened().found.steps
    (row,) = step.modules
    assert (row.name, row.owner, row.share_ratio) == ("model.layers.*.mlp", "MLP", 1.0)
    assert row.calls == pytest.approx(2 / 3), "two calls in the three steps of the trace"
    assert [(item.name, item.share_ratio) for item in step.operators] == [("aten::mm", 1.0)]
    assert (step.kernels, step.idle_ratio) == (None, None), "a CPU's device is unknown, not idle"
