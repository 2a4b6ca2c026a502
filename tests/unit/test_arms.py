"""Every way to run the step, in one process, on a real two-layer Llama: identical, replaced, replayed or compiled."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from e2e import arms, modes, registry
from e2e.arms import Arena
from e2e.bound import Bound, Candidate, Part
from e2e.configuration import load_workload
from e2e.modes import CountingBackend
from e2e.numerics.examine import Examiner
from e2e.operators import Interception
from e2e.ops.rms_norm import RmsNorm
from e2e.ops.silu_mul import SiluMul
from e2e.profile import timeline
from e2e.profile.causes import difference_of
from e2e.profile.recorder import named_modules_ranged, record
from e2e.schema.words import Mode
from e2e.schema.workload import cells_of
from tests import tiny
from tests.sessions import ToySession

torch.set_num_threads(1)

OP: RmsNorm = registry.load("ops", "rms_norm")
SEEDS = [101, 102, 103]
EAGER, SHAM, CANDIDATE, HEADROOM = "baseline:eager", "sham:eager", "candidate:eager", "headroom:eager"
_NUMBERS = itertools.count()


class FakeInductor(CountingBackend):
    """Looks at the graph as the real one does, and runs it as it is: compiling would take seconds an arm."""

    def __init__(self, mode: Mode, traces: Callable[[Any], Counter[int]]) -> None:
        self._inductor = lambda graph, inputs: graph.forward
        self._traces = traces
        self.graphs, self.nodes = 0, Counter()
        self.placed: list[Interception] = []


@pytest.fixture(autouse=True)
def _cheap_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(arms, "CountingBackend", FakeInductor)
    yield
    torch._dynamo.reset()


def session_of(workload: Path, step: str = "prefill", *overrides: str, device: str = "cpu") -> Any:
    loaded = load_workload(str(workload), [f"step={step}", *overrides])
    task = registry.load("tasks", "causal-lm")
    cell = cells_of(loaded.workload)[0]
    made = task.open(loaded.workload, cell, root=workload.parent, device=device, seed=1)
    made.prepare(1)
    return made


@pytest.fixture(scope="module")
def session(tiny_workload: Path) -> Any:
    return session_of(tiny_workload)


@pytest.fixture(scope="module")
def decoding(tiny_workload: Path) -> Any:
    return session_of(tiny_workload, "decode")


class Spy:
    """A kernel that is right, and counts its calls."""

    def __init__(self, function: Callable[..., Tensor] = OP.reference) -> None:
        self.calls = 0
        self._function = function

    def __call__(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        self.calls += 1
        return self._function(x, weight, eps)


def constant(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return torch.full_like(x, 3.0)


def arena_of(session: Any, kernel: Callable[..., Tensor] | None = None, *, fqns: frozenset[str] | None = None) -> Arena:
    """An arena with a candidate at all sites, or at those."""
    sites = OP.find_sites(session.model)
    everywhere = frozenset(site.fqn for site in sites)
    sha256 = f"{next(_NUMBERS):064d}"[::-1]  # an op's name can be defined once in a process
    candidate = None if kernel is None else Candidate(Bound(kernel, sha256), fqns or everywhere)
    return Arena(session, [Part(OP, sites, candidate)])


def prepared(session: Any, *names: str, kernel: Callable[..., Tensor] | None = None) -> Arena:
    arena = arena_of(session, kernel)
    for name in names:
        arena.prepare(name, seed=7)
    return arena


def checksums(arena: Arena, name: str, seeds: list[int]) -> list[int]:
    return [checksum for checksum, _ in arena.run(name, seeds=seeds)]


def same(one: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


# ---- Eager arms


def test_the_eager_baseline_is_the_model_as_shipped(session: Any) -> None:
    arena = prepared(session, EAGER)
    (ids,) = session.batch(5)
    with torch.no_grad():
        expected = session.model(input_ids=ids, use_cache=True, logits_to_keep=1)
    found = arena.outputs(EAGER, 5)
    assert torch.equal(expected.logits, found[0])
    assert len(found) == 1 + 2 * tiny.LAYERS, "logits, then keys and values of every layer"


@pytest.mark.parametrize("mode", ["eager", "compile"])
@pytest.mark.parametrize("alternative", ["", "+F.rms_norm"])
def test_the_sham_equals_its_baseline_bit_for_bit(session: Any, mode: str, alternative: str) -> None:
    baseline, sham = f"baseline:{mode}{alternative}", f"sham:{mode}{alternative}"
    arena = prepared(session, baseline, sham)
    assert same(arena.outputs(baseline, 5), arena.outputs(sham, 5))
    assert arena.run(baseline, seeds=SEEDS) == arena.run(sham, seeds=SEEDS)


def test_the_alternative_stands_at_every_site_and_computes_the_same(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = Spy(OP.alternatives["F.rms_norm"])
    monkeypatch.setattr(OP, "alternatives", {"F.rms_norm": spy})
    arena = prepared(session, EAGER, "baseline:eager+F.rms_norm")
    before = spy.calls
    found = arena.outputs("baseline:eager+F.rms_norm", 5)
    assert spy.calls - before == tiny.SITES
    torch.testing.assert_close(found, arena.outputs(EAGER, 5))


def test_the_candidate_is_called_once_at_every_site_of_a_step(session: Any) -> None:
    spy = Spy()
    arena = prepared(session, CANDIDATE, kernel=spy)
    before = spy.calls
    arena.run(CANDIDATE, seeds=SEEDS)
    assert spy.calls - before == tiny.SITES * len(SEEDS)


def test_a_kernel_that_returns_a_constant_moves_the_candidate_and_nobody_else(session: Any) -> None:
    alone = checksums(prepared(session, EAGER), EAGER, SEEDS)
    names = (CANDIDATE, EAGER, SHAM)
    arena = prepared(session, *names, kernel=constant)
    digests = {name: checksums(arena, name, SEEDS) for name in names}
    assert digests[EAGER] == digests[SHAM] == alone
    assert not set(digests[CANDIDATE]) & set(alone)


def test_sites_that_the_kernel_declines_keep_the_baselines_op(session: Any) -> None:
    last = frozenset({"model.norm"})
    arena = arena_of(session, constant, fqns=last)
    arena.prepare(CANDIDATE, seed=7)
    arena.prepare(EAGER, seed=7)
    candidate, baseline = arena.outputs(CANDIDATE, 5), arena.outputs(EAGER, 5)
    assert not torch.equal(candidate[0], baseline[0]), "logits come after the last norm"
    assert same(candidate[1:], baseline[1:]), "keys and values come before it"


def test_an_arm_of_a_candidate_needs_one(session: Any) -> None:
    with pytest.raises(RuntimeError, match="no candidate"):
        arena_of(session).prepare(CANDIDATE, seed=7)


def test_what_is_not_the_name_of_an_arm_is_refused(session: Any) -> None:
    with pytest.raises(ValueError, match="turbo"):
        arena_of(session).prepare("baseline:turbo", seed=7)


# ---- Headroom


@pytest.mark.parametrize("mode", ["eager", "compile"])
def test_headroom_replays_the_true_outputs_of_its_one_batch(session: Any, mode: str) -> None:
    arena = prepared(session, EAGER, f"headroom:{mode}")
    assert same(arena.outputs(EAGER, 7), arena.outputs(f"headroom:{mode}", 7))
    assert same(arena.outputs(EAGER, 7), arena.outputs(f"headroom:{mode}", 8)), "whatever seed is asked for"


@pytest.mark.parametrize("mode", ["eager", "compile"])
def test_headroom_does_not_compute_the_op(session: Any, mode: str) -> None:
    """With other norm weights the model is another one, and the recording is not."""
    arena = prepared(session, EAGER, f"headroom:{mode}")
    before = arena.outputs(f"headroom:{mode}", 7)
    weight = session.model.model.norm.weight
    kept = weight.detach().clone()
    try:
        weight.mul_(2)
        assert not torch.equal(before[0], arena.outputs(EAGER, 7)[0])
        assert torch.equal(before[0], arena.outputs(f"headroom:{mode}", 7)[0])
    finally:
        weight.copy_(kept)


def test_headroom_in_a_compiled_arm_keeps_the_sites_inputs_alive(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the opaque op a compiler deletes everything upstream of the recording."""
    graphs: list[Any] = []

    class Recording(FakeInductor):
        def __call__(self, graph: Any, inputs: Any) -> Any:
            graphs.append(graph.graph)
            return super().__call__(graph, inputs)

    monkeypatch.setattr(arms, "CountingBackend", Recording)
    prepared(session, "headroom:compile")
    touched = [n for n in graphs[0].nodes if "touch" in str(n.target)]
    assert len(touched) == tiny.SITES
    assert all(node.args[1] for node in touched)


