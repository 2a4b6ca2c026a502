from __future__ import annotations

import pytest

from e2e.errors import StoredRunError, UsageError
from e2e.gate import Gate
from e2e.gate import regate as regate_here
from e2e.schema.policy import Pins, Policy
from e2e.schema.result import CellResult, Result
from e2e.schema.words import Stage
from e2e.surroundings import Surroundings
from tests import results
from tests.fakes import evidence, timed

LENIENT = Policy(name="lenient", decides="as_shipped")
"""Under it the stored run is CONFIRMED."""
THERE = Surroundings({"torch": "2.11.0", "transformers": "5.24.0"}, ("NVIDIA H200",))
"""Where the stored run was made."""


def regate(result: Result, policy: Policy | None, here: Surroundings = THERE) -> Gate:
    return regate_here(result, policy, here)


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
