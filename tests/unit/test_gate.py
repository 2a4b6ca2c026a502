from __future__ import annotations

import pytest

from e2e.errors import UsageError
from e2e.gate import regate
from e2e.schema.policy import Policy
from e2e.schema.result import CellResult
from e2e.schema.words import Stage
from tests import results
from tests.fakes import evidence, timed


def test_the_stored_policy_gives_the_stored_outcome() -> None:
    gate = regate(results.result(), None)
    assert gate.code == 10
    assert gate.text.startswith("REFUTED  20261130T120000Z-llama-infer-abc123, policy standard\n")


def test_another_policy_may_decide_otherwise_and_says_what_was_stored() -> None:
    lenient = Policy(name="lenient", decides="as_shipped")
    gate = regate(results.result(), lenient)
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


def test_a_confirmed_of_an_older_method_is_stale() -> None:
    lenient = Policy(name="lenient", decides="as_shipped")
    gate = regate(results.result(method="0"), lenient)
    assert gate.code == 11
    assert "measured by method 0; this e2e has 1: measure again" in gate.text


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
