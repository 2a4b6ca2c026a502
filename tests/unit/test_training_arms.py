"""Arms of a training step, in one process, on a real two-layer Llama."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.backends.debugging import aot_eager

from e2e import arms, registry
from e2e.arms import Arena
from e2e.binding import NO_BACKWARD
from e2e.bound import Bound, Candidate, Part
from e2e.errors import CandidateError, EnvironmentFault
from e2e.modes import CountingBackend
from e2e.ops.rms_norm import RmsNorm
from e2e.protocols import BuildTarget
from e2e.reading import read_kernel
from e2e.schema.words import Mode
from e2e.schema.workload import TrainSpec
from e2e.stages import lineup, verdict
from e2e.tasks.causal_lm import _checkpoint
from tests import tiny
from tests.fakes import segment
from tests.sessions import LlamaSession
from tests.unit.test_arms import FakeInductor, session_of

torch.set_num_threads(1)

# Dynamo itself does, when it traces one
pytestmark = pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning")

OP = RmsNorm()
EAGER, SHAM, CANDIDATE, HEADROOM = "baseline:eager", "sham:eager", "candidate:eager", "headroom:eager"
COMPILED_BASELINE = "baseline:compile"
SEEDS = [11, 12, 13]
OWN = """\
# /// e2e
# op: rms_norm
# entry: forward
# backward: backward
# saves: [{rstd: "rows, float32"}]
# ///
import torch

def forward(x, weight, eps):
    rstd = torch.rsqrt(x.pow(2).mean(-1) + eps)
    return x * rstd[..., None] * weight, rstd.flatten()

def backward(gradient, x, weight, rstd):
    rstd = rstd.reshape(x.shape[:-1])[..., None]
    n, g = x * rstd, gradient * weight
    return rstd * (g - n * (g * n).mean(-1, keepdim=True)), (gradient * n).sum(tuple(range(x.dim() - 1)))
"""


class FakeCompiler(FakeInductor):
    """Traces forward and backward as the real one has them traced, and runs the graphs as they are."""

    def __init__(self, mode: Mode, traces: Callable[[Any], Counter[int]]) -> None:
        super().__init__(mode, traces)
        self._inductor = aot_eager


@pytest.fixture(autouse=True)
def _cheap_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(arms, "CountingBackend", FakeCompiler)
    yield
    torch._dynamo.reset()


def arena_of(kernel: Bound | None = None, **train: Any) -> Arena:
    session = LlamaSession(step="train", train=TrainSpec(**train))
    sites = OP.find_sites(session.model)
    candidate = None if kernel is None else Candidate(kernel, frozenset(site.fqn for site in sites))
    return Arena(session, [Part(OP, sites, candidate)])


def prepared(*names: str, kernel: Bound | None = None, **train: Any) -> Arena:
    arena = arena_of(kernel, **train)
    for name in names:
        arena.prepare(name, seed=7)
    return arena


def python(function: Callable[..., Tensor] = OP.reference) -> Bound:
    return Bound(function, "a" * 64)


def borrowing(sha256: str) -> Bound:
    return Bound(OP.reference, sha256 * 64, is_python=False, borrowed=True)


def own_backward(folder: Path, sha256: str) -> Bound:
    """A kernel whose forward saves something for its own backward."""
    file = folder / "own.py"
    file.write_text(OWN)
    kernel = read_kernel(str(file), op=None)
    builder = registry.load("builders", kernel.manifest.binding)
    built = builder.build(kernel, BuildTarget("cpu", None, folder, 60.0))
    return Bound(builder.bind(built, OP, "float32"), sha256 * 64)


def close(arena: Arena, one: str, other: str) -> None:
    """Both walk the same way: loss, gradients, updates."""
    found = [arena.run(name, seeds=SEEDS) for name in (one, other)]
    for mine, theirs in zip(*found, strict=True):
        assert mine[1] == pytest.approx(theirs[1], rel=1e-3, abs=1e-3)


def tensors_of(arena: Arena, name: str) -> list[Tensor]:
    """What a step of the arm changes: parameters, and the optimizer's state."""
    trainer = arena._arms[name].trainer
    assert trainer is not None
    state = [item for items in trainer._optimizer.state.values() for item in items.values()]
    return [*trainer._named.values(), *state]


def test_the_sessions_own_model_is_the_snapshot() -> None:
    arena = prepared(EAGER, CANDIDATE, kernel=python())
    model = arena._session.model
    before = [item.detach().clone() for item in model.parameters()]
    alone = arena.run(EAGER, seeds=SEEDS)
    arena.run(CANDIDATE, seeds=SEEDS)
    assert arena.run(EAGER, seeds=SEEDS) == alone
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))
    assert all(item.grad is None for item in model.parameters())


