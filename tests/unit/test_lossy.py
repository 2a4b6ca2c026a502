"""Kernels of a declared lossy precision: what is excused, what the policy's budget decides, and what it must catch."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from e2e import registry
from e2e.judge import judge
from e2e.numerics.examine import Examiner
from e2e.numerics.kept import Kept
from e2e.numerics.lossy import labels_of, surprise
from e2e.reading import read_kernel
from e2e.rules.lossy import over_budget
from e2e.schema.evidence import Answer, Evidence, MutantCheck
from e2e.schema.policy import Numerics
from e2e.schema.words import Outcome, ReasonCode, Stage
from e2e.stages.correctness import op_checks
from tests import fakes, tiny
from tests.sessions import LlamaSession

torch.set_num_threads(1)

KERNELS = Path(__file__).parents[1] / "kernels"
OP = registry.load("ops", "rms_norm")
BUDGET = Numerics()


# ---- What is excused


def excused(
    *, error: float | None, code: str | None = "op_error_exceeded", lossy: bool = True, **remarked: Any
) -> tuple[str, ReasonCode | None]:
    row = {
        "site": "norm",
        "label": "captured",
        "shape": "2 x 3",
        "stride": "(3, 1)",
        "dtype": "float32",
        "status": "wrong" if code else "passed",
        "code": code,
        "error_candidate": error,
        "error_baseline": 1e-7,
        "allowed": 2e-7,
    }
    remark = {
        **dict.fromkeys(("declined", "problem", "layout")),
        **dict.fromkeys(("inputs_changed", "aliased"), False),
        "repeats": True,
        **remarked,
    }
    (found,) = op_checks([row], [remark], is_lossy=lossy)
    return found.status, found.code


def test_only_a_kernel_that_declares_it_may_err_more_than_the_op_rule_allows() -> None:
    assert excused(error=0.01) == ("lossy", None)
    assert excused(error=0.01, code="precision_downgraded") == ("lossy", None)
    assert excused(error=0.01, lossy=False) == ("wrong", ReasonCode.OP_ERROR_EXCEEDED)
    assert excused(error=1e-8, code=None) == ("passed", None)


def test_no_precision_excuses_zeros_nor_what_is_not_a_number_nor_another_form() -> None:
    assert excused(error=1.0) == ("wrong", ReasonCode.OP_ERROR_EXCEEDED)
    assert excused(error=None) == ("wrong", ReasonCode.OP_ERROR_EXCEEDED)
    for code in ("nonfinite_output", "wrong_output_layout", "inputs_changed"):
        assert excused(error=0.01, code=code) == ("wrong", ReasonCode(code))


@pytest.mark.parametrize(
    ("remarked", "code"),
    [
        ({"problem": "it returned 2 tensors, not a tensor"}, ReasonCode.WRONG_OUTPUT_LAYOUT),
        ({"inputs_changed": True}, ReasonCode.INPUTS_CHANGED),
        ({"aliased": True}, ReasonCode.WRONG_OUTPUT_LAYOUT),
        ({"layout": "(1, 2)"}, ReasonCode.WRONG_OUTPUT_LAYOUT),
    ],
)
def test_what_else_is_wrong_with_a_lossy_call_stays_wrong(remarked: dict[str, Any], code: ReasonCode) -> None:
    assert excused(error=0.01, **remarked) == ("wrong", code)


def test_a_declared_lossy_kernel_has_to_repeat_itself() -> None:
    assert excused(error=0.01, repeats=False) == ("wrong", ReasonCode.OP_ERROR_EXCEEDED)
    assert excused(error=1e-8, code=None, repeats=False) == ("wrong", ReasonCode.OP_ERROR_EXCEEDED)
    assert excused(error=1e-8, code=None, repeats=False, lossy=False) == ("passed", None)


def test_a_precision_that_the_models_dtype_does_not_exceed_excuses_nothing() -> None:
    manifest = read_kernel(str(KERNELS / "int8_linear.py"), op=None).manifest
    assert manifest.lossy_in("bfloat16") == "int8"
    assert manifest.model_copy(update={"precision": "bfloat16"}).lossy_in("bfloat16") is None
    assert manifest.model_copy(update={"precision": None}).lossy_in("float32") is None


# ---- What decides


def seen(
    *, precision: str | None = "int8", lossy: bool = True, mutants: list[MutantCheck] | None = None, **model: Any
) -> Evidence:
    check = fakes.op_check(status="lossy" if lossy else "passed", error_candidate=0.01)
    known = {"precision": precision, "kl_baseline": 1e-6, "kl_candidate": 1e-3, "nll_upper": 1e-3, **model}
    return fakes.stopped_at(
        Stage.CHECK, op_checks=[check], model_check=fakes.model_check(**known), mutants=mutants or []
    )


def codes(evidence: Evidence, **changes: Any) -> tuple[Outcome | None, list[ReasonCode]]:
    found = judge(evidence, fakes.policy(**changes))
    return found.outcome, [reason.code for reason in found.reasons]


def test_within_the_budget_it_passes_and_the_report_says_for_whom() -> None:
    outcome, found = codes(seen())
    assert outcome is None
    assert ReasonCode.DECLARED_LOSSY in found
    assert ReasonCode.DECLARED_LOSSY not in codes(seen(precision=None, lossy=False))[1]


@pytest.mark.parametrize(
    "model", [{"kl_candidate": 0.02}, {"nll_upper": 0.02}, {"nll_upper": None}, {"kl_candidate": None}]
)
def test_beyond_the_budget_or_where_it_is_not_known_it_is_wrong(model: dict[str, Any]) -> None:
    outcome, found = codes(seen(**model))
    assert (outcome, found[0]) == (Outcome.INCORRECT, ReasonCode.LOSSY_BUDGET_EXCEEDED)


def test_the_budget_is_the_policys() -> None:
    strict = {"numerics": Numerics(lossy_kl_nats=1e-4)}
    assert codes(seen(), **strict)[0] is Outcome.INCORRECT
    assert codes(seen(precision=None, lossy=False), **strict)[0] is None


def test_where_no_model_was_asked_nothing_is_decided() -> None:
    alone = fakes.stopped_at(Stage.CHECK, op_checks=[fakes.op_check(status="lossy")], model_check=None)
    outcome, found = codes(alone)
    assert (outcome, found[0]) == (Outcome.INCONCLUSIVE, ReasonCode.CHECK_NO_POWER)


def test_where_the_task_knows_no_labels_nothing_is_decided() -> None:
    unknown = {"answer": Answer(what="features", is_distribution=False, has_labels=False)}
    outcome, found = codes(seen(kl_candidate=None, nll_upper=None, **unknown))
    assert (outcome, found[0]) == (Outcome.INCONCLUSIVE, ReasonCode.CHECK_NO_POWER)


@pytest.mark.parametrize("lossy", [True, False])
def test_where_a_model_has_no_true_tokens_nothing_is_decided(lossy: bool) -> None:
    answer = fakes.model_check().answer.model_copy(update={"has_labels": False})
    outcome, found = codes(seen(lossy=lossy, answer=answer, nll_upper=None))
    assert (outcome, found[0]) == (Outcome.INCONCLUSIVE, ReasonCode.CHECK_NO_POWER)


def test_a_budget_that_plain_mistakes_would_pass_decides_nothing() -> None:
    outcome, found = codes(seen(mutants=[MutantCheck(name="zeros, by the model's outputs", caught=False)]))
    assert (outcome, found[0]) == (Outcome.INCONCLUSIVE, ReasonCode.CHECK_NO_POWER)


# ---- What is measured


def test_surprise_is_the_paired_loss_of_log_likelihood_with_its_bound() -> None:
    draw = torch.Generator().manual_seed(1)
    baseline = torch.randn(500, 16, generator=draw)
    labels = torch.randint(0, 16, (500,), generator=draw)
    labels[::50] = -1
    value = baseline + 0.3 * torch.randn(500, 16, generator=draw)
    known = labels >= 0
    losses = [torch.nn.functional.cross_entropy(x[known], labels[known], reduction="none") for x in (value, baseline)]
    difference = (losses[0] - losses[1]).double()
    found = surprise(value, baseline, labels)
    assert found is not None
    assert found.difference == pytest.approx(float(difference.mean()), rel=1e-4)
    assert found.upper == pytest.approx(
        float(difference.mean() + 1.96 * difference.std() / known.sum() ** 0.5), rel=1e-4
    )
    assert surprise(baseline, baseline, labels).upper == 0
    assert surprise(value, baseline, torch.full((500,), -1)) is None


def test_the_true_next_token_of_every_position_is_the_one_after_it() -> None:
    calls = [(torch.tensor([[1, 2, 3], [4, 5, 6]]),), (torch.tensor([[7, 8, 9]]),)]
    found = labels_of(LlamaSession(), calls)
    assert found is not None and found.tolist() == [2, 3, -1, 5, 6, -1, 8, 9, -1]


def test_what_a_session_does_not_know_of_one_call_it_knows_of_none() -> None:
    class Silent(LlamaSession):
        def labels(self, ids: torch.Tensor) -> Any:
            return None if ids.shape[0] == 1 else super().labels(ids)

    assert labels_of(Silent(), [(torch.tensor([[1, 2], [3, 4]]),), (torch.tensor([[5, 6]]),)]) is None


@pytest.fixture(scope="module")
def examiner(tmp_path_factory: pytest.TempPathFactory) -> Examiner:
    session = LlamaSession()
    found = Examiner(session, OP, OP.find_sites(session.model))
    found.survey(seed=1, path=tmp_path_factory.mktemp("calls") / "calls", budget_bytes=2**24)
    found.reference_logits(tokens=48, seed=1, kept=Kept(None, []))
    return found


def test_the_budget_catches_plain_mistakes_in_the_model(examiner: Examiner) -> None:
    rows = examiner.gross_errors(fqns=[site.fqn for site in examiner.fit])
    assert {row["name"] for row in rows} >= {"zeros", "the sign lost"}
    assert [row["name"] for row in rows if not over_budget(row["kl_added"], row["nll_upper"], BUDGET)] == []


def test_at_sites_that_the_kernel_does_not_take_nothing_is_spoilt(examiner: Examiner) -> None:
    rows = examiner.gross_errors(fqns=[])
    assert {row["kl_added"] for row in rows} == {0.0}
    assert all(over_budget(row["kl_added"], row["nll_upper"], BUDGET) == [] for row in rows)


def test_a_declared_lossy_kernels_logits_are_measured_and_not_judged(examiner: Examiner, tmp_path: Path) -> None:
    assert examiner._logits is not None
    value = examiner._logits[1] * 1.01
    save_file({"logits": value.contiguous()}, tmp_path / "logits")
    strict, lossy = (
        examiner.compare_logits(path=tmp_path / "logits", ratio=2.0, is_lossy=is_lossy) for is_lossy in (False, True)
    )
    assert (strict["status"], lossy["status"]) == ("wrong", "passed")
    assert {name: strict[name] for name in ("kl_candidate", "nll_upper")} == {
        name: lossy[name] for name in ("kl_candidate", "nll_upper")
    }
    save_file({"logits": value.index_fill(0, torch.tensor([3]), math.nan)}, tmp_path / "logits")
    row = examiner.compare_logits(path=tmp_path / "logits", ratio=2.0, is_lossy=True)
    assert row["code"] is ReasonCode.NONFINITE_OUTPUT


def test_a_mode_may_not_err_much_more_than_the_model_check_saw(examiner: Examiner, tmp_path: Path) -> None:
    session: Any = examiner._session
    examiner.reference_step(seed=1, kept=Kept(None, []))
    with torch.no_grad():
        steps = [session.program(session.model)(*session.batch(seed))[0] for seed in Examiner.probe_seeds(session, 1)]
    for factor, rough, passed in ((1.01, 0.0, False), (1.01, 0.01, True), (1.2, 0.01, False), (0.0, 1.0, False)):
        save_file({"logits": torch.cat(steps) * factor}, tmp_path / "step")
        assert examiner.compare_step(path=tmp_path / "step", rough=rough)["passed"] is passed
    assert tiny.VOCABULARY == steps[0].shape[-1]
