"""What the candidate's side remarks about a kernel's calls: nothing it did to memory stays unseen."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from e2e import registry
from e2e.binding import in_training, sparing
from e2e.errors import CandidateError
from e2e.numerics import exercise
from e2e.numerics.captures import Captured, save_calls
from e2e.numerics.exercise import engage, gradients, isolated, model_logits, plumbing, run_calls
from e2e.numerics.training import compare
from e2e.ops.rms_norm import RmsNorm
from e2e.patch import Standing
from e2e.protocols import OpCall
from e2e.schema.words import ReasonCode
from tests import tiny
from tests.sessions import LlamaSession

torch.set_num_threads(1)

OP: RmsNorm = registry.load("ops", "rms_norm")
Norm = Callable[[Tensor, Tensor, float], Any]


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """A captured call, then an edge."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.rand(16, generator=generator) + 0.5
    calls = [
        Captured("norm", label, OpCall((torch.randn(rows, 16, generator=generator), weight), (1e-6,)))
        for label, rows in (("captured", 5), ("one row", 1))
    ]
    save_calls(tmp_path / "calls", calls)
    return tmp_path / "calls"


def run(inputs: Path, kernel: Norm, *constraints: str) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    outputs = inputs.with_name("outputs")
    remarks = run_calls(OP, kernel, inputs=inputs, outputs=outputs, constraints=list(constraints), device="cpu")
    return remarks, load_file(outputs)


# ---- One op call after another


def test_an_honest_kernel_leaves_no_remark_but_that_it_repeats(inputs: Path) -> None:
    remarks, outputs = run(inputs, OP.reference)
    assert remarks == 2 * [{"inputs_changed": False, "repeats": True, "spread": None, "aliased": False, "layout": None}]
    assert {name: tuple(value.shape) for name, value in outputs.items()} == {"o0.0": (5, 16), "o1.0": (1, 16)}


