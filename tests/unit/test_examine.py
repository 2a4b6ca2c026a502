"""The clean side: which sites mean the op, what is captured, and what every comparison says of right and wrong."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from e2e import registry
from e2e.capture_files import find_captures
from e2e.errors import UsageError
from e2e.numerics.captures import load_calls
from e2e.numerics.examine import Examiner
from e2e.numerics.exercise import run_calls
from e2e.numerics.kept import Kept
from e2e.ops._sites import standing_in
from e2e.ops.rms_norm import RmsNorm
from e2e.protocols import Site
from e2e.schema.words import ReasonCode
from tests import tiny
from tests.sessions import LlamaSession, ToyRMSNorm, ToySession

torch.set_num_threads(1)

OP: RmsNorm = registry.load("ops", "rms_norm")
RATIO = 2.0
NOTHING = Kept(None, [])
BUDGET = 2**24


@pytest.fixture(scope="module")
def session() -> LlamaSession:
    return LlamaSession()


@pytest.fixture
def examiner(session: LlamaSession) -> Examiner:
    return Examiner(session, OP, OP.find_sites(session.model))


def survey(examiner: Examiner, folder: Path, *, budget_bytes: int = BUDGET) -> dict[str, Any]:
    return examiner.survey(seed=1, path=folder / "calls", budget_bytes=budget_bytes)


def op_checks(examiner: Examiner, folder: Path, kernel: Any) -> list[dict[str, Any]]:
    survey(examiner, folder)
    run_calls(OP, kernel, inputs=folder / "calls", outputs=folder / "outputs", constraints=[], device="cpu")
    return examiner.compare_ops(outputs=folder / "outputs", ratio=RATIO)


# ---- Survey


def test_every_norm_of_the_model_is_a_site_that_means_the_op(examiner: Examiner, tmp_path: Path) -> None:
    found = survey(examiner, tmp_path)
    assert [row["incompatible"] for row in found["sites"]] == [None] * tiny.SITES
    assert {row["owner"] for row in found["sites"]} == {"LlamaRMSNorm"}
    assert found["sites"][0]["dims"] == {"rows": 24, "hidden": tiny.HIDDEN, "dtype": "float32"}
    assert found["captured"] == tiny.SITES


def test_captured_inputs_are_the_ones_the_model_had(session: LlamaSession, tmp_path: Path) -> None:
    examiner = Examiner(session, OP, OP.find_sites(session.model))
    survey(examiner, tmp_path)
    first = load_calls(tmp_path / "calls", "cpu")[0]
    (ids,) = session.batch(1)
    embedded = session.model.get_submodule("model.embed_tokens")(ids)
    assert first.site == "model.layers.0.input_layernorm"
    assert torch.equal(first.call.tensors[0], embedded)


def test_calls_are_counted_by_form_the_most_frequent_first(session: LlamaSession, tmp_path: Path) -> None:
    op = registry.load("ops", "linear")
    examiner = Examiner(session, op, op.find_sites(session.model))
    survey(examiner, tmp_path)
    found = examiner.forms(most=2)
    assert (found["calls"], found["sites"], len(found["forms"])) == (7 * tiny.LAYERS + 1, 7 * tiny.LAYERS + 1, 2)
    (first, second) = found["forms"]
    assert first["calls"] >= second["calls"]
    assert first["tensors"][0] == {"shape": [2, 12, tiny.HIDDEN], "stride": [768, 64, 1], "dtype": "float32"}
    assert first["tensors"][2] is None, "these layers have no bias"


def test_only_the_models_own_inputs_are_kept_for_later_and_only_if_they_fit(examiner: Examiner, tmp_path: Path) -> None:
    survey(examiner, tmp_path)
    path = tmp_path / "kept.safetensors"
    assert examiner.save_captured(path=path, op="rms_norm", budget_bytes=1)["calls"] == 0
    assert not path.exists()
    said = examiner.save_captured(path=path, op="rms_norm", budget_bytes=BUDGET)
    kept = load_calls(path, "cpu")
    assert (said["calls"], said["bytes"]) == (len(kept), path.stat().st_size)
    assert {item.label for item in kept} == {"captured"}
    assert len(kept) == tiny.SITES


def test_inputs_on_which_a_kernel_fails_are_kept_behind_one_that_it_must_take(
    examiner: Examiner, tmp_path: Path
) -> None:
    survey(examiner, tmp_path)
    calls = load_calls(tmp_path / "calls", "cpu")
    (place,) = [place for place, item in enumerate(calls) if item.label == "one row"]
    path = tmp_path / "failing.safetensors"

    def kept(budget_bytes: int, *places: int, label: str | None = None) -> list[str]:
        examiner.save_failing(places=places, label=label, path=path, op="rms_norm", budget_bytes=budget_bytes)
        return [item.label for item in load_calls(path, "cpu")]

    assert kept(BUDGET, place) == ["captured", "one row"]
    assert kept(BUDGET, label="zeros") == ["captured", "zeros"]
    assert len(kept(BUDGET, *range(len(calls)))) == 8
    assert find_captures(str(path), op="rms_norm").dtype == "float32"
    path.unlink()
    assert examiner.save_failing(places=[1], label=None, path=path, op="rms_norm", budget_bytes=1)["calls"] == 0
    assert not path.exists()


def test_a_module_that_only_sounds_like_the_op_is_not_a_site(tmp_path: Path) -> None:
    """Gemma's norm multiplies by one plus the weight, under a name that says RMSNorm."""
    session = ToySession()
    session.model[1] = ToyRMSNorm(factor=1.001)
    found = survey(Examiner(session, OP, OP.find_sites(session.model)), tmp_path)
    assert "its own forward is not rms_norm" in found["sites"][0]["incompatible"]
    assert found["captured"] == 0
    assert not (tmp_path / "calls").exists()