def test_headroom_covers_only_the_sites_that_the_kernel_takes(session: Any) -> None:
    """A ceiling over more sites than the kernel has would promise what it cannot win."""
    arena = arena_of(session, constant, fqns=frozenset({"model.norm"}))
    for name in (EAGER, HEADROOM):
        arena.prepare(name, seed=7)
    weight = session.model.model.layers[0].input_layernorm.weight
    kept = weight.detach().clone()
    try:
        weight.mul_(2)
        assert torch.equal(arena.outputs(EAGER, 7)[1], arena.outputs(HEADROOM, 7)[1])
    finally:
        weight.copy_(kept)


# ---- Compiled arms


def test_a_compiled_candidate_proves_itself_by_its_nodes_and_regions(session: Any) -> None:
    arena = arena_of(session, Spy())
    proof = arena.prepare("candidate:compile", seed=7)
    assert proof["kernel_calls"] == [tiny.SITES]
    assert proof["regions"] == 1


def test_a_compiled_candidate_computes_what_the_eager_one_does(session: Any) -> None:
    arena = prepared(session, "candidate:compile", CANDIDATE, kernel=Spy())
    torch.testing.assert_close(arena.outputs("candidate:compile", 5), arena.outputs(CANDIDATE, 5))


def test_an_eager_arm_claims_no_region(session: Any) -> None:
    proof = arena_of(session).prepare(EAGER, seed=7)
    assert (proof["regions"], proof["kernel_calls"]) == (None, None)


