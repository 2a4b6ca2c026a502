"""What legal changes do to a model's answers, and what is made of a kernel beside them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from e2e import registry
from e2e.judge import judge
from e2e.numerics.compare import distance_of
from e2e.numerics.envelope import MANY, changes, measured, measures, resplit, resplit_first, summed
from e2e.numerics.examine import Examiner
from e2e.numerics.exercise import model_logits
from e2e.numerics.kept import Kept
from e2e.patch import Standing
from e2e.rules import drift
from e2e.schema.evidence import Envelope, Evidence, LegalChange, ModelCheck
from e2e.schema.words import ReasonCode, Stage
from tests import fakes
from tests.sessions import LlamaSession

torch.set_num_threads(1)

OP = registry.load("ops", "rms_norm")
NORM = OP.alternatives["F.rms_norm"]
TOKENS = 96


@pytest.fixture(scope="module")
def session() -> LlamaSession:
    return LlamaSession()


# ---- Changes and their measures


def test_sums_over_rows_are_the_distances_of_all_answers() -> None:
    draw = torch.Generator().manual_seed(0)
    exact = torch.randn(3, 5, 7, generator=draw, dtype=torch.float64)
    exact[1, 3:] = 0  # padding
    baseline = exact.float() * 1.001
    value = (exact + 0.1 * torch.randn(3, 5, 7, generator=draw).double() * exact.ne(0)).float()
    rows = torch.stack([measures(item, exact, baseline, is_distribution=True) for item in (baseline, value)], 1)
    found = summed(rows, ["changed"])
    (change,) = found["changes"]
    whole = distance_of(value.reshape(-1, 7), exact.reshape(-1, 7), answers=13)
    assert found["answers"] == 13
    assert found["error_baseline"] == pytest.approx(0.001, rel=1e-3)
    assert change["error"] == pytest.approx(whole.error)
    assert change["kl"] == pytest.approx(whole.kl)
    assert change["top1"] == pytest.approx(whole.top1)
    assert change["apart"] == pytest.approx(float((value - baseline).norm() / exact.norm()), rel=1e-4)


def test_what_is_no_distribution_has_no_divergence_and_what_is_no_number_is_left_out() -> None:
    exact = torch.ones(1, 2, 3, dtype=torch.float64)
    values = (exact.float(), exact.float() * 2, exact.float() * math.nan)
    rows = torch.stack([measures(item, exact, values[0], is_distribution=False) for item in values], 1)
    assert summed(rows, ["twice", "nan"])["changes"] == [
        {"name": "twice", "error": 1.0, "apart": 1.0, "kl": None, "top1": None}
    ]


def test_rows_come_alone_and_a_row_that_is_alone_among_others(session: LlamaSession) -> None:
    seen: list[int] = []

    class Watching(LlamaSession):
        def answers(self, model: Any, ids: Tensor) -> Tensor:
            seen.append(len(ids))
            return super().answers(model, ids)

    watching = Watching()
    (ids,) = watching.batch(1)
    for inputs, sizes in (((ids,), [1, 1]), ((ids[:1],), [MANY])):
        seen.clear()
        found = resplit(watching, session.model, inputs)
        assert seen == sizes
        torch.testing.assert_close(found, session.answers(session.model, *inputs), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(resplit_first(watching, session.model, inputs), found[:1], rtol=1e-5, atol=1e-6)


def test_a_model_answers_a_little_otherwise_with_other_attention_and_the_same_once_more(session: LlamaSession) -> None:
    calls = session.exam(24, 1)
    ways = changes(session, 2)
    own = torch.cat([session.answers(session.model, *inputs) for inputs in calls])
    found = summed(measured(session, calls, ways, own.double(), own), list(ways))
    apart = {change["name"]: change["apart"] for change in found["changes"]}
    assert apart.keys() == {"once more", "row by row", "attention eager"}
    assert apart["once more"] == 0.0
    assert 0 < apart["attention eager"] < 1e-5
    assert session.model.config._attn_implementation == "sdpa", "the model itself stays as it is"


# ---- Beside a kernel


def checked(session: LlamaSession, kernel: Any, folder: Path, kept: Kept | None = None) -> ModelCheck:
    sites = OP.find_sites(session.model)
    examiner = Examiner(session, OP, sites)
    examiner.fit = sites
    examiner.reference_logits(tokens=TOKENS, seed=1, kept=kept or Kept(None, []))
    model_logits(session, [Standing(OP, sites, kernel)], calls=session.exam(TOKENS, 1), path=folder / "logits")
    return ModelCheck.model_validate(examiner.compare_logits(path=folder / "logits", ratio=2.0))


def reasons(check: ModelCheck) -> dict[ReasonCode, str]:
    evidence: Evidence = fakes.stopped_at(Stage.CHECK, model_check=check)
    return {reason.code: reason.message for reason in judge(evidence, fakes.policy()).reasons}


def test_an_honest_kernel_is_within_the_envelope_and_as_invariant_as_the_baseline(
    session: LlamaSession, tmp_path: Path
) -> None:
    found = checked(session, NORM, tmp_path)
    assert found.envelope is not None
    assert found.envelope.answers == 24
    assert found.split_candidate is not None
    assert found.split_candidate < 1e-5
    assert found.split_baseline is not None
    assert ReasonCode.DRIFT not in reasons(found)


def test_a_kernel_that_depends_on_who_comes_along_is_seen(session: LlamaSession, tmp_path: Path) -> None:
    found = checked(session, lambda x, weight, eps: NORM(x, weight, eps) * (1 + 1e-4 * (len(x) - 2)), tmp_path)
    assert found.status == "passed", "the exam has two rows in every call"
    assert found.split_candidate is not None
    assert found.split_candidate > 1e-5 > (found.split_baseline or 0.0)


def test_a_kernel_that_refuses_other_numbers_of_rows_aloud_is_not_wrong(session: LlamaSession, tmp_path: Path) -> None:
    def two_rows(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        if len(x) != 2:
            raise ValueError("two rows only")
        return NORM(x, weight, eps)

    found = checked(session, two_rows, tmp_path)
    assert (found.status, found.split_candidate) == ("passed", None)


def test_the_envelope_is_kept_for_a_second_kernel_and_measured_again_in_part(
    session: LlamaSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("e2e.numerics.kept.BYTES_PER_S", 1e12)
    first, second = (Kept(tmp_path / "kept", ["same"]) for _ in range(2))
    own = [checked(session, NORM, tmp_path, kept) for kept in (first, second)]
    assert (first.kept, second.kept) == ([], ["logits", "envelope"])
    assert own[0].envelope == own[1].envelope


def model_check(ratio: float, *, widest: float = 1.1, **changes: Any) -> ModelCheck:
    envelope = Envelope(
        answers=9, error_baseline=1e-3, changes=[LegalChange(name="row by row", error=widest * 1e-3, apart=1e-3)]
    )
    return fakes.model_check(
        error_candidate=ratio * 2e-3, error_baseline=2e-3, allowed=5e-3, **{"envelope": envelope, **changes}
    )


@pytest.mark.parametrize(("ratio", "widest", "noted"), [(1.3, 1.1, False), (1.4, 1.1, True), (1.2, 0.7, False)])
def test_what_is_right_and_beyond_every_legal_change_is_noted_as_drift(
    ratio: float, widest: float, noted: bool
) -> None:
    found = reasons(model_check(ratio, widest=widest))
    assert (ReasonCode.DRIFT in found) == noted
    if noted:
        assert "legal changes leave 1.10x at most (row by row)" in found[ReasonCode.DRIFT]
    assert judge(fakes.stopped_at(Stage.CHECK, model_check=model_check(ratio)), fakes.policy()).outcome is None


def test_where_no_envelope_was_measured_nothing_is_noted() -> None:
    assert ReasonCode.DRIFT not in reasons(model_check(1.9, envelope=None))
    assert drift.widest_change(Envelope(answers=0, error_baseline=0.0, changes=[])) == (1.0, "none")


@pytest.mark.parametrize(
    ("checks", "spread"),
    [
        ([], None),
        ([{"repeats": True}], 0.0),
        ([{"repeats": True}, {"repeats": False, "spread": 1e-6}], 1e-6),
        ([{"repeats": False, "spread": None}], None),
    ],
)
def test_the_spread_of_repeated_calls_is_the_largest_of_any_input(
    checks: list[dict[str, Any]], spread: float | None
) -> None:
    assert drift.op_spread([fakes.op_check(**fields) for fields in checks]) == spread
