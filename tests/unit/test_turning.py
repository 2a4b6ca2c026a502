from __future__ import annotations

from typing import Any

import pytest

from e2e.schema.result import CellResult, Result
from e2e.schema.verdict import Estimate, Reason
from e2e.schema.words import Label, Outcome, ReasonCode
from e2e.turning import turning_points
from tests import results


def bounds(low: float, high: float) -> Estimate:
    return Estimate(point_estimate=(low + high) / 2, lower_bound=low, upper_bound=high, confidence_level=0.9779, look=5)


def told(outcome: Outcome, speedup: Estimate, *, ceiling: Estimate | None = None, **changes: Any) -> tuple[str, ...]:
    """What would change a verdict against the strongest path with that interval."""
    verdict = results.verdict()
    first, second = verdict.latency.against
    row = first.model_copy(update={"speedup": speedup, "outcome": outcome})
    latency = verdict.latency.model_copy(update={"against": [row, second], "ceiling": ceiling})
    verdict = verdict.model_copy(update={"latency": latency, "outcome": outcome})
    cell = CellResult(cell=results.cell(), evidence=results.evidence(), verdict=verdict)
    result: Result = results.result([cell], outcome=outcome, **changes)
    return turning_points(result, cell)


def test_a_confirmed_kernel_loses_its_verdict_at_the_gain_that_was_shown() -> None:
    assert ("a margin of 14 % or more: the gain is shown to be larger than that, and no more",) == told(
        Outcome.CONFIRMED, bounds(1.14, 1.17)
    )


def test_a_gain_below_the_margin_would_do_for_a_smaller_one() -> None:
    assert "a margin below 0.3 %: a gain of that size is shown" == told(Outcome.REFUTED, bounds(1.003, 1.006))[0]


def test_what_is_not_ruled_out_would_be_left_open() -> None:
    assert told(Outcome.REFUTED, bounds(0.998, 1.002))[0].startswith("a margin below 0.2 % would leave it open")


def test_a_slower_step_is_not_changed_by_any_margin() -> None:
    assert "no margin above 0: it is shown to be no faster" == told(Outcome.REFUTED, bounds(0.97, 0.98))[0]


def test_an_open_one_needs_a_narrower_interval_and_no_flags() -> None:
    flag = Reason(code=ReasonCode.RECOMPILED, message="compiled")
    found = told(Outcome.INCONCLUSIVE, bounds(0.98, 1.04), reasons=[flag])
    assert "without what is flagged (recompiled), the interval alone would decide" == found[0]
    assert "a narrower interval: the margin of 1 % lies inside this one of +- 3 %" == found[1]


@pytest.mark.parametrize(
    ("most", "words"),
    [(1.005, "no better kernel for this op"), (1.3, "a better kernel, within limits")],
)
def test_the_ceiling_says_whether_another_kernel_could(most: float, words: str) -> None:
    found = told(Outcome.REFUTED, bounds(0.998, 1.002), ceiling=bounds(most - 0.002, most))
    assert any(line.startswith(words) for line in found)


def test_another_opponent_with_another_outcome_is_another_question() -> None:
    found = told(Outcome.REFUTED, bounds(0.998, 1.002))
    assert found[-1].startswith(
        "asked against eager PyTorch as shipped (`decides: as_shipped`), it is CONFIRMED, 1.159x"
    )


def test_wrong_kernels_sweeps_and_memory_have_none() -> None:
    assert () == turning_points(results.incorrect(), results.incorrect().cells[0])
    assert () == told(Outcome.REFUTED, bounds(0.998, 1.002), label=Label.MATCHED_BY_PYTORCH, policy=None)
    assert () == turning_points(results.result(), None)