def test_a_baseline_has_no_kernel_in_its_graph_even_beside_a_candidate(session: Any) -> None:
    arena = arena_of(session, Spy())
    arena.prepare("candidate:compile", seed=7)
    assert arena.prepare("baseline:compile", seed=7)["kernel_calls"] == [0]


def test_an_arm_that_fell_back_to_eager_shows_no_region(session: Any) -> None:
    with torch.compiler.set_stance("force_eager"):
        proof = arena_of(session).prepare("baseline:compile", seed=7)
    assert proof["regions"] == 0


def test_a_baseline_that_compiles_only_in_parts_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its user has those parts: without them the opponent would be weaker than it is."""

    def breaks(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        torch._dynamo.graph_break()
        return OP.reference(x, weight, eps)

    monkeypatch.setattr(OP, "alternatives", {"broken": breaks})
    arena = arena_of(ToySession())
    proof = arena.prepare("baseline:compile+broken", seed=7)
    assert proof["graph_breaks"] is True
    assert proof["regions"] > 1
    assert arena.prepare("baseline:compile", seed=7)["graph_breaks"] is False


def test_a_dozen_compiled_arms_all_stay_compiled_and_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo's cache hangs on the code object, which all arms share: the ninth graph used to fail or run eagerly."""
    monkeypatch.setattr(OP, "alternatives", {f"times {n}": _times(n) for n in range(2, 10)})
    names = [f"{role}:compile" for role in ("baseline", "candidate", "sham", "headroom")]
    names += [f"baseline:compile+{alternative}" for alternative in OP.alternatives]
    assert len(names) == 12
    arena = arena_of(ToySession(), constant)
    proofs = {name: arena.prepare(name, seed=7) for name in names}
    assert {name: proof["regions"] for name, proof in proofs.items()} == dict.fromkeys(names, 1)
    digests = {name: checksums(arena, name, SEEDS)[0] for name in names}
    assert digests["baseline:compile"] == digests["sham:compile"]
    assert len(set(digests.values())) == 11, "all but the sham compute something else"


