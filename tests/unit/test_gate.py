from __future__ import annotations

from datetime import date

import pytest
from pydantic import ValidationError

from e2e.errors import StoredRunError, UsageError
from e2e.gate import Gate
from e2e.gate import regate as regate_here
from e2e.schema.policy import Limits, Pins, Policy, Waiver
from e2e.schema.result import CellResult, Result
from e2e.schema.words import WAIVABLE, ReasonCode, Stage
from e2e.surroundings import Surroundings
from tests import results
from tests.fakes import evidence, timed

LENIENT = Policy(name="lenient", decides="as_shipped")
"""Under it the stored run is CONFIRMED."""
THERE = Surroundings({"torch": "2.11.0", "transformers": "5.24.0"}, ("NVIDIA H200",))
"""Where the stored run was made."""
TODAY = date(2026, 12, 1)


def regate(result: Result, policy: Policy | None, here: Surroundings = THERE) -> Gate:
    return regate_here(result, policy, here, TODAY)


def test_the_stored_policy_gives_the_stored_outcome() -> None:
    gate = regate(results.result(), None)
    assert gate.code == 10
    assert gate.text.startswith("REFUTED  20261130T120000Z-llama-infer-abc123, policy standard\n")


def test_another_policy_may_decide_otherwise_and_says_what_was_stored() -> None:
    gate = regate(results.result(), LENIENT)
    assert gate.code == 0
    assert "CONFIRMED" in gate.text
    assert "stored as REFUTED, under policy standard" in gate.text


def test_a_run_that_never_reached_a_verdict_does_not_pass() -> None:
    seen = results.evidence(stage_asked=Stage.CHECK, stage_finished=Stage.CHECK, segments=[], arms=[], candidate=None)
    cell = CellResult(cell=results.cell(), evidence=seen, verdict=results.verdict(outcome=None, reasons=[]))
    gate = regate(results.result([cell]), None)
    assert gate.code == 11
    assert gate.text.startswith("NO VERDICT")


@pytest.mark.parametrize("code", [2, 6, 70, 130])
def test_a_run_that_ended_early_keeps_its_code(code: int) -> None:
    assert code == regate(results.ended_early(code, "why"), None).code


def test_a_run_without_cells_does_not_pass() -> None:
    assert regate(results.result([]), None).code == 11


@pytest.mark.parametrize("policy", [None, LENIENT])
def test_evidence_of_an_older_method_is_stale_whatever_it_says(policy: Policy | None) -> None:
    gate = regate(results.result(method="1"), policy)
    assert gate.code == 11
    assert "measured by method 1; this e2e has 2: measure again [stale_evidence]" in gate.text


@pytest.mark.parametrize("method", ["3", "0", ""])
def test_evidence_of_an_unknown_method_is_refused(method: str) -> None:
    with pytest.raises(StoredRunError, match=f"was measured by method '{method}'; this e2e knows 1, 2"):
        regate(results.result(method=method), LENIENT)


def test_evidence_of_another_environment_is_stale() -> None:
    newer = Surroundings({"torch": "2.12.0"}, ("NVIDIA B200",))
    gate = regate(results.result(), LENIENT, newer)
    assert gate.code == 11
    assert "another environment: torch 2.11.0 -> 2.12.0, GPU NVIDIA H200 -> NVIDIA B200: measure" in gate.text


def test_a_machine_that_cannot_run_it_can_hold_the_verdict_and_says_what_it_did_not_compare() -> None:
    gate = regate(results.result(), LENIENT, Surroundings())
    assert gate.code == 0
    assert "environment not compared: no CUDA device here" in gate.text


def test_the_same_environment_needs_no_word() -> None:
    assert "environment" not in regate(results.result(), LENIENT).text


def test_a_policy_can_pin_what_a_stored_run_must_be() -> None:
    pinned = LENIENT.model_copy(update={"pins": Pins(no_overrides=True)})
    gate = regate(results.result(), pinned)
    assert gate.code == 11
    assert "[policy_not_met]" in gate.text


def test_evidence_that_no_run_writes_is_refused() -> None:
    timeless = [segment.model_copy(update={"seconds": 0.0}) for segment in results.segments()]
    seen = results.evidence(segments=timeless)
    broken = CellResult(cell=results.cell(), evidence=seen, verdict=results.verdict())
    with pytest.raises(StoredRunError, match="evidence that no run writes"):
        regate(results.result([broken]), None)


