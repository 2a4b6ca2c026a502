"""Kernels that prepare parameters: once per site, again when those change, never silently with old ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from e2e import registry
from e2e.arms import Arena
from e2e.binding import differentiable, trainable
from e2e.bound import Bound, Candidate, Part, bound_to
from e2e.errors import CandidateError, UsageError
from e2e.numerics.compare import exactly, judge_outputs
from e2e.numerics.exercise import run_calls
from e2e.numerics.op_level import OpExaminer
from e2e.prepared import InPrepared, Prepared
from e2e.protocols import BuildTarget, OpCall
from e2e.reading import read_kernel
from e2e.schema.words import ReasonCode
from tests.sessions import ToySession

torch.set_num_threads(1)

KERNELS = Path(__file__).parents[1] / "kernels"
LINEAR = registry.load_op("linear")


def bound(path: Path, cache: Path, op: Any = LINEAR, dtype: str = "float32") -> Bound:
    kernel = read_kernel(str(path), op=None)
    built = registry.load("builders", kernel.manifest.binding).build(kernel, BuildTarget("cpu", None, cache, 120))
    return bound_to(built, op, dtype)


class Turning:
    """A linear layer over a turned weight, counting how often it was turned; differentiable."""

    def __init__(self) -> None:
        self.turned = 0
        self.call = Prepared(InPrepared(LINEAR, ["turned"]), self._linear, self._make, shown="turning.py")

    def _make(self, x: Tensor, weight: Tensor, bias: Any) -> tuple[Any, ...]:
        self.turned += 1
        return (weight.t().contiguous(),)

    def _linear(self, x: Tensor, turned: Tensor) -> Tensor:
        return x @ turned


@pytest.mark.parametrize("file", ["prepared_linear.py", "prepared_linear.cpp"])
def test_a_kernel_that_prepares_is_right_on_its_ops_hard_inputs(file: str, e2e_cache: Path) -> None:
    call, taken = bound(KERNELS / file, e2e_cache).call, 0
    for _, item in LINEAR.edge_calls(LINEAR.example("float32", "cpu", 1), 1):
        try:
            value = call(*item.tensors)
        except ValueError:  # not dense
            continue
        taken += 1
        plain = LINEAR.reference(*item.tensors)
        assert judge_outputs(value, plain, exactly(LINEAR, item), ratio=4)[0] is None
    assert taken >= 10


@pytest.mark.parametrize("file", ["prepared_linear.py", "prepared_linear.cpp"])
def test_a_parameter_that_is_absent_is_prepared_as_such(file: str, e2e_cache: Path) -> None:
    call = bound(KERNELS / file, e2e_cache).call
    x, weight = torch.randn(3, 5), torch.randn(7, 5)
    torch.testing.assert_close(call(x, weight, None), x @ weight.t())


def test_parameters_are_prepared_once_and_again_when_they_changed() -> None:
    kernel, x = Turning(), torch.randn(3, 5)
    first, second = torch.randn(7, 5), torch.randn(7, 5)
    for weight in (first, second, first.view(7, 5), second):
        torch.testing.assert_close(kernel.call(x, weight, None), x @ weight.t())
    assert kernel.turned == 2
    first.mul_(2)
    torch.testing.assert_close(kernel.call(x, first, None), x @ first.t())
    assert kernel.turned == 3
    kernel.call.need_fresh()
    assert kernel.call.seconds > 0


def test_a_parameter_that_is_gone_lends_its_address_to_no_other() -> None:
    kernel, x = Turning(), torch.randn(3, 64)
    for _ in range(20):
        weight = torch.randn(64, 64)
        torch.testing.assert_close(kernel.call(x, weight, None), x @ weight.t())
        del weight
    assert kernel.turned == 20
    kernel.call.forget()
    kernel.call.need_fresh()


def test_a_change_that_torch_did_not_count_is_found_before_anything_is_believed() -> None:
    kernel, x, weight = Turning(), torch.randn(3, 5), torch.randn(7, 5)
    kernel.call(x, weight, None)
    weight.data.mul_(2)
    with pytest.raises(CandidateError, match=r"turning\.py: prepare: parameters of 1 of 1 sites changed") as caught:
        kernel.call.need_fresh()
    assert caught.value.code == "prepared_stale"


# ---- Training


def test_a_trained_parameter_is_prepared_in_every_step_and_gets_its_gradient() -> None:
    kernel = Turning()
    layer, twin = nn.Linear(5, 7, bias=False), nn.Linear(5, 7, bias=False)
    twin.load_state_dict(layer.state_dict())
    call = differentiable(kernel.call)
    for turn in range(3):
        x = torch.randn(4, 5)
        for module, function in ((layer, call), (twin, LINEAR.reference)):
            for _ in range(2):  # gradients accumulate: a graph through what was prepared cannot be walked twice
                function(x, module.weight, None).pow(2).sum().backward()
            with torch.no_grad():
                module.weight -= 0.01 * module.weight.grad
        torch.testing.assert_close(layer.weight, twin.weight)
        assert kernel.turned == 2 * (turn + 1)


class Saving(Turning):
    """With a backward of its own, which sees the op's tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.call = Prepared(InPrepared(LINEAR, ["turned"]), self, self._make, shown="saving.py")

    def saving(self, x: Tensor, turned: Tensor) -> tuple[Tensor, tuple[Any, ...]]:
        return x @ turned, ()

    def backward(self, gradients: Any, tensors: Any, saved: Any) -> tuple[Any, ...]:
        (gradient,), (x, weight, *_) = gradients, tensors
        return gradient @ weight, gradient.t() @ x, None

    def __call__(self, *args: Any) -> Tensor:
        return self.saving(*args)[0]