def _times(factor: int) -> Callable[..., Tensor]:
    return lambda x, weight, eps: factor * OP.reference(x, weight, eps)


# ---- Steps, marks and fingerprints


def test_equal_seeds_give_equal_fingerprints_and_others_give_others(session: Any) -> None:
    arena = prepared(session, EAGER)
    first = arena.run(EAGER, seeds=SEEDS)
    assert first == arena.run(EAGER, seeds=SEEDS)
    assert arena.run(EAGER, seeds=SEEDS[::-1]) == first[::-1]
    assert len(set(checksums(arena, EAGER, list(range(20))))) == 20


def test_a_timed_segment_marks_after_settling_and_after_the_last_step(session: Any) -> None:
    spy, marks = Spy(), []
    arena = prepared(session, CANDIDATE, kernel=spy)
    spy.calls = 0
    batches = arena.batches(CANDIDATE, [1, 2, 3, 4, 5])
    arena.timed(CANDIDATE, batches=batches, settle=2, mark=lambda: marks.append(spy.calls))
    assert marks == [2 * tiny.SITES, 5 * tiny.SITES]


def test_without_settle_steps_the_first_mark_comes_first(session: Any) -> None:
    spy, marks = Spy(), []
    arena = prepared(session, CANDIDATE, kernel=spy)
    spy.calls = 0
    arena.timed(CANDIDATE, batches=arena.batches(CANDIDATE, [1]), settle=0, mark=lambda: marks.append(spy.calls))
    assert marks == [0, tiny.SITES]


def test_every_step_of_a_segment_leaves_the_fingerprint_that_a_replay_gives(session: Any) -> None:
    arena = prepared(session, EAGER)
    seeds = [11, 12, 13, 14]
    timed = arena.timed(EAGER, batches=arena.batches(EAGER, seeds), settle=1, mark=lambda: None)["digests"]
    assert timed == arena.run(EAGER, seeds=seeds)


