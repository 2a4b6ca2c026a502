"""AdamW as an op: it works in place on lists of tensors, and its site is the optimizer's step."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from e2e import registry
from e2e.arms import Arena
from e2e.bound import Bound, Candidate, Part
from e2e.numerics.captures import Captured, clone_call, load_calls, save_calls
from e2e.numerics.compare import exactly, judge_outputs
from e2e.numerics.examine import Examiner
from e2e.numerics.exercise import gradients, run_calls
from e2e.numerics.loss_path import judged, perturbed, walked
from e2e.ops.adamw import PLUGIN as OP
from e2e.patch import Standing
from e2e.protocols import BuildTarget, OpCall, tensors_of, updated, written_by
from e2e.reading import read_kernel
from e2e.schema.workload import TrainSpec
from e2e.scout import placed
from e2e.trainer import UPDATE
from tests.sessions import LlamaSession

torch.set_num_threads(1)

EAGER, SHAM, CANDIDATE, HEADROOM = "baseline:eager", "sham:eager", "candidate:eager", "headroom:eager"
SEEDS = [11, 12, 13]
DTYPES = ["float32", "bfloat16", "float16"]
PYTHON = """\
# /// e2e
# op: adamw
# entry: update
# ///
import torch

def update(params, grads, exp_avgs, exp_avg_sqs, step, lr, beta1, beta2, eps, weight_decay):
    for p, g, m, v in zip(params, grads, exp_avgs, exp_avg_sqs):
        m.lerp_(g, 1 - beta1)
        v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        p.mul_(1 - lr * weight_decay)
        p.addcdiv_(m, (v / (1 - beta2**step)).sqrt_().add_(eps), value=-lr / (1 - beta1**step))