@pytest.mark.parametrize(("kernel", "borrowed"), [(Turning(), True), (Saving(), False)], ids=["borrowed", "its own"])
def test_where_the_op_is_opaque_to_autograd_an_updated_parameter_is_prepared_again(
    kernel: Turning, borrowed: bool
) -> None:
    call = trainable(LINEAR, kernel.call, borrowed=borrowed)
    weight = torch.randn(7, 5, requires_grad=True)
    for _ in range(2):
        x = torch.randn(4, 5)
        y = call(x, weight, None) if borrowed else call(x, weight, weight.new_zeros(7))
        torch.testing.assert_close(y, x @ weight.t())
        (found,) = torch.autograd.grad(y.sum(), [weight])
        torch.testing.assert_close(found, torch.ones(4, 7).t() @ x)
        with torch.no_grad():
            weight.add_(1.0)
    assert kernel.turned == 2


# ---- Arms


def arena(call: Any) -> tuple[Arena, ToySession]:
    session = ToySession()
    sites = LINEAR.find_sites(session.model)
    candidate = Candidate(Bound(call, f"{id(call):016x}"), frozenset(site.fqn for site in sites))
    return Arena(session, [Part(LINEAR, sites, candidate)]), session


class WithBias(Turning):
    """As the toy model has it."""

    def _make(self, x: Tensor, weight: Tensor, bias: Any) -> tuple[Any, ...]:
        self.turned += 1
        return (torch.cat([weight.t(), bias[None]]).contiguous(),)

    def _linear(self, x: Tensor, turned: Tensor) -> Tensor:
        return x @ turned[:-1] + turned[-1]


def test_every_mode_shares_what_is_prepared_before_its_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    # the graph is run as it is: compiling would take seconds
    monkeypatch.setattr(torch, "_TorchCompileInductorWrapper", lambda *_: lambda graph, inputs: graph.forward)
    kernel = WithBias()
    place, _ = arena(kernel.call)
    facts = {name: place.prepare(name, seed=1) for name in ("candidate:eager", "candidate:compile", "baseline:eager")}
    assert kernel.turned == 2
    assert facts["candidate:eager"]["prepare_s"] == facts["candidate:compile"]["prepare_s"] == kernel.call.seconds
    assert facts["baseline:eager"]["prepare_s"] is None
    (wanted,) = place.outputs("baseline:eager", 7)
    for name in ("candidate:eager", "candidate:compile"):
        torch.testing.assert_close(place.outputs(name, 7)[0], wanted)
    assert kernel.turned == 2


def timed(place: Arena, arm: str) -> dict[str, Any]:
    return place.timed(arm, batches=place.batches(arm, [1, 2, 3]), settle=1, mark=lambda: None)


@pytest.mark.parametrize("arm", ["candidate:eager", "baseline:eager"])
def test_a_segment_after_an_uncounted_change_of_a_parameter_is_refused(arm: str) -> None:
    place, session = arena(WithBias().call)
    for name in ("candidate:eager", "baseline:eager"):
        place.prepare(name, seed=1)
    timed(place, arm)
    session.model[0].weight.data.mul_(2)
    with pytest.raises(CandidateError, match="changed after they were prepared"):
        timed(place, arm)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, when the compiler is imported