class MeansRMSNorm(ToyRMSNorm):
    """Gives its rows' means beside its output."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x), x.mean(-1)


class First(nn.Module):
    """The first of several."""

    def forward(self, several: Any) -> Tensor:
        found: Tensor = several[0]
        return found


class OutputOnly(RmsNorm):
    """The op at owners that give means as well, which a kernel does not make; `factor` changes what it gives."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self._factor = factor

    def own(self, site: Site) -> Any:
        return lambda x, weight, eps: ToyRMSNorm.forward(standing_in(site.module, {"weight": weight}), x)

    def forward_with(self, site: Site, function: Any) -> Any:
        return lambda module, x: (function(x, module.weight, module.eps) * self._factor, None)


@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_an_owner_may_leave_out_what_nobody_asks_for_but_not_change_what_it_gives(
    factor: float, tmp_path: Path
) -> None:
    session, op = ToySession(), OutputOnly(factor)
    session.model = nn.Sequential(MeansRMSNorm(), First())
    (row,) = survey(Examiner(session, op, op.find_sites(session.model)), tmp_path)["sites"]
    assert (row["incompatible"] is None) == (factor == 1.0)


@pytest.mark.parametrize("name", ["module:Embedding", "module:Linear"])
def test_a_module_whose_output_is_not_like_its_input_is_not_a_site(tmp_path: Path, name: str) -> None:
    """A preallocated output would have the wrong size: the model's projections, all but the square ones."""
    session, op = LlamaSession(), registry.load_op(name)
    rows = survey(Examiner(session, op, op.find_sites(session.model)), tmp_path)["sites"]
    shapes = {row["fqn"]: row["incompatible"] for row in rows}
    refused = [fqn for fqn, reason in shapes.items() if reason is not None]
    assert all("returns" in str(shapes[fqn]) for fqn in refused)
    assert {fqn.rpartition(".")[2] for fqn in set(shapes) - set(refused)} <= {"q_proj", "o_proj"}


@pytest.mark.parametrize("name", ["module:LlamaAttention", "module:LlamaDecoderLayer", "module:LlamaRotaryEmbedding"])
def test_a_module_of_several_arguments_is_no_site_and_the_reason_says_so(tmp_path: Path, name: str) -> None:
    session, op = LlamaSession(), registry.load_op(name)
    rows = survey(Examiner(session, op, op.find_sites(session.model)), tmp_path)["sites"]
    assert rows
    assert all(re.search("of one tensor|does not run", row["incompatible"]) for row in rows)


def test_a_site_that_the_step_never_calls_is_said_to_be_so(tmp_path: Path) -> None:
    session = ToySession()
    session.model[0].spare = ToyRMSNorm()
    rows = survey(Examiner(session, OP, OP.find_sites(session.model)), tmp_path)["sites"]
    assert {row["fqn"]: row["incompatible"] for row in rows} == {
        "0.spare": "it is not called in this step",
        "1": None,
    }


def test_a_model_without_the_op_has_no_sites(tmp_path: Path) -> None:
    session = ToySession()
    session.model[1] = nn.Identity()
    assert survey(Examiner(session, OP, OP.find_sites(session.model)), tmp_path)["sites"] == []


def test_a_small_budget_still_keeps_one_captured_call(examiner: Examiner, tmp_path: Path) -> None:
    assert survey(examiner, tmp_path, budget_bytes=1)["captured"] == 1


# ---- The op


def test_a_right_kernel_passes_on_every_input(examiner: Examiner, tmp_path: Path) -> None:
    rows = op_checks(examiner, tmp_path, OP.reference)
    assert {row["status"] for row in rows} == {"passed"}
    assert [row["label"] for row in rows].count("captured") == tiny.SITES