def test_a_run_without_policy_needs_one() -> None:
    with pytest.raises(UsageError, match="give one with --policy"):
        regate(results.result(policy=None), None)


def test_a_sweep_is_judged_over_all_cells_under_the_policy_given() -> None:
    found = [evidence(timed(1.0)), evidence(timed(1.05))]
    cells = [
        CellResult(cell=results.cell(batch=batch), evidence=each, verdict=results.verdict())
        for batch, each in enumerate(found, start=1)
    ]
    stored = results.result(cells)
    gate = regate(stored, None)
    assert 0 == gate.code
    lines = gate.text.splitlines()
    assert "  prefill 1 x 2048 bfloat16: REFUTED, gain below the margin" == lines[2]
    assert "  prefill 2 x 2048 bfloat16: CONFIRMED" == lines[3]
    assert lines[4].startswith("    prefill 2 x 2048 bfloat16: 1.0")
    assert 10 == regate(stored, Policy(name="strict", wins="all")).code


# ---- Waivers


def waiving(code: str, until: str = "2026-12-01", kernel: str | None = None, **fields: object) -> Policy:
    waiver = {"code": code, "reason": "the rack is slow until January", "until": until, "kernel": kernel}
    return LENIENT.model_copy(update={**fields, "waivers": [Waiver.model_validate(waiver)]})


def test_a_waiver_counts_until_its_last_day_and_is_said() -> None:
    pins = Pins(no_overrides=True)
    gate = regate(results.result(), waiving("policy_not_met", pins=pins))
    assert gate.code == 0
    assert "  waived until 2026-12-01: policy_not_met: the rack is slow until January" in gate.text
    ended = regate(results.result(), waiving("policy_not_met", "2026-11-30", pins=pins))
    assert ended.code == 11
    assert "  a waiver of policy_not_met ended on 2026-11-30" in ended.text


def test_a_waiver_is_for_its_kernel_alone() -> None:
    pins = Pins(no_overrides=True)
    assert 0 == regate(results.result(), waiving("policy_not_met", kernel="0" * 64, pins=pins)).code
    other = regate(results.result(), waiving("policy_not_met", kernel="1" * 64, pins=pins))
    assert other.code == 11
    assert "waive" not in other.text


def test_another_environment_can_be_waived_and_another_method_cannot() -> None:
    newer = Surroundings({"torch": "2.12.0"}, ("NVIDIA H200",))
    assert 0 == regate(results.result(), waiving("stale_evidence"), newer).code
    assert 11 == regate(results.result(method="1"), waiving("stale_evidence")).code


def test_a_limit_that_is_exceeded_refutes_and_can_be_waived() -> None:
    limits = Limits(first_step_s=0.1)
    gate = regate(results.result(), LENIENT.model_copy(update={"limits": limits}))
    assert gate.code == 10
    assert "first step 410 ms, at most 100 ms allowed [limit_exceeded]" in gate.text
    assert 0 == regate(results.result(), waiving("limit_exceeded", limits=limits)).code


@pytest.mark.parametrize("code", sorted(set(ReasonCode) - set(WAIVABLE)))
def test_what_says_that_a_kernel_is_wrong_or_unmeasured_cannot_be_waived(code: ReasonCode) -> None:
    with pytest.raises(ValidationError, match="cannot be waived, only policy_not_met"):
        waiving(code)


def test_a_waiver_needs_a_reason_and_a_day() -> None:
    with pytest.raises(ValidationError, match="reason"):
        Waiver.model_validate({"code": "throttled", "reason": "", "until": "2026-12-01"})
    with pytest.raises(ValidationError, match="until"):
        Waiver.model_validate({"code": "throttled", "reason": "long enough"})


# ---- The kernel


def test_a_kernel_whose_source_here_is_another_is_stale() -> None:
    gate = regate(
        results.result(), LENIENT, Surroundings(THERE.packages, THERE.gpus, None, {"kernels/rmsnorm.cu": "1" * 64})
    )
    assert gate.code == 11
    assert "another kernel: kernels/rmsnorm.cu (000000000000 -> 111111111111): measure again [stale" in gate.text
    same = Surroundings(THERE.packages, THERE.gpus, None, {"kernels/rmsnorm.cu": "0" * 64})
    assert 0 == regate(results.result(), LENIENT, same).code