def test_a_captured_graph_replays_what_was_prepared_before_it() -> None:
    kernel = WithBias()
    place, session = arena(kernel.call)
    session.model.cuda()
    session.device = "cuda"  # type: ignore[misc]
    original = session.batch
    session.batch = lambda seed: tuple(item.cuda() for item in original(seed))  # type: ignore[method-assign]
    place = Arena(session, place._trees.parts)
    for name in ("baseline:eager", "candidate:cuda-graph", "candidate:reduce-overhead"):
        place.prepare(name, seed=1)
    assert kernel.turned == 2
    (wanted,) = place.outputs("baseline:eager", 7)
    for name in ("candidate:cuda-graph", "candidate:reduce-overhead"):
        torch.testing.assert_close(place.outputs(name, 7)[0], wanted)
    timed(place, "candidate:cuda-graph")
    with torch.no_grad():
        session.model[0].weight.mul_(2)
    with pytest.raises(CandidateError, match="changed after they were prepared"):
        timed(place, "candidate:cuda-graph")


# ---- Cheats, and mistakes in the block


@pytest.mark.parametrize(("file", "op"), [("prepared_output.py", "linear"), ("prepared_once.py", "rms_norm")])
def test_what_a_cheat_prepares_is_wrong_on_other_inputs(file: str, op: str, tmp_path: Path) -> None:
    plugin = registry.load_op(op)
    examiner, kernel = OpExaminer(plugin, "cpu"), bound(KERNELS / "bad" / file, tmp_path, plugin)
    examiner.draw(dtype="float32", seed=1, path=tmp_path / "calls")
    run_calls(plugin, kernel.call, inputs=tmp_path / "calls", outputs=tmp_path / "out", constraints=[], device="cpu")
    rows = examiner.compare_ops(outputs=tmp_path / "out", ratio=2.0)
    assert ReasonCode.OP_ERROR_EXCEEDED in {row.get("code") for row in rows}


def changed(tmp_path: Path, file: str, old: str, new: str) -> Path:
    path = tmp_path / file
    text = (KERNELS / file).read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return path


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        (
            "prepared_linear.cpp",
            "prepare: turn",
            "prepare: spin",
            "prepare: no function 'spin' in this file; known: turn, linear",
        ),
        (
            "prepared_linear.py",
            "prepare: widen",
            "prepare: spin",
            "no function 'spin' in this file; known: widen, linear",
        ),
        (
            "prepared_linear.py",
            "def widen(",
            "globals()\n\n\ndef wide_as(",
            "'widen' is not in it; it has: wide_as, linear",
        ),
        ("prepared_linear.py", ', {start: "outputs, float64"}', "", "linear takes 3 arguments"),
        ("prepared_linear.py", ", start.double()", "", "prepare: gave 1 tensors, where 2 are expected"),
        (
            "prepared_linear.cpp",
            '"inputs, outputs, float32"',
            '"columns, float32"',
            "linear has no dimension 'columns'",
        ),
        (
            "prepared_linear.cpp",
            "// prepared: [{turned",
            "// claim: {speedup: 2} #",
            "prepared: missing: what `prepare`",
        ),
        ("prepared_linear.py", "# prepare: widen\n", "", "prepared: only beside `prepare`"),
        ("two_pass_norm.cu", "raw\n", "raw\n// prepare: scales\n", "prepare: not for `binding: raw`"),
    ],
)
def test_mistakes_are_named(file: str, old: str, new: str, said: str, tmp_path: Path, e2e_cache: Path) -> None:
    with pytest.raises((CandidateError, UsageError), match=said):
        bound(changed(tmp_path, file, old, new), e2e_cache).call(torch.randn(3, 5), torch.randn(7, 5), None)


def test_an_op_whose_sites_have_no_parameters_prepares_nothing(tmp_path: Path) -> None:
    path = tmp_path / "silu.py"
    path.write_text("# /// e2e\n# op: silu\n# entry: f\n# prepare: g\n# ///\ndef f(x): ...\ndef g(): ...\n")
    with pytest.raises(UsageError, match="prepare: a site of silu has no parameters"):
        bound(path, tmp_path, registry.load_op("silu"))


def test_dimensions_are_those_of_the_ops_own_call() -> None:
    view = InPrepared(LINEAR, ["turned"])
    x, weight = torch.randn(3, 5), torch.randn(7, 5)
    made = weight.t().contiguous()
    view.sources[id(made)] = (weight, None)
    assert view.tensor_names == ("x", "turned")
    assert view.dims(OpCall((x, made), ())) == LINEAR.dims(OpCall((x, weight, None), ()))
    assert view.allocate(x, made).shape == (3, 7)


@pytest.mark.parametrize(
    "name", ["linear", "rms_norm", "layer_norm", "embedding", "moe_experts", "linear_cross_entropy"]
)
def test_parameters_of_a_site_are_tensors_of_the_op(name: str) -> None:
    op = registry.load_op(name)
    assert op.parameter_names
    assert set(op.parameter_names) < set(op.tensor_names)