@pytest.mark.parametrize("fields", [{}, {"optimizer": "sgd", "momentum": 0.9}])
def test_arms_train_one_state_by_turns(fields: Any) -> None:
    alone = {name: prepared(name, **fields).run(name, seeds=SEEDS) for name in (EAGER, SHAM, COMPILED_BASELINE)}
    arena = prepared(*alone, **fields)
    held = [set(map(id, tensors_of(arena, name))) for name in alone]
    assert held[0] == held[1] == held[2]
    for name in (*alone, *reversed(alone)):
        assert arena.run(name, seeds=SEEDS) == alone[name], "nothing of an earlier turn is left"


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_hook_that_a_kernel_leaves_on_a_parameter_is_found_before_the_next_turn(register: str) -> None:
    def leaving(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        getattr(weight, register)(lambda *_: None)
        return OP.reference(x, weight, eps)

    arena = prepared(EAGER, kernel=python(leaving))
    with pytest.raises(CandidateError, match=r"left on model\.layers\.0.*, which every arm trains"):
        arena.prepare(CANDIDATE, seed=7)
    with pytest.raises(CandidateError):
        arena.run(EAGER, seeds=SEEDS)


def test_a_kernel_in_the_optimizers_place_trains_the_same_state() -> None:
    session = LlamaSession(step="train")
    op = registry.load_op("adamw")
    sites = op.find_sites(session.model)
    kernel = Bound(op.alternatives["foreach"], "f" * 64, is_python=False)
    arena = Arena(session, [Part(op, sites, Candidate(kernel, frozenset(site.fqn for site in sites)))])
    for name in (CANDIDATE, EAGER):
        arena.prepare(name, seed=7)
    assert set(map(id, tensors_of(arena, CANDIDATE))) == set(map(id, tensors_of(arena, EAGER)))
    for _ in range(2):
        close(arena, CANDIDATE, EAGER)


def test_identical_code_gives_identical_bits() -> None:
    arena = prepared(EAGER, SHAM)
    assert arena.run(EAGER, seeds=SEEDS) == arena.run(SHAM, seeds=SEEDS)


def test_a_replayed_prefix_of_a_segment_gives_its_fingerprints() -> None:
    arena = prepared(EAGER)
    timed = arena.timed(EAGER, batches=arena.batches(EAGER, SEEDS), settle=1, mark=lambda: None)
    assert arena.run(EAGER, seeds=SEEDS[:2]) == timed["digests"][:2]
    assert arena.run(EAGER, seeds=SEEDS[1:2]) != timed["digests"][1:2], "a step depends on those before it"


@pytest.mark.parametrize("mode", ["eager", "compile"])
@pytest.mark.parametrize("way", ["python", "borrowed", "own"])
def test_a_kernel_trains_as_the_baseline_does(way: str, mode: str, tmp_path: Path) -> None:
    sha256 = {"eager": "b", "compile": "c"}[mode] + way
    kernel = {"python": python, "borrowed": lambda: borrowing(sha256), "own": lambda: own_backward(tmp_path, sha256)}
    arena = arena_of(kernel[way](), gradient_accumulation=2)
    proof = arena.prepare(f"candidate:{mode}", seed=7)
    arena.prepare(EAGER, seed=7)
    close(arena, f"candidate:{mode}", EAGER)
    if mode == "compile":
        assert (proof["kernel_calls"], proof["graph_breaks"]) == ([tiny.SITES], False)


@pytest.mark.parametrize("mode", ["eager", "compile"])
def test_a_kernel_without_a_backward_does_not_train(mode: str) -> None:
    arena = arena_of(Bound(OP.reference, f"d{mode}" * 20, is_python=False))
    with pytest.raises(Exception, match=NO_BACKWARD):
        arena.prepare(f"candidate:{mode}", seed=7)


@pytest.mark.parametrize("mode", ["eager", "compile"])
@pytest.mark.parametrize("train", [{}, {"clip": 0.1}, {"gradient_accumulation": 2}])
def test_headroom_gives_back_true_outputs_and_gradients(mode: str, train: Any) -> None:
    arena = prepared(EAGER, f"headroom:{mode}", **train)
    (part, *_) = arena._session.batch(7)
    arena._session.batch = lambda seed: (part,) * arena._session.train.gradient_accumulation
    for _ in range(2):  # a gradient that was clipped in place would be another one the next time
        told = [arena.outputs(name, 7)[0] for name in (EAGER, f"headroom:{mode}")]
        torch.testing.assert_close(*told, rtol=1e-5, atol=1e-5)


def test_headroom_computes_no_norm() -> None:
    calls: list[int] = []
    arena = arena_of()
    model = arena._session.model
    kind = type(model.get_submodule("model.norm"))
    arena.prepare(HEADROOM, seed=7)
    own = kind.forward
    try:
        kind.forward = lambda self, x: calls.append(1) or own(self, x)
        arena.run(HEADROOM, seeds=SEEDS)
    finally:
        kind.forward = own
    assert calls == []


def test_checkpointing_computes_layers_again_and_changes_no_bit() -> None:
    calls: list[int] = []

    def counted(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        calls.append(1)
        return OP.reference(x, weight, eps)

    kernel = python(counted)
    plain, arena = prepared(CANDIDATE, kernel=kernel), arena_of(kernel)
    _checkpoint(arena._session.model)
    arena.prepare(CANDIDATE, seed=7)
    calls.clear()
    expected = plain.run(CANDIDATE, seeds=SEEDS)
    assert len(calls) == len(SEEDS) * tiny.SITES
    calls.clear()
    assert arena.run(CANDIDATE, seeds=SEEDS) == expected
    assert len(calls) == len(SEEDS) * (tiny.SITES + 2 * tiny.LAYERS), "a layer's two norms run twice"


def test_an_operators_kernel_leaves_the_gradient_to_the_operator() -> None:
    session = LlamaSession(step="train")
    op = registry.load_op("aten:silu.default")
    sites = op.find_sites(session.model)
    kernel = Bound(lambda x: x.detach() * torch.sigmoid(x.detach()), "e" * 64, is_python=False)
    arena = Arena(session, [Part(op, sites, Candidate(kernel, frozenset(site.fqn for site in sites)))])
    for name in (EAGER, CANDIDATE):
        arena.prepare(name, seed=7)
    close(arena, EAGER, CANDIDATE)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["compile", "reduce-overhead"])
def test_on_a_gpu_compiled_steps_train_as_eager_ones(
    tiny_workload: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arms, "CountingBackend", CountingBackend)
    session = session_of(tiny_workload, "train", device="cuda")
    sites = OP.find_sites(session.model)
    arena = Arena(session, [Part(OP, sites, Candidate(python(), frozenset(site.fqn for site in sites)))])
    names = [EAGER, *(f"{role}:{mode}" for role in ("baseline", "candidate", "headroom"))]
    proofs = {name: arena.prepare(name, seed=7) for name in names}
    assert proofs[f"candidate:{mode}"]["kernel_calls"] == [tiny.SITES]
    for name in names[1:3]:
        close(arena, EAGER, name)
        once, again = (arena.run(name, seeds=SEEDS) for _ in range(2))
        # an embedding's gradient is added up in any order there: bits may differ, sizes hardly
        assert [item[1] for item in once] == [pytest.approx(item[1], rel=1e-4) for item in again]
    told = [arena.outputs(name, 7)[0] for name in (EAGER, f"headroom:{mode}")]
    torch.testing.assert_close(*told, rtol=1e-3, atol=1e-3)


# ---- The parent's side


class Asking:
    """As much of a Course as the choice of steps to replay looks at."""

    def __init__(self, step: str) -> None:
        self.crew = SimpleNamespace(cell=SimpleNamespace(step=step, dtype="bfloat16"), device="cpu")
        self.policy = SimpleNamespace(settle_steps=1, audit_fraction=0.05)
        self.rng = random.Random(1)
        rows = [segment(EAGER, 1.0, 1, 0, place, steps=4).model_copy(update={"seed": 100 * place}) for place in (1, 2)]
        self.evidence = SimpleNamespace(segments=rows)


def test_steps_of_an_inference_segment_are_replayed_one_by_one() -> None:
    (run,) = verdict._runs(Asking("prefill"), EAGER, list(range(100, 105)), 3)  # type: ignore[arg-type]
    assert len(run) == 3


def test_steps_of_a_training_segment_are_replayed_from_its_start() -> None:
    asking, seeds = Asking("train"), [*range(100, 105), *range(200, 205)]
    seen = {tuple(run) for _ in range(200) for run in verdict._runs(asking, EAGER, seeds, 1)}  # type: ignore[arg-type]
    assert {run[0] for run in seen} == {100, 200}
    assert {len(run) for run in seen} == {1, 2, 3, 4, 5}
    assert all(list(run) == list(range(run[0], run[0] + len(run))) for run in seen)


def test_a_training_step_is_not_captured_by_hand() -> None:
    assert "not captured" in str(lineup.mode_problem(Asking("train"), Mode.CUDA_GRAPH))  # type: ignore[arg-type]
    assert lineup.mode_problem(Asking("train"), Mode.COMPILE) is None  # type: ignore[arg-type]


class Holding:
    """As much of a Course as the question of room looks at: 1 GiB of parameters in bfloat16, trained with AdamW."""

    def __init__(self, device_bytes: int, kind: str = "op", step: str = "train") -> None:
        self.facts = {"memory": device_bytes, "facts": {"parameters": 2**29}}
        member = SimpleNamespace(kernel=SimpleNamespace(manifest=SimpleNamespace(kind=kind)))
        workload = SimpleNamespace(workload=SimpleNamespace(train=TrainSpec()))
        cell = SimpleNamespace(step=step, dtype="bfloat16")
        self.crew = SimpleNamespace(cell=cell, members=[member], workload=workload)


def test_three_processes_must_hold_the_model_and_one_training_state_each() -> None:
    lineup.need_room(Holding(12 * 2**30))  # type: ignore[arg-type]
    lineup.need_room(Holding(2**30, step="prefill"))  # type: ignore[arg-type]
    with pytest.raises(EnvironmentFault, match=r"1 training state of 3\.00 GiB"):
        lineup.need_room(Holding(12 * 2**30 - 1))  # type: ignore[arg-type]
    with pytest.raises(EnvironmentFault, match="2 training states"):
        lineup.need_room(Holding(12 * 2**30, "patch"))  # type: ignore[arg-type]