@pytest.mark.parametrize(
    ("kernel", "code"),
    [
        (lambda x, w, eps: torch.zeros_like(x), ReasonCode.OP_ERROR_EXCEEDED),
        (lambda x, w, eps: OP.reference(x, w, 10 * eps), ReasonCode.OP_ERROR_EXCEEDED),
        (lambda x, w, eps: OP.reference(x, w, eps) / 0, ReasonCode.NONFINITE_OUTPUT),
        (lambda x, w, eps: OP.reference(x, w, eps).double(), ReasonCode.WRONG_OUTPUT_LAYOUT),
        (lambda x, w, eps: OP.reference(x, w, eps)[..., :-1].contiguous(), ReasonCode.WRONG_OUTPUT_LAYOUT),
    ],
    ids=["zeros", "ten times epsilon", "infinity", "float64", "a column less"],
)
def test_a_wrong_kernel_is_caught_with_its_reason(
    examiner: Examiner, tmp_path: Path, kernel: Any, code: ReasonCode
) -> None:
    codes = [row["code"] for row in op_checks(examiner, tmp_path, kernel) if row["status"] == "wrong"]
    assert code in codes


def test_every_mutant_is_caught_by_the_same_comparison(examiner: Examiner, tmp_path: Path) -> None:
    survey(examiner, tmp_path)
    assert {row["caught"] for row in examiner.mutants(ratio=RATIO)} == {True}


def test_an_output_that_is_missing_from_the_file_is_no_pass(examiner: Examiner, tmp_path: Path) -> None:
    op_checks(examiner, tmp_path, OP.reference)
    kept = load_file(tmp_path / "outputs")
    del kept["o0.0"]
    save_file(kept, tmp_path / "fewer")
    assert "status" not in examiner.compare_ops(outputs=tmp_path / "fewer", ratio=RATIO)[0]


# ---- The model


def logits_of(session: LlamaSession, examiner: Examiner, change: Any, folder: Path) -> dict[str, Any]:
    examiner.reference_logits(tokens=24, seed=1, kept=NOTHING)
    own = torch.cat([session.answers(session.model, *inputs) for inputs in session.exam(24, 1)])
    value: Tensor = change(own.reshape(-1, tiny.VOCABULARY))
    save_file({"logits": value.contiguous()}, folder / "logits")
    return examiner.compare_logits(path=folder / "logits", ratio=RATIO)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda y: y, None),
        (lambda y: y * 1.001, ReasonCode.MODEL_ERROR_EXCEEDED),
        (lambda y: y.roll(1, 0), ReasonCode.MODEL_ERROR_EXCEEDED),
        (lambda y: y.index_fill(0, torch.tensor([3]), float("nan")), ReasonCode.NONFINITE_OUTPUT),
        (lambda y: y.half(), ReasonCode.WRONG_OUTPUT_LAYOUT),
        (lambda y: y[:-1], ReasonCode.WRONG_OUTPUT_LAYOUT),
    ],
    ids=["its own", "a thousandth more", "rows shifted", "nan", "float16", "a token less"],
)
def test_the_models_logits_are_judged(
    session: LlamaSession, examiner: Examiner, tmp_path: Path, change: Any, code: ReasonCode | None
) -> None:
    row = logits_of(session, examiner, change, tmp_path)
    assert row["code"] is code
    assert row["reference"] == "float64"
    assert row["error_baseline"] > 0


@pytest.mark.parametrize(("factor", "passed"), [(1.0, True), (1.001, False), (float("nan"), False)])
def test_a_steps_output_is_judged_in_whatever_mode_it_ran(
    session: LlamaSession, examiner: Examiner, tmp_path: Path, factor: float, passed: bool
) -> None:
    examiner.reference_step(seed=1, kept=NOTHING)
    seeds = Examiner.probe_seeds(session, 1)
    assert len(seeds) * session.cell.batch >= 8
    with torch.no_grad():
        logits = torch.cat([session.program(session.model)(*session.batch(seed))[0] for seed in seeds])
    save_file({"logits": logits * factor}, tmp_path / "step")
    assert examiner.compare_step(path=tmp_path / "step")["passed"] is passed


def test_a_model_that_is_not_finite_itself_can_judge_nothing(tmp_path: Path) -> None:
    """Every comparison with NaN is false: any kernel would have passed."""
    session = LlamaSession()
    with torch.no_grad():
        session.model.get_parameter("lm_head.weight")[3] = float("inf")
    examiner = Examiner(session, OP, OP.find_sites(session.model))
    with pytest.raises(UsageError, match="not finite in float32"):
        examiner.reference_logits(tokens=24, seed=1, kept=NOTHING)
    with pytest.raises(UsageError, match="not finite in float32"):
        examiner.reference_step(seed=1, kept=NOTHING)


def test_the_reference_is_a_copy_and_leaves_the_model_alone(session: LlamaSession, examiner: Examiner) -> None:
    before = session.answers(session.model, *session.batch(1))
    examiner.reference_logits(tokens=24, seed=1, kept=NOTHING)
    assert {p.dtype for p in session.model.parameters()} == {torch.float32}
    assert torch.equal(before, session.answers(session.model, *session.batch(1)))