"""
NATIVE = """\
// /// e2e
// op: adamw
// entry: update
// device: cpu
// dtypes: [float32]
// ///
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>
#include <cmath>
using tvm::ffi::Array;
using tvm::ffi::Tensor;
static float* at(const Tensor& t) {
  return reinterpret_cast<float*>(static_cast<char*>(t.data_ptr()) + t.byte_offset());
}
void update(Array<Tensor> params, Array<Tensor> grads, Array<Tensor> exp_avgs, Array<Tensor> exp_avg_sqs, int64_t step,
            double lr, double beta1, double beta2, double eps, double weight_decay) {
  const double first = 1 - std::pow(beta1, step), second = 1 - std::pow(beta2, step);
  for (size_t i = 0; i < params.size(); ++i) {
    float *p = at(params[i]), *g = at(grads[i]), *m = at(exp_avgs[i]), *v = at(exp_avg_sqs[i]);
    int64_t count = 1;
    for (int d = 0; d < params[i].ndim(); ++d) count *= params[i].size(d);
    for (int64_t k = 0; k < count; ++k) {
      m[k] = beta1 * m[k] + (1 - beta1) * g[k];
      v[k] = beta2 * v[k] + (1 - beta2) * g[k] * g[k];
      p[k] = p[k] * (1 - lr * weight_decay) - lr * (m[k] / first) / (std::sqrt(v[k] / second) + eps);
    }
  }
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(update, update);
"""


def right(params: Any, grads: Any, exp_avgs: Any, exp_avg_sqs: Any, *scalars: Any) -> tuple[Tensor, ...]:
    """A kernel in place, by the reference."""
    call = (params, grads, exp_avgs, exp_avg_sqs)
    found = OP.reference(*call, *scalars)
    for mine, item in zip(updated(OP, call), found, strict=True):
        mine.copy_(item)
    return updated(OP, call)


def calls(dtype: str) -> list[OpCall]:
    call = OP.example(dtype, "cpu", 1)
    return [call, *(edge for _, edge in OP.edge_calls(call, 1))]


def answer(function: Callable[..., Any], call: OpCall) -> Any:
    given = clone_call(call)
    return function(*given.tensors, *given.scalars)


def verdict(call: OpCall, values: Any) -> object:
    baseline = answer(OP.alternatives["foreach"], call)
    return judge_outputs(values, baseline, exactly(OP, call), ratio=2.0)[0]


# ---- Maths


@pytest.mark.parametrize("name", ["foreach", "fused"])
def test_in_float64_torchs_own_ways_agree_with_the_reference(name: str) -> None:
    for call in calls("float32"):
        wide = OpCall(tuple(tuple(item.double() for item in items) for items in call.tensors), call.scalars)
        for mine, exact in zip(answer(OP.alternatives[name], wide), exactly(OP, call), strict=True):
            torch.testing.assert_close(mine, exact, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
def test_torchs_own_ways_and_rounded_maths_pass(dtype: str) -> None:
    for call in calls(dtype):
        rounded = [item.to(getattr(torch, dtype)) for item in exactly(OP, call)]
        assert verdict(call, rounded) is None
        for function in OP.alternatives.values():
            assert verdict(call, answer(function, call)) is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_mutant_is_rejected(dtype: str) -> None:
    known = calls(dtype)
    survivors = [
        name
        for name, mutant in OP.mutants().items()
        if all(verdict(call, mutant(*call.tensors, *call.scalars)) is None for call in known)
    ]
    assert survivors == []


def test_reference_and_mutants_change_nothing_and_alternatives_what_they_update() -> None:
    call = OP.example("float32", "cpu", 1)
    before = [item.clone() for item in tensors_of(call)]
    for function in (OP.reference, *OP.mutants().values()):
        function(*call.tensors, *call.scalars)
        assert all(map(torch.equal, before, tensors_of(call)))
    for function in OP.alternatives.values():
        given = clone_call(call)
        found = function(*given.tensors, *given.scalars)
        assert all(mine is item for mine, item in zip(found, updated(OP, given.tensors), strict=True))
        assert all(map(torch.equal, given.tensors[1], call.tensors[1]))


def test_what_is_allocated_is_what_a_call_returns() -> None:
    for call in calls("bfloat16"):
        made = OP.allocate(*call.tensors, *call.scalars)
        assert [(item.shape, item.dtype) for item in made] == [
            (item.shape, item.dtype) for item in updated(OP, call.tensors)
        ]
        dims = OP.dims(call)
        assert (dims["tensors"], dims["dtype"]) == (len(call.tensors[0]), "bfloat16")


def test_the_schema_is_one_that_torch_library_reads() -> None:
    parsed = torch._C.parse_schema(f"probe{OP.schema}")
    assert [item.name for item in parsed.arguments] == [*OP.tensor_names, *OP.scalar_names]
    assert [item.alias_info is not None for item in parsed.arguments[:4]] == [
        place in written_by(OP) for place in range(4)
    ]
    assert parsed.returns == []


def test_calls_of_lists_are_stored_and_read_again(tmp_path: Path) -> None:
    call = OP.example("bfloat16", "cpu", 3)
    save_calls(tmp_path / "calls", [Captured(UPDATE, "captured", call)])
    (found,) = load_calls(tmp_path / "calls", "cpu")
    assert found.call.scalars == call.scalars
    assert [len(item) for item in found.call.tensors] == [len(item) for item in call.tensors]
    assert all(map(torch.equal, tensors_of(found.call), tensors_of(call)))


# ---- Kernels


def bound(source: str, suffix: str, folder: Path) -> Bound:
    from e2e.bound import bound_to

    file = folder / f"own{suffix}"
    file.write_text(source)
    kernel = read_kernel(str(file), op=None)
    built = registry.load("builders", kernel.manifest.binding).build(kernel, BuildTarget("cpu", None, folder, 120.0))
    return bound_to(built, OP, "float32")


@pytest.fixture(scope="module", params=["python", "native"])
def kernel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bound:
    sources = {"python": (PYTHON, ".py"), "native": (NATIVE, ".cpp")}
    return bound(*sources[request.param], tmp_path_factory.mktemp("adamw"))


def test_a_right_kernel_passes_on_every_input(kernel: Bound, tmp_path: Path) -> None:
    known = [Captured(UPDATE, "captured", call) for call in calls("float32")]
    save_calls(tmp_path / "calls", known)
    remarks = run_calls(
        OP,
        kernel.call,
        inputs=tmp_path / "calls",
        outputs=tmp_path / "outputs",
        constraints=[],
        device="cpu",
        writes=kernel.writes,
    )
    assert [{k: v for k, v in row.items() if v} for row in remarks] == [{"repeats": True}] * len(known)
    assert [verdict(item.call, answer(kernel.call, item.call)) for item in known] == [None] * len(known)


# ---- In the model


@pytest.fixture(scope="module")
def session() -> LlamaSession:
    return LlamaSession(step="train", train=TrainSpec(learning_rate=1e-3))


def test_its_site_is_the_optimizers_step_of_a_model_that_is_trained_with_it(session: LlamaSession) -> None:
    (site,) = OP.find_sites(session.model)
    assert (site.fqn, site.scalars["lr"]) == (UPDATE, 1e-3)
    assert OP.find_sites(LlamaSession().model) == []
    assert OP.find_sites(LlamaSession(step="train", train=TrainSpec(optimizer="sgd")).model) == []


def test_the_survey_sees_calls_of_whole_steps_and_leaves_the_model_as_it_was(
    session: LlamaSession, tmp_path: Path
) -> None:
    before = [item.detach().clone() for item in session.model.parameters()]
    examiner = Examiner(session, OP, OP.find_sites(session.model))  # type: ignore[arg-type]
    found = examiner.survey(seed=1, path=tmp_path / "calls", budget_bytes=2**26)
    (row,) = found["sites"]
    assert row["incompatible"] is None
    assert [item.call.scalars[0] for item in load_calls(tmp_path / "calls", "cpu")][:2] == [1, 2]
    assert all(map(torch.equal, before, session.model.parameters()))
    assert all(row["caught"] for row in examiner.mutants(ratio=2.0))


def arena_of(session: LlamaSession, kernel: Bound) -> Arena:
    sites = OP.find_sites(session.model)
    return Arena(session, [Part(OP, sites, Candidate(kernel, frozenset(site.fqn for site in sites)))])


def test_arms_update_as_the_optimizer_does(session: LlamaSession, kernel: Bound) -> None:
    arena = arena_of(session, kernel)
    names = [EAGER, SHAM, CANDIDATE, "baseline:eager+foreach", "baseline:eager+fused"]
    for name in names:
        arena.prepare(name, seed=7)
    own = arena.run(EAGER, seeds=SEEDS)
    assert arena.run(SHAM, seeds=SEEDS) == own
    for name in names[2:]:
        for mine, theirs in zip(arena.run(name, seeds=SEEDS), own, strict=True):
            assert mine[1] == pytest.approx(theirs[1], rel=1e-4, abs=1e-4)
        assert arena.run(name, seeds=SEEDS) == arena.run(name, seeds=SEEDS)


def test_headroom_leaves_the_update_out(session: LlamaSession, kernel: Bound) -> None:
    arena = arena_of(session, kernel)
    arena.prepare(HEADROOM, seed=7)
    arena.run(HEADROOM, seeds=SEEDS)
    moved = arena._arms[HEADROOM].trainer._samples  # type: ignore[union-attr]
    start = arena._arms[HEADROOM].trainer._sampled_start  # type: ignore[union-attr]
    assert all(map(torch.equal, moved, start))


def test_a_kernel_that_does_nothing_is_far_from_the_baseline(session: LlamaSession) -> None:
    from e2e.measure.audit import Fingerprint, allowed_apart

    arena = arena_of(session, Bound(lambda *call: (), "f" * 64))
    for name in (EAGER, CANDIDATE):
        arena.prepare(name, seed=7)
    own, lazy = (Fingerprint.read(arena.run(name, seeds=SEEDS)[0]) for name in (EAGER, CANDIDATE))
    assert own is not None
    assert lazy is not None
    assert own.distance(lazy) > allowed_apart(0.0, "bfloat16")


def test_its_calls_are_counted_once_a_step(session: LlamaSession, tmp_path: Path) -> None:
    sites = OP.find_sites(session.model)
    found = gradients(session, [Standing(OP, sites, right)], seed=1, path=tmp_path / "g")  # type: ignore[arg-type]
    assert found["calls"] == {UPDATE: 1}


def test_a_wrong_update_leaves_the_baselines_loss_path(session: LlamaSession) -> None:
    def made(function: Callable[..., Any]) -> Callable[[], nn.Module]:
        sites = OP.find_sites(session.model)
        return lambda: placed(session.model, [Standing(OP, sites, function)], copied=copy.deepcopy)

    def no_correction(*call: Any) -> tuple[Tensor, ...]:
        return right(*call[:4], 10**9, *call[5:])

    own = walked(session, lambda: copy.deepcopy(session.model), seed=1, steps=6)  # type: ignore[arg-type]
    others = perturbed(session, seed=1, steps=6)  # type: ignore[arg-type]
    rows = [
        {row["optimizer"]: row["code"] for row in judged(own, others, walked(session, made(item), seed=1, steps=6))}  # type: ignore[arg-type]
        for item in (right, no_correction)
    ]
    assert rows == [{"sgd": None, "adamw": None}, {"sgd": None, "adamw": "loss_path_left"}]