def test_how_far_two_calls_on_one_input_are_apart_is_said(inputs: Path) -> None:
    calls = iter(range(100))

    def swaying(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return OP.reference(x, weight, eps) * (1 + 0.01 * next(calls))

    remark = run(inputs, swaying)[0][0]
    assert remark["repeats"] is False
    assert remark["spread"] == pytest.approx(0.01, rel=0.01)


def test_a_kernel_that_writes_into_its_input_is_seen(inputs: Path) -> None:
    def in_place(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        y = OP.reference(x, weight, eps)
        x.zero_()
        return y

    remarks, _ = run(inputs, in_place)
    assert [remark["inputs_changed"] for remark in remarks] == [True, True]


def test_a_kernel_that_writes_into_its_weight_is_seen(inputs: Path) -> None:
    def in_place(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        y = OP.reference(x, weight, eps)
        weight.mul_(1.01)
        return y

    assert run(inputs, in_place)[0][0]["inputs_changed"]


def test_a_kernel_that_hands_its_input_back_is_seen(inputs: Path) -> None:
    assert run(inputs, lambda x, weight, eps: x.view(x.shape))[0][0]["aliased"]


def test_one_buffer_for_every_call_is_seen(inputs: Path) -> None:
    """The next call would overwrite an output that the model still holds."""
    buffers: dict[Any, Tensor] = {}

    def static(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return buffers.setdefault(x.shape, torch.empty_like(x)).copy_(OP.reference(x, weight, eps))

    assert [remark["aliased"] for remark in run(inputs, static)[0]] == [True, True]


def test_the_output_that_counts_is_that_of_the_call_that_runs_as_a_timed_step_does(inputs: Path) -> None:
    """Not the one in poisoned memory, which a kernel could tell by torch's flag."""
    calls = iter(range(100))
    buffer = torch.empty(5, 16)

    def drifting(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return buffer[: len(x)].fill_(float(next(calls)))

    assert run(inputs, drifting)[1]["o0.0"].unique().tolist() == [1.0]


def test_other_strides_are_seen(inputs: Path) -> None:
    def transposed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return OP.reference(x, weight, eps).t().contiguous().t()

    remarks, outputs = run(inputs, transposed)
    assert remarks[0]["layout"] == "(1, 5)"
    assert remarks[1]["layout"] is None, "one row has the same memory either way"
    assert outputs["o0.0"].is_contiguous()


def test_what_is_no_tensor_is_seen(inputs: Path) -> None:
    remarks, outputs = run(inputs, lambda x, weight, eps: [x])
    assert remarks[0] == {"problem": "it returned list, not a tensor"}
    assert not outputs


def test_a_lazy_tensor_of_a_class_of_its_own_is_no_tensor(inputs: Path) -> None:
    class Lazy(Tensor):
        pass

    remarks, _ = run(inputs, lambda x, weight, eps: OP.reference(x, weight, eps).as_subclass(Lazy))
    assert remarks[0] == {"problem": "it returned Lazy, not a tensor"}


def test_memory_left_unwritten_shows_as_nan(inputs: Path) -> None:
    """Fresh memory often still holds the right answer of the call before."""

    def lazy(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        y = torch.empty_like(x)
        y[:-1] = OP.reference(x, weight, eps)[:-1]
        return y

    _, outputs = run(inputs, lazy)
    assert outputs["o0.0"][-1].isnan().all()
    assert outputs["o0.0"][:-1].isfinite().all()


def test_poisoning_ends_with_the_check_even_after_an_error(inputs: Path) -> None:
    def failing(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        raise RuntimeError("no")

    before = torch.utils.deterministic.fill_uninitialized_memory
    with pytest.raises(RuntimeError, match="no"):
        run(inputs, failing)
    assert torch.utils.deterministic.fill_uninitialized_memory == before
    assert not torch.are_deterministic_algorithms_enabled()


def test_raising_on_a_captured_input_is_a_failure(inputs: Path) -> None:
    def refuses_five(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        if len(x) == 5:
            raise ValueError("five rows")
        return OP.reference(x, weight, eps)

    with pytest.raises(ValueError, match="five rows"):
        run(inputs, refuses_five)


def test_raising_on_an_input_that_this_workload_does_not_have_is_a_refusal(inputs: Path) -> None:
    def refuses_one(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        if len(x) == 1:
            raise ValueError("one row")
        return OP.reference(x, weight, eps)

    remarks, outputs = run(inputs, refuses_one)
    assert remarks[1] == {"declined": "it raised ValueError: one row"}
    assert list(outputs) == ["o0.0"]


def test_an_input_that_the_constraints_exclude_is_never_tried(inputs: Path) -> None:
    tried: list[int] = []

    def spy(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        tried.append(len(x))
        return OP.reference(x, weight, eps)

    remarks, _ = run(inputs, spy, "rows > 1")
    assert remarks[1] == {"declined": "rows > 1"}
    assert set(tried) == {5}


# ---- In the model


@pytest.fixture(scope="module")
def session() -> LlamaSession:
    return LlamaSession(step="train")


def test_every_site_is_seen_to_call_the_kernel(session: LlamaSession) -> None:
    sites = OP.find_sites(session.model)
    found = engage(session, [Standing(OP, sites, OP.reference)], seed=1)
    assert found == {"calls": {site.fqn: 1 for site in sites}, "watermark_moved": [True]}


def test_a_site_off_the_path_does_not_move_the_outputs(session: LlamaSession) -> None:
    class Detour(LlamaSession):
        """Its outputs come from a module that no norm is in."""

        def program(self, model: nn.Module) -> Any:
            def run(ids: Tensor) -> tuple[Tensor, ...]:
                model(input_ids=ids, use_cache=False)
                return (model.get_submodule("model.embed_tokens")(ids),)

            return run

    kernel = Standing(OP, OP.find_sites(session.model), OP.reference)
    assert engage(Detour(), [kernel], seed=1)["watermark_moved"] == [False]


def logits_with(session: LlamaSession, kernel: Norm, path: Path, *constraints: str) -> Tensor:
    (ids,) = session.batch(1)
    standing = Standing(OP, OP.find_sites(session.model), kernel, constraints)
    model_logits(session, [standing], calls=[(ids,)], path=path)
    return load_file(path)["logits"]


def test_the_models_logits_are_the_kernels(session: LlamaSession, tmp_path: Path) -> None:
    own = session.answers(session.model, *session.batch(1)).reshape(-1, tiny.VOCABULARY)
    torch.testing.assert_close(logits_with(session, OP.reference, tmp_path / "right"), own)
    wrong = logits_with(session, lambda x, w, eps: 2 * OP.reference(x, w, eps), tmp_path / "wrong")
    assert not torch.allclose(wrong, own)


def test_calls_that_the_constraints_exclude_run_the_models_own_module(session: LlamaSession, tmp_path: Path) -> None:
    """The comparison's rows are not the cell's: the guarded kernel is what is judged."""

    def never(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        raise AssertionError("it was called")

    own = session.answers(session.model, *session.batch(1)).reshape(-1, tiny.VOCABULARY)
    assert torch.equal(logits_with(session, never, tmp_path / "guarded", "rows == 1"), own)
    with pytest.raises(AssertionError, match="it was called"):
        logits_with(session, never, tmp_path / "unguarded", "rows == 24")


def test_isolated_times_are_per_call_and_positive(inputs: Path) -> None:
    slow = torch.randn(128, 128)

    def slower(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        for _ in range(10):
            slow @ slow
        return OP.reference(x, weight, eps)

    found = isolated(OP, {"candidate": OP.reference, "eager": slower}, inputs=inputs, device="cpu", seconds=0.1)
    assert 0 < found["candidate"] < found["eager"] < 0.1


def test_a_cold_call_is_timed_by_itself_after_the_caches_were_filled(
    inputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exercise, "COLD_BYTES", {"cpu": 2**16})
    calls: list[str] = []

    def slower(*args: Any) -> Any:
        calls.append("eager")
        time.sleep(0.002)
        return OP.reference(*args)

    found = exercise.isolated_cold({"candidate": OP.reference, "eager": slower}, inputs=inputs, device="cpu")
    assert exercise.COLD_TURNS == len(calls)
    assert 0 < found["candidate"] < found["eager"]
    assert found["eager"] >= 0.002


def test_plumbing_is_measured_on_one_row_or_not_at_all(session: LlamaSession, inputs: Path) -> None:
    site = OP.find_sites(session.model)[0]

    def refuses_one_row(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        raise ValueError(f"not {tuple(x.shape)}")

    rows = []

    def kernel(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        rows.append(x.numel() // x.shape[-1])
        return x

    cost = plumbing(OP, site, kernel, inputs=inputs, device="cpu")
    assert cost is not None and set(rows) == {1}
    assert "forward" not in vars(site.module)
    assert plumbing(OP, site, refuses_one_row, inputs=inputs, device="cpu") is None


# ---- Training


def gradient_file(session: LlamaSession, path: Path, kernel: Norm | None, *, borrowed: bool = False) -> Any:
    kernels = []
    if kernel is not None:
        function = in_training(OP, kernel, is_python=True, borrowed=borrowed)
        kernels = [Standing(OP, OP.find_sites(session.model), function)]
    return gradients(session, kernels, seed=1, path=path)


def judged(session: LlamaSession, folder: Path, kernel: Norm, *, borrowed: bool = False) -> dict[str, Any]:
    gradient_file(session, folder / "baseline", None)
    gradient_file(session, folder / "candidate", kernel, borrowed=borrowed)
    sites = OP.find_sites(session.model)
    return compare(session, [(OP, sites)], folder / "baseline", folder / "candidate", ratio=2.0, seed=1)


def test_right_gradients_pass(session: LlamaSession, tmp_path: Path) -> None:
    assert judged(session, tmp_path, OP.reference, borrowed=True)["status"] == "passed"
    assert judged(session, tmp_path, OP.reference)["status"] == "passed"


def test_a_forward_only_kernel_is_refused_by_name(session: LlamaSession, tmp_path: Path) -> None:
    function = in_training(OP, OP.reference, is_python=False, borrowed=False)
    kernel = Standing(OP, OP.find_sites(session.model), function)
    with pytest.raises(CandidateError) as caught:
        gradients(session, [kernel], seed=1, path=tmp_path / "g")
    assert caught.value.code == ReasonCode.NO_BACKWARD


def test_a_kernel_that_cuts_the_graph_loses_gradients_by_name(session: LlamaSession, tmp_path: Path) -> None:
    row = judged(session, tmp_path, lambda x, w, eps: OP.reference(x.detach(), w, eps))
    assert row["code"] is ReasonCode.GRADIENTS_MISSING
    assert "model.embed_tokens.weight" in row["missing"]
    assert "model.norm.weight" not in row["missing"]


class _Scaled(torch.autograd.Function):
    """A right forward whose backward is off by a factor."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return y.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return gradient * ctx.factor, None


@pytest.mark.parametrize("factor", [1.001, 0.5, -1.0])
def test_a_wrong_gradient_is_caught(session: LlamaSession, tmp_path: Path, factor: float) -> None:
    row = judged(session, tmp_path, lambda x, w, eps: _Scaled.apply(OP.reference(x, w, eps), factor))
    assert row["code"] is ReasonCode.GRADIENT_ERROR_EXCEEDED
    assert row["worst_error_candidate"] > 100 * row["worst_error_baseline"]


@pytest.mark.parametrize("factor", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_is_caught_and_can_be_stored(
    session: LlamaSession, tmp_path: Path, factor: float
) -> None:
    """NaN is greater than nothing, and JSON has no word for it."""
    row = judged(session, tmp_path, lambda x, w, eps: _Scaled.apply(OP.reference(x, w, eps), factor))
    assert (row["status"], row["code"]) == ("wrong", ReasonCode.NONFINITE_OUTPUT)
    assert row["worst_parameter"] is not None
    assert row["worst_error_candidate"] is None


# ---- Declared writes


def in_place(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x.copy_(OP.reference(x, weight, eps))


def test_what_a_kernel_declares_to_write_to_may_change_and_be_its_output(inputs: Path, tmp_path: Path) -> None:
    remarks, silent, outputs = [], [], tmp_path / "outputs"
    for writes, found in (((0,), remarks), ((), silent)):
        found += run_calls(OP, in_place, inputs=inputs, outputs=outputs, constraints=[], device="cpu", writes=writes)
    assert all(
        (remark["inputs_changed"], remark["aliased"], remark["repeats"]) == (False, False, True) for remark in remarks
    )
    assert all(remark["inputs_changed"] and remark["aliased"] for remark in silent)


def test_a_compiler_never_sees_a_declared_write() -> None:
    x, weight = torch.randn(2, 8), torch.ones(8)
    before = x.clone()
    assert not torch.equal(sparing(in_place, {0})(x, weight, 1e-6), before)
    assert torch.equal(x, before)


# ---- Twins, guards, random numbers


def several(tmp_path: Path, *, rows: int = 5) -> Path:
    """Three calls of one form."""
    generator = torch.Generator().manual_seed(1)
    weight = torch.rand(16, generator=generator) + 0.5
    calls = [
        Captured("norm", label, OpCall((torch.randn(rows, 16, generator=generator), weight), (1e-6,)))
        for label in ("captured", "captured", "captured")
    ]
    save_calls(tmp_path / "calls", calls)
    return tmp_path / "calls"


def test_calls_of_one_form_find_the_objects_and_addresses_of_the_first(tmp_path: Path) -> None:
    seen: list[tuple[int, int, float]] = []

    def looking(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        seen.append((id(x), x.data_ptr(), float(x[0, 0])))
        return OP.reference(x, weight, eps)

    run(several(tmp_path), looking)
    assert len({(name, address) for name, address, _ in seen}) == 1
    assert len({value for _, _, value in seen}) == 3


def test_calls_of_other_forms_have_memory_of_their_own(inputs: Path) -> None:
    addresses = set()

    def looking(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        addresses.add(x.data_ptr())
        return OP.reference(x, weight, eps)

    run(inputs, looking)
    assert len(addresses) == 2


def test_a_tensor_in_one_place_many_times_is_cloned_and_not_written(tmp_path: Path) -> None:
    weight = torch.ones(1).expand(16)
    calls = [
        Captured("norm", "captured", OpCall((torch.full((2, 16), value), weight), (1e-6,))) for value in (1.0, 2.0)
    ]
    save_calls(tmp_path / "calls", calls)
    remarks, _ = run(tmp_path / "calls", OP.reference)
    assert [remark["inputs_changed"] for remark in remarks] == [False, False]


def by_hand(function: Callable[..., None]) -> Norm:
    """As a kernel that is handed its output."""

    def call(*args: Any) -> Tensor:
        out = OP.allocate(*args)
        function(*args, out)
        return out

    call.by_hand = (OP.allocate, function)  # type: ignore[attr-defined]
    return call


def fill(x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    out.copy_(OP.reference(x, weight, eps))


@pytest.mark.parametrize("place", [-1, 1])
def test_a_kernel_that_writes_beside_its_output_is_seen(tmp_path: Path, place: int) -> None:
    def careless(x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        fill(x, weight, eps, out)
        offset = out.storage_offset() + (out.numel() if place > 0 else -1)
        if 0 <= offset < out.untyped_storage().nbytes() // out.element_size():
            out.as_strided((1,), (1,), offset).fill_(0)

    remarks, outputs = run(several(tmp_path), by_hand(careless))
    assert {remark["problem"] for remark in remarks} == {"it wrote beyond its output"}
    assert outputs == {}


def test_a_kernel_that_keeps_to_its_output_is_not_held_up(tmp_path: Path) -> None:
    remarks, outputs = run(several(tmp_path), by_hand(fill))
    assert all("problem" not in remark for remark in remarks)
    assert len(outputs) == 3


def test_a_kernel_that_draws_random_numbers_in_every_call_is_seen(tmp_path: Path) -> None:
    def drawing(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        torch.rand(1)
        return OP.reference(x, weight, eps)

    with pytest.raises(CandidateError, match="random numbers") as caught:
        run(several(tmp_path), drawing)
    assert caught.value.code == "settings_changed"


def test_one_that_draws_them_to_tune_itself_at_first_is_not(tmp_path: Path) -> None:
    tuned: set[Any] = set()

    def tuning(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        if x.shape not in tuned:
            tuned.add(x.shape)
            torch.rand(1)
        return OP.reference(x, weight, eps)

    assert len(run(several(tmp_path), tuning)[0]) == 3


def test_outputs_with_holes_in_poisoned_memory_are_the_ones_that_count(tmp_path: Path) -> None:
    def sloppy(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        y = torch.empty_like(x)
        y[:-1] = OP.reference(x, weight, eps)[:-1]
        return y

    _, outputs = run(several(tmp_path), sloppy)
    assert all(bool(value[-1].isnan().all()) for value in outputs.values())


class _PastAutograd(torch.autograd.Function):
    """The identity, whose backward writes the weight's gradient itself, over what other batches left there."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, weight: Tensor) -> Tensor:
        ctx.weight = weight
        return y.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        ctx.weight.grad = gradient.sum((0, 1))
        return gradient, None


def test_a_gradient_that_was_written_past_autograd_is_none(session: LlamaSession, tmp_path: Path) -> None:
    def kernel(x: Tensor, w: Tensor, eps: float) -> Any:
        return _PastAutograd.apply(OP.reference(x, w.detach(), eps), w)

    assert "model.norm.weight" in judged(session, tmp_path, kernel)["missing"]
