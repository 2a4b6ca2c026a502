from __future__ import annotations

import pytest

from e2e.errors import UsageError
from e2e.gate import regate
from e2e.schema.policy import Policy
from e2e.schema.result import CellResult
from e2e.schema.words import Outcome, Stage
from tests import results


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