def test_more_steps_than_the_ring_has_slots_keep_all_their_fingerprints(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An audit of a fast model replays thousands of steps at once."""
    monkeypatch.setattr(arms, "SLOTS", 4)
    arena = prepared(session, EAGER)
    seeds = list(range(10))
    expected = [arena.run(EAGER, seeds=[seed])[0] for seed in seeds]
    assert arena.run(EAGER, seeds=seeds) == expected
    timed = arena.timed(EAGER, batches=arena.batches(EAGER, seeds), settle=1, mark=lambda: None)
    assert timed["digests"] == expected


def test_outputs_are_copies_that_the_next_step_does_not_touch() -> None:
    class StaticSession(ToySession):
        """Its step returns the same memory every time, as a CUDA graph does."""

        def program(self, model: nn.Module) -> Any:
            memory = torch.empty(3, 8)
            return lambda x: (memory.copy_(model(x)),)

    arena = prepared(StaticSession(), EAGER)
    first = arena.outputs(EAGER, 5)
    kept = tuple(tensor.clone() for tensor in first)
    assert not same(first, arena.outputs(EAGER, 6))
    assert same(first, kept)


def test_decoding_starts_every_step_from_the_same_context(decoding: Any) -> None:
    names = (EAGER, CANDIDATE, HEADROOM)
    arena = prepared(decoding, *names, kernel=Spy())
    before = arena.run(EAGER, seeds=SEEDS)
    arena.run(CANDIDATE, seeds=list(range(30)))
    arena.run(HEADROOM, seeds=SEEDS)
    assert arena.run(EAGER, seeds=SEEDS) == before
    (logits,) = arena.outputs(EAGER, 5)
    with torch.no_grad():
        whole = decoding.step_answers(decoding.model, *decoding.step_inputs(5))
    torch.testing.assert_close(logits, whole, rtol=1e-4, atol=1e-5)


# ---- Generation: a loop whose parts are compiled


@pytest.mark.parametrize("cache", ["static", "dynamic"])
def test_a_generation_is_the_same_in_every_arm_and_each_part_is_compiled_once(tiny_workload: Path, cache: str) -> None:
    """With a cache that grows every token is a graph of its own; no later step compiles another."""
    generating = session_of(tiny_workload, "generate", "new_tokens=4", f"cache={cache}")
    arena = prepared(generating, EAGER, CANDIDATE, HEADROOM, kernel=Spy())
    proof = arena.prepare("candidate:compile", seed=7)
    parts = 2 if cache == "static" else 4
    assert proof["regions"] == 4
    assert proof["kernel_calls"] == [parts * (2 * tiny.LAYERS + 1)]
    eager, compiled = arena.outputs(EAGER, 5), arena.outputs("candidate:compile", 5)
    for mine, theirs in zip(compiled, eager, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    arena.run("candidate:compile", seeds=SEEDS)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs
    assert same(arena.outputs(HEADROOM, 7), arena.outputs(HEADROOM, 8)), "it replays its one batch"


def test_the_first_token_is_timed_by_itself_where_there_is_one(session: Any, tiny_workload: Path) -> None:
    generating = session_of(tiny_workload, "generate", "new_tokens=8")
    found = prepared(generating, EAGER).generation_s(EAGER, seeds=SEEDS)
    assert found is not None
    assert 0 < found[0] < found[1]
    assert prepared(session, EAGER).generation_s(EAGER, seeds=SEEDS) is None


# ---- Operators by name: intercepted in eager arms, replaced in compiled ones


MUL = registry.load_op("aten:mul.Tensor")


class Product:
    """A kernel for `mul.Tensor` that is right, and counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        self.calls += 1
        return x * y


@pytest.fixture
def multiplying(session: Any, tmp_path: Path) -> tuple[Any, int]:
    """Sites of an operator that most modules call several times a step, and its calls in all."""
    examiner = Examiner(session, MUL, MUL.find_sites(session.model))
    found = examiner.survey(seed=1, path=tmp_path / "calls", budget_bytes=2**24)
    return examiner.fit, sum(row["calls"] for row in found["sites"] if row["incompatible"] is None)


@pytest.mark.parametrize("mode", ["eager", "compile"])
def test_arms_of_an_operator_compute_what_the_model_does(session: Any, multiplying: tuple[Any, int], mode: str) -> None:
    (sites, calls), kernel = multiplying, Product()
    candidate = Candidate(Bound(kernel, f"{next(_NUMBERS):064d}"[::-1]), frozenset(site.fqn for site in sites))
    arena = Arena(session, [Part(MUL, sites, candidate)])
    names = [f"{role}:{mode}" for role in ("baseline", "sham", "candidate", "headroom")]
    proofs = {name: arena.prepare(name, seed=7) for name in names}
    expected = arena.outputs(names[0], 7)
    assert all(same(expected, arena.outputs(name, 7)) for name in names)
    assert proofs[f"candidate:{mode}"]["kernel_calls"] == ([calls] if mode == "compile" else None)
    kernel.calls = 0
    arena.run(f"candidate:{mode}", seeds=SEEDS)
    assert kernel.calls == len(SEEDS) * calls


@pytest.mark.parametrize("mode", ["eager", "compile"])
def test_owners_that_the_kernel_does_not_take_keep_the_operator(
    session: Any, multiplying: tuple[Any, int], mode: str
) -> None:
    (sites, _), kernel = multiplying, Product()
    fqns = frozenset(site.fqn for site in sites if site.fqn.endswith("mlp"))
    arena = Arena(session, [Part(MUL, sites, Candidate(Bound(kernel, f"{next(_NUMBERS):064d}"[::-1]), fqns))])
    arena.prepare(f"candidate:{mode}", seed=7)
    kernel.calls = 0
    arena.run(f"candidate:{mode}", seeds=SEEDS)
    assert kernel.calls == len(SEEDS) * tiny.LAYERS


def test_a_graph_without_an_operators_call_is_no_arm(
    session: Any, multiplying: tuple[Any, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Headroom that left everything as it is would say that nothing can be won."""
    monkeypatch.setattr(modes, "replace", lambda graph, interceptions: [])
    with pytest.raises(RuntimeError, match=r"no call of aten\.mul\.Tensor in Llama"):
        Arena(session, [Part(MUL, multiplying[0])]).prepare("sham:compile", seed=7)


# ---- On a device: graphs captured by hand, inputs that start on the host


@pytest.fixture(params=["prefill", "decode"])
def on_device(request: pytest.FixtureRequest, tiny_workload: Path) -> Any:
    return session_of(tiny_workload, request.param, device="cuda:0")


@pytest.mark.gpu
def test_a_captured_arm_computes_on_each_steps_own_input_what_eager_does(on_device: Any) -> None:
    kernel = Spy()
    arena = arena_of(on_device, kernel)
    names = ["baseline:cuda-graph", "baseline:cuda-graph+F.rms_norm", "candidate:cuda-graph"]
    for name in (EAGER, *names):
        proof = arena.prepare(name, seed=7)
        assert proof["kernel_calls"] == ([2 * tiny.LAYERS + 1] if name.startswith("candidate") else None)
    eager = [arena.outputs(EAGER, seed) for seed in SEEDS]
    for name in names:
        captured = [arena.outputs(name, seed) for seed in SEEDS]
        for mine, theirs in zip(captured, eager, strict=True):
            assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(mine, theirs, strict=True))
        assert not torch.equal(captured[0][0], captured[1][0])


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["cuda-graph", "compile", "reduce-overhead"])
def test_a_generation_on_a_device_is_what_eager_generates(
    tiny_workload: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arms, "CountingBackend", CountingBackend)
    generating = session_of(tiny_workload, "generate", "new_tokens=4", device="cuda:0")
    arena = prepared(generating, EAGER, f"baseline:{mode}")
    for seed in (*SEEDS, *SEEDS):
        for mine, theirs in zip(arena.outputs(f"baseline:{mode}", seed), arena.outputs(EAGER, seed), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
def test_a_captured_arm_makes_no_calls_of_the_kernel_when_it_is_replayed(on_device: Any) -> None:
    kernel = Spy()
    arena = arena_of(on_device, kernel)
    arena.prepare("candidate:cuda-graph", seed=7)
    before = kernel.calls
    arena.run("candidate:cuda-graph", seeds=SEEDS)
    assert kernel.calls == before


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["eager", "cuda-graph"])
def test_inputs_that_start_on_the_host_give_the_same_outputs(on_device: Any, mode: str) -> None:
    here = Arena(on_device, [Part(OP, OP.find_sites(on_device.model))])
    there = Arena(on_device, [Part(OP, OP.find_sites(on_device.model))], transfer=True)
    for arena in (here, there):
        arena.prepare(f"baseline:{mode}", seed=7)
    (batch,) = there.batches(f"baseline:{mode}", [5])
    assert all(not tensor.is_cuda and tensor.is_pinned() for tensor in batch)
    assert same(here.outputs(f"baseline:{mode}", 5), there.outputs(f"baseline:{mode}", 5))


@pytest.mark.gpu
def test_a_timed_segment_on_a_device_is_also_clocked_by_it(on_device: Any) -> None:
    arena = Arena(on_device, [Part(OP, OP.find_sites(on_device.model))])
    arena.prepare(EAGER, seed=7)
    found = arena.timed(EAGER, batches=arena.batches(EAGER, SEEDS), settle=1, mark=lambda: None)
    assert 0 < found["device_s"] < 10 and found["allocations"] >= 0


# ---- One op after the other


def test_another_ops_arms_take_the_place_of_the_last_ones_and_the_model_as_it_is_stays(session: Any) -> None:
    arena = prepared(session, EAGER, HEADROOM, "baseline:eager+F.rms_norm")
    shipped = arena.outputs(EAGER, 5)
    silu = registry.load("ops", "silu")
    arena.turn_to(silu, silu.find_sites(session.model))
    assert same(shipped, arena.outputs(EAGER, 5))
    with pytest.raises(KeyError):
        arena.outputs(HEADROOM, 5)
    arena.prepare(HEADROOM, seed=7)
    assert same(session_step(session, 7), arena.outputs(HEADROOM, 7)), "replayed outputs are the batch's own"


def session_step(session: Any, seed: int) -> tuple[Tensor, ...]:
    with torch.no_grad():
        outputs: tuple[Tensor, ...] = session.program(session.model)(*session.batch(seed))
    return outputs


def test_a_trace_by_module_names_every_module_and_leaves_no_hook(session: Any, tmp_path: Path) -> None:
    arena = prepared(session, EAGER)
    program = arena.program(EAGER)
    with named_modules_ranged(program):
        record(arena, EAGER, seed=7, steps=1, path=tmp_path / "raw.json", device="cpu")
    found = timeline.store(tmp_path / "raw.json", tmp_path / "traces", arm=EAGER, steps=1)
    norms = [name for name in found.modules if name.endswith(" LlamaRMSNorm")]
    assert len(norms) == tiny.SITES
    whole = found.modules[" LlamaForCausalLM"]
    assert all(item.own_s >= -1e-9 and item.total_s <= whole.total_s for item in found.modules.values())
    assert sum(item.own_s for item in found.modules.values()) == pytest.approx(whole.total_s)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in program.modules())


def traced(arena: Arena, arm: str, folder: Path) -> timeline.Timeline:
    with arena.with_ranges(arm):
        record(arena, arm, seed=7, steps=2, path=folder / "raw.json", device="cpu")
    return timeline.store(folder / "raw.json", folder / "traces", arm=arm, steps=2)


@pytest.mark.parametrize("arm", [EAGER, "baseline:eager+F.rms_norm", CANDIDATE])
def test_a_trace_of_an_eager_arm_has_a_range_around_every_call_of_the_op(
    session: Any, tmp_path: Path, arm: str
) -> None:
    arena = prepared(session, arm, kernel=Spy())
    before = checksums(arena, arm, SEEDS)
    program = arena.program(arm)
    found = traced(arena, arm, tmp_path)
    assert found.op is not None
    assert found.step_s is not None
    assert found.op.calls == tiny.SITES
    assert 0 < found.op.host_s < found.step_s
    fused = "aten::_fused_rms_norm" if "F.rms_norm" in arm else "aten::rsqrt"
    assert fused in found.op.rows
    assert "aten::mm" in found.rows
    assert "aten::mm" not in found.op.rows
    assert arena.program(arm) is program, "timed steps have no ranges"
    assert checksums(arena, arm, SEEDS) == before


def test_a_compiled_arms_trace_has_none(session: Any, tmp_path: Path) -> None:
    arena = prepared(session, "baseline:compile")
    assert traced(arena, "baseline:compile", tmp_path).op is None


def test_a_slow_op_in_one_arm_is_found_by_the_traces_of_both(session: Any, tmp_path: Path) -> None:
    def slow(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        time.sleep(0.004)
        return OP.reference(x, weight, eps)

    arena = prepared(session, EAGER, CANDIDATE, kernel=slow)
    shipped, mine = (traced(arena, arm, tmp_path) for arm in (EAGER, CANDIDATE))
    difference = difference_of(shipped, mine)
    assert difference is not None
    by_cause = {change.cause: change.seconds for change in difference.changes}
    assert by_cause["op"] > 0.9 * tiny.SITES * 0.004, "a busy machine sleeps longer, never shorter"
    assert max(by_cause, key=lambda cause: by_cause[cause]) == "op"


# ---- Several kernels at once


GATED: SiluMul = registry.load("ops", "silu_mul")


def product(gate: Tensor, up: Tensor) -> Tensor:
    return GATED.reference(gate, up)


def arena_of_two(session: Any, norm: Callable[..., Any], gated: Callable[..., Any]) -> Arena:
    """Norms and products, each with a kernel everywhere."""
    parts = []
    for op, call in ((OP, norm), (GATED, gated)):
        sites = op.find_sites(session.model)
        bound = Bound(call, f"{next(_NUMBERS):064d}"[::-1])
        parts.append(Part(op, sites, Candidate(bound, frozenset(site.fqn for site in sites))))
    return Arena(session, parts)


def test_all_kernels_stand_in_the_candidate_and_one_in_the_arm_of_one(session: Any) -> None:
    arena = arena_of_two(session, constant, lambda gate, up: torch.zeros_like(gate))
    for name in (EAGER, CANDIDATE, "part:eager+1", "part:eager+2"):
        arena.prepare(name, seed=7)
    both, norms, products, own = (
        arena.outputs(name, 5)[0] for name in (CANDIDATE, "part:eager+1", "part:eager+2", EAGER)
    )
    alone = prepared(session, CANDIDATE, kernel=constant).outputs(CANDIDATE, 5)[0]
    assert torch.equal(norms, alone)
    assert len({tuple(found.flatten().tolist()) for found in (both, norms, products, own)}) == 3, (
        "a constant in the last norm hides what is before it"
    )
    assert not torch.equal(products, own)


def test_a_compiled_candidate_proves_every_kernel_by_its_own_nodes(session: Any) -> None:
    arena = arena_of_two(session, Spy(), product)
    assert arena.prepare("candidate:compile", seed=7)["kernel_calls"] == [tiny.SITES, tiny.LAYERS]
    assert arena.prepare("part:compile+2", seed=7)["kernel_calls"] == [0, tiny.LAYERS]
    torch.testing.assert_close(arena.outputs("candidate:compile", 5), arena.outputs("part:compile+2", 5))


@pytest.mark.parametrize("mode", ["eager", "compile"])
def test_headroom_replays_every_op_at_once(session: Any, mode: str) -> None:
    arena = arena_of_two(session, Spy(), product)
    for name in (EAGER, f"headroom:{mode}"):
        arena.prepare(name, seed=7)
    before = arena.outputs(EAGER, 7)
    torch.testing.assert_close(before[0], arena.outputs(f"headroom:{mode}", 7)[0])
    weights = [session.model.model.norm.weight, session.model.model.layers[-1].mlp.up_proj.weight]
    kept = [weight.detach().clone() for weight in weights]
    try:
        for weight in weights:
            weight.mul_(2)
            assert not torch.equal(before[0], arena.outputs(EAGER, 7)[0])
            assert torch.equal(before[0], arena.outputs(f"headroom:{mode}", 7)[0])
    finally:
        for weight, value in zip(weights, kept, strict=True):
            weight.copy_(value)


def test_an_alternative_stands_where_it_is_offered_and_identical_code_everywhere(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    norm, gated = Spy(OP.alternatives["F.rms_norm"]), Counted(product)
    monkeypatch.setattr(OP, "alternatives", {"F.rms_norm": norm})
    monkeypatch.setattr(GATED, "alternatives", {"plain": gated})
    arena = arena_of_two(session, Spy(), product)
    called = {}
    for alternative in ("F.rms_norm", "plain", "F.rms_norm+plain"):
        for role in ("baseline", "sham"):
            arena.prepare(f"{role}:eager+{alternative}", seed=7)
            before = (norm.calls, gated.calls)
            arena.outputs(f"{role}:eager+{alternative}", 5)
            called[role, alternative] = (norm.calls - before[0], gated.calls - before[1])
    alone, other, both = (tiny.SITES, 0), (0, tiny.LAYERS), (tiny.SITES, tiny.LAYERS)
    assert [*called.values()] == [alone, alone, other, other, both, both]
    with pytest.raises(RuntimeError, match="no op here has an alternative unknown"):
        arena.prepare("baseline:eager+unknown", seed=7)


class Counted:
    """A function that counts its calls."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self.calls = 0
        self._function = function

    def __call__(self, *args: Any) -> Tensor:
        self.calls += 1
        return self._function(*args)
