"""The op by itself: what is drawn, what passes, what is caught, and gradients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from e2e import registry
from e2e.binding import trainable
from e2e.errors import UsageError
from e2e.numerics.captures import Captured, save_calls
from e2e.numerics.exercise import run_calls
from e2e.numerics.op_level import OpExaminer, save_gradients, torch_problems
from e2e.protocols import Op, OpCall
from e2e.schema.answers import REACHED
from e2e.schema.evidence import CAPTURED, EXAMPLE, UNUSUAL
from e2e.schema.kernel import OF_MODELS
from e2e.schema.words import ReasonCode

torch.set_num_threads(1)

RATIO = 2.0
NAMES = [name for name in registry.names("ops") if name not in OF_MODELS]
DTYPES = ["float32", "float16", "bfloat16"]


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)


def checks(folder: Path, kernel: Callable[..., Any], *, op: str = "rms_norm", dtype: str = "float32") -> list[Any]:
    plugin: Op = registry.load_op(op)
    examiner = OpExaminer(plugin, "cpu")
    examiner.draw(dtype=dtype, seed=1, path=folder / "calls")
    run_calls(plugin, kernel, inputs=folder / "calls", outputs=folder / "outputs.st", constraints=[], device="cpu")
    return examiner.compare_ops(outputs=folder / "outputs.st", ratio=RATIO)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_plain_maths_passes_on_every_input_in_every_dtype(name: str, dtype: str, tmp_path: Path) -> None:
    op = registry.load_op(name)
    rows = checks(tmp_path, next(iter(op.alternatives.values()), op.reference), op=name, dtype=dtype)
    assert [row["label"] for row in rows if row["status"] != "passed"] == []
    assert rows[0]["label"] == EXAMPLE
    assert {row["dtype"] for row in rows} == {dtype}


def test_captured_calls_are_examined_with_edge_inputs_of_their_own(tmp_path: Path) -> None:
    op = registry.load_op("rms_norm")
    wide = torch.randn(4, 6, 10, generator=torch.Generator().manual_seed(1))
    view = OpCall((wide[:, 1:, 2:], torch.linspace(0.5, 1.5, 8)), (1e-5,))
    save_calls(tmp_path / "captured", [Captured("model.norm", CAPTURED, view)])
    examiner = OpExaminer(op, "cpu")
    examiner.take(tmp_path / "captured", seed=1, path=tmp_path / "calls")
    run_calls(op, norm, inputs=tmp_path / "calls", outputs=tmp_path / "outputs.st", constraints=[], device="cpu")
    rows = examiner.compare_ops(outputs=tmp_path / "outputs.st", ratio=RATIO)
    assert (rows[0]["site"], rows[0]["label"], rows[0]["stride"]) == ("model.norm", CAPTURED, "(60, 10, 1)")
    assert len(rows) > 3
    assert {row["status"] for row in rows} == {"passed"}
    assert all(row["caught"] for row in examiner.mutants(ratio=RATIO))


@pytest.mark.parametrize("damage", ["another op's", "cut short", "reaches beyond its storage"])
def test_a_file_that_holds_no_calls_of_the_op_is_the_callers_mistake(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "captured"
    save_calls(path, [Captured("s", CAPTURED, OpCall((torch.ones(2, 8), torch.ones(8)), (1e-5,)))])
    if damage == "cut short":
        path.write_bytes(path.read_bytes()[:-40])
    if damage == "reaches beyond its storage":
        path.write_bytes(path.read_bytes().replace(b"[2, 8]", b"[9, 8]"))
    examiner = OpExaminer(registry.load_op("rope" if damage == "another op's" else "rms_norm"), "cpu")
    with pytest.raises(UsageError, match=r"holds no calls of rope|its calls cannot be read"):
        examiner.take(path, seed=1, path=tmp_path / "calls")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_every_mutant_is_caught_without_a_model(name: str, dtype: str, tmp_path: Path) -> None:
    examiner = OpExaminer(registry.load_op(name), "cpu")
    examiner.draw(dtype=dtype, seed=1, path=tmp_path / "calls")
    found = examiner.mutants(ratio=RATIO)
    assert len(found) >= 4
    assert [row["name"] for row in found if not row["caught"]] == []


def test_a_wrong_kernel_is_wrong_on_the_example_already(tmp_path: Path) -> None:
    rows = checks(tmp_path, lambda x, weight, eps: norm(x, weight, 2 * eps) * 1.001)
    assert (rows[0]["status"], rows[0]["code"]) == ("wrong", ReasonCode.OP_ERROR_EXCEEDED)


def test_a_kernel_that_refuses_the_example_is_not_merely_declining(tmp_path: Path) -> None:
    def refuses(*call: Any) -> Any:
        raise ValueError("not this")

    with pytest.raises(ValueError, match="not this"):
        checks(tmp_path, refuses)
    assert (tmp_path / "outputs").with_suffix(REACHED).read_text() == EXAMPLE


def test_the_input_in_hand_is_named_for_whoever_finds_the_process_dead(tmp_path: Path) -> None:
    def dies(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        if len(x) == 1:
            raise KeyboardInterrupt  # as abrupt as a test can survive
        return norm(x, weight, eps)

    with pytest.raises(KeyboardInterrupt):
        checks(tmp_path, dies)
    assert (tmp_path / "outputs").with_suffix(REACHED).read_text() == "one row"


def test_an_op_whose_calls_only_a_model_has_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="check it with a workload"):
        OpExaminer(registry.load_op("module:LlamaMLP"), "cpu").draw(dtype="float32", seed=1, path=tmp_path / "calls")


# ---- Gradients


def gradient_row(folder: Path, function: Callable[..., Any], *, op: str = "rms_norm") -> dict[str, Any]:
    plugin: Op = registry.load_op(op)
    examiner = OpExaminer(plugin, "cpu")
    examiner.draw(dtype="bfloat16", seed=1, path=folder / "calls")
    save_gradients(plugin, function, inputs=folder / "calls", path=folder / "gradients", seed=1, device="cpu")
    return examiner.compare_gradients(path=folder / "gradients", seed=1, ratio=RATIO)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "adamw"])
def test_a_borrowed_backward_gives_right_gradients_of_every_tensor(name: str, tmp_path: Path) -> None:
    op = registry.load_op(name)
    kernel = next(iter(op.alternatives.values()), op.reference)
    row = gradient_row(tmp_path, trainable(op, kernel, borrowed=True), op=name)
    assert (row["status"], row["missing"]) == ("passed", [])
    assert row["with_gradient_candidate"] == row["with_gradient_baseline"] == row["parameters"] > 0


def test_a_wrong_gradient_is_named(tmp_path: Path) -> None:
    row = gradient_row(
        tmp_path, lambda x, weight, eps: norm(x, weight.detach() + 0.5 * (weight - weight.detach()), eps)
    )
    assert (row["code"], row["worst_parameter"]) == (ReasonCode.GRADIENT_ERROR_EXCEEDED, "weight")


def test_a_lost_gradient_is_named(tmp_path: Path) -> None:
    row = gradient_row(tmp_path, lambda x, weight, eps: norm(x, weight.detach(), eps))
    assert (row["code"], row["missing"]) == (ReasonCode.GRADIENTS_MISSING, ["weight"])


# ---- Torch's own check


def problems(folder: Path, kernel: Callable[..., Any], name: str) -> dict[str, str | None]:
    op: Op = registry.load_op("rms_norm")
    OpExaminer(op, "cpu").draw(dtype="float32", seed=1, path=folder / "calls")
    return torch_problems(op, kernel, inputs=folder / "calls", sha256=name.ljust(16, "0"), device="cpu")


def test_a_right_kernel_is_a_sound_op_for_torch(tmp_path: Path) -> None:
    assert problems(tmp_path, norm, "right") == {"called": None, "faked": None}


def test_an_output_unlike_what_a_compiler_is_told_is_found_by_torch(tmp_path: Path) -> None:
    found = problems(tmp_path, lambda x, weight, eps: norm(x, weight, eps).double(), "double")
    assert found["faked"] is not None


def test_a_changed_input_is_found_by_torch(tmp_path: Path) -> None:
    def writes(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        output = norm(x, weight, eps)
        x.mul_(2)
        return output

    assert problems(tmp_path, writes, "writes")["called"] is not None


# ---- What no example shows


WRONG_ELSEWHERE: dict[str, tuple[str, Callable[..., Any]]] = {
    "columns beyond the last multiple of 8 dropped": (
        "rms_norm",
        lambda x, weight, eps: norm(x, weight, eps) * (torch.arange(x.shape[-1]) < x.shape[-1] // 8 * 8),
    ),
    "always along the last dimension": ("softmax", lambda x, dim: x.softmax(-1)),
    "always the exact form": ("gelu", lambda x, approximate: torch.nn.functional.gelu(x)),
}


@pytest.mark.parametrize("mistake", WRONG_ELSEWHERE)
def test_widths_and_scalars_that_the_example_has_not_are_tried_too(mistake: str, tmp_path: Path) -> None:
    op, kernel = WRONG_ELSEWHERE[mistake]
    assert "wrong" in {row["status"] for row in checks(tmp_path, kernel, op=op)}


def test_a_weight_remembered_by_its_shape_is_found(tmp_path: Path) -> None:
    known: dict[Any, Any] = {}

    def remembers(x: Any, weight: Any, bias: Any) -> Any:
        return torch.nn.functional.linear(x, known.setdefault(weight.shape, weight.clone()), bias)

    assert "wrong" in {row["status"] for row in checks(tmp_path, remembers, op="linear")}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("adamw", "embedding")])
def test_what_is_hardly_a_number_is_passed_on_as_the_baseline_does(name: str, tmp_path: Path) -> None:
    op = registry.load_op(name)
    rows = checks(tmp_path, next(iter(op.alternatives.values()), op.reference), op=name)
    assert {row["label"] for row in rows} >= set(UNUSUAL)


def test_a_kernel_that_swallows_nan_is_wrong_and_the_place_is_named(tmp_path: Path) -> None:
    rows = checks(tmp_path, lambda x, weight, eps: norm(x, weight, eps).nan_to_num(0.0))
    (wrong,) = [row for row in rows if row["status"] == "wrong" and row["label"] == "a NaN"]
    assert wrong["code"] is ReasonCode.NONFINITE_OUTPUT
    assert "not finite as the baseline is" in wrong["position"]
    assert "of 4 rows" in wrong["position"] or "of 3 rows" in wrong["position"] or "of 2 rows" in wrong["position"]


def test_a_wrong_row_is_named_with_its_first_index(tmp_path: Path) -> None:
    def wrong(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        y = norm(x, weight, eps)
        if y.dim() == 3:
            y[-1, -1] *= 1.01
        return y

    first = checks(tmp_path, wrong)[0]
    assert first["message"].startswith("the worst row errs by") or first["error_candidate"] > first["allowed"]
    assert first["position"] == "first at [3, 63, 0], the last 1 of 256 rows"


# ---- Kernels that keep answers


def kept_by(key: Callable[..., Any]) -> Callable[..., Tensor]:
    known: dict[Any, Tensor] = {}

    def kernel(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        name = key(x, weight)
        if name not in known:
            known[name] = norm(x, weight, eps)
        return known[name].clone()

    return kernel


@pytest.mark.parametrize(
    "key",
    [
        lambda x, weight: (x.shape, x.stride()),
        lambda x, weight: (x.data_ptr(), x.shape),
        lambda x, weight: id(x),
        lambda x, weight: (x.shape, *x.reshape(-1)[::100].tolist()),
    ],
    ids=["shape", "address", "identity", "sample"],
)
def test_answers_that_are_kept_by_anything_but_the_whole_input_are_called_replays(
    key: Callable[..., Any], tmp_path: Path
) -> None:
    rows = checks(tmp_path, kept_by(key))
    wrong = [row for row in rows if row["status"] == "wrong"]
    assert ReasonCode.REPLAYED_OUTPUT in {row["code"] for row in wrong}
    assert rows[0]["status"] == "passed"


def test_a_kernel_that_always_answers_zero_is_wrong_and_replays_nothing(tmp_path: Path) -> None:
    rows = checks(tmp_path, lambda x, weight, eps: torch.zeros_like(x))
    assert ReasonCode.REPLAYED_OUTPUT not in {row["code"] for row in rows}
    assert rows[0]["code"] is ReasonCode.OP_ERROR_EXCEEDED
