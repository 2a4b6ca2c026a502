from __future__ import annotations

import pytest

from e2e.attribution import UNEXPLAINED, attribution
from e2e.schema.evidence import DeviceFacts, Evidence
from e2e.schema.result import AttributionLine
from e2e.schema.verdict import Against
from tests import results

BEST, SHIPPED = results.verdict().latency.against
CPU = DeviceFacts(kind="cpu", name="CPU", count_threads=2)


def lines(evidence: Evidence, row: Against | None) -> dict[str, float]:
    return {line.what: line.microseconds_per_step for line in attribution(evidence, row)}


def with_plumbing(device: DeviceFacts | None) -> Evidence:
    isolated = results.evidence().isolated
    assert isolated is not None
    return results.evidence(device=device, isolated=isolated.model_copy(update={"plumbing_s": 1e-6}))


def test_the_op_alone_promises_and_the_step_shows_the_rest_is_unexplained() -> None:
    found = lines(results.evidence(), SHIPPED)
    assert pytest.approx(33 * (39.0 - 406.0)) == found["the op, alone and warm, 33 times"]
    assert pytest.approx(71_270 - 82_600) == sum(found.values())
    assert list(found)[-1] == UNEXPLAINED


def test_against_pytorchs_own_path_it_is_that_path_which_is_replaced() -> None:
    found = lines(results.evidence(), BEST)
    assert pytest.approx(33 * (39.0 - 40.5)) == found["the op, alone and warm, 33 times"]
    assert pytest.approx(-10) == sum(found.values())


def test_e2es_own_work_counts_where_the_host_computes_and_the_opponent_has_none() -> None:
    assert pytest.approx(33.0) == lines(with_plumbing(CPU), SHIPPED)["e2e's own work around each call"]
    assert 2 == len(lines(with_plumbing(CPU), BEST)), "both have it"
    assert 2 == len(lines(with_plumbing(results.evidence().device), SHIPPED)), "a device hides it"
    assert 2 == len(lines(with_plumbing(None), SHIPPED))


@pytest.mark.parametrize(
    "arm", ["baseline:compile", "baseline:cuda-graph", "baseline:eager+other", "baseline:compile+F.rms_norm"]
)
def test_where_nothing_alone_says_what_the_op_costs_there_is_nothing_to_attribute(arm: str) -> None:
    assert [] == attribution(results.evidence(), SHIPPED.model_copy(update={"arm": arm}))


def test_a_compiled_candidate_or_one_that_was_not_timed_has_no_lines() -> None:
    compiled = SHIPPED.model_copy(update={"arm": "baseline:compile"})
    assert [] == attribution(results.evidence(candidate="candidate:compile"), compiled)
    assert [] == attribution(results.evidence(candidate=None), SHIPPED)
    assert [] == attribution(results.evidence(isolated=None), SHIPPED)
    assert [] == attribution(results.evidence(), None)


def test_the_same_mode_is_enough_also_in_a_graph() -> None:
    seen = results.evidence(candidate="candidate:cuda-graph")
    found: list[AttributionLine] = attribution(seen, SHIPPED.model_copy(update={"arm": "baseline:cuda-graph"}))
    assert 2 == len(found)
