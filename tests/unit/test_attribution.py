from __future__ import annotations

import pytest

from e2e.attribution import attribution
from e2e.schema.evidence import DeviceFacts, Evidence, TraceChange, TraceDifference
from e2e.schema.result import AttributionLine
from e2e.schema.verdict import Against
from tests import results

BEST, SHIPPED = results.verdict().latency.against
CPU = DeviceFacts(kind="cpu", name="CPU", count_threads=2)


def lines(evidence: Evidence, row: Against | None) -> dict[str, float]:
    return {line.what: line.microseconds_per_step for line in attribution(evidence, row)}


def notes(evidence: Evidence, row: Against) -> dict[str, str]:
    return {line.what: line.note for line in attribution(evidence, row)}


def with_plumbing(device: DeviceFacts | None) -> Evidence:
    isolated = results.evidence().isolated
    assert isolated is not None
    return results.evidence(device=device, isolated=isolated.model_copy(update={"plumbing_s": 1e-6}))


def test_the_op_alone_promises_and_the_step_shows_the_rest_is_unexplained() -> None:
    found = lines(results.evidence(), SHIPPED)
    assert pytest.approx(33 * (39.0 - 406.0)) == found["the op, alone and warm, 33 times"]
    assert pytest.approx(71_270 - 82_600) == sum(found.values())
    assert list(found)[-1] == "unexplained"


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


# ---- With traces

IDLE = "the device rests while the host is elsewhere"


def traced(arm: str = SHIPPED.arm, **changes: object) -> Evidence:
    """Traces in which the op saved more than alone, a neighbour slowed down, and the device rests more."""
    whole = TraceDifference(
        arm=arm,
        step_s=0.083,
        candidate_step_s=0.072,
        idle_ratio=0.02,
        candidate_idle_ratio=0.03,
        op_s=0.0134,
        candidate_op_s=0.0013,
        changes=[
            TraceChange(cause="op", seconds=-0.0121),
            TraceChange(cause="neighbours", seconds=400e-6, note="nvjet"),
            TraceChange(cause="idle", seconds=300e-6),
            TraceChange(cause="syncs", seconds=1e-9),
        ],
    )
    return results.evidence(trace_differences=[whole.model_copy(update=changes)])


def test_the_traces_explain_what_the_op_alone_does_not() -> None:
    found = lines(traced(), SHIPPED)
    assert pytest.approx(71_270 - 82_600) == sum(found.values())
    assert (
        pytest.approx(-12_100 - 33 * (39.0 - 406.0))
        == found["the op in the step beside the op alone (caches, launches)"]
    )
    assert 400 == pytest.approx(found["the same work beside the op takes longer or shorter"])
    assert 300 == pytest.approx(found[IDLE])
    assert pytest.approx(71_270 - 82_600 - (-12_100 + 700)) == found["unexplained"]
    assert 5 == len(found), "a line of a nanosecond is none"


def test_every_line_has_its_cause() -> None:
    causes = [line.cause for line in attribution(traced(), SHIPPED)]
    assert ["promised", "op", "neighbours", "idle", "unexplained"] == causes


def test_a_device_that_rests_in_both_arms_is_bound_by_launches() -> None:
    seen = traced(idle_ratio=0.6, candidate_idle_ratio=0.7)
    assert "idle 70 % of the step, 60 % without the kernel" == notes(seen, SHIPPED)[f"launch-bound: {IDLE}"]
    assert IDLE in lines(traced(idle_ratio=None), SHIPPED)


def test_compiled_arms_are_explained_by_their_traces_alone() -> None:
    row = SHIPPED.model_copy(update={"arm": "baseline:compile"})
    seen = traced("baseline:compile", changes=[TraceChange(cause="fusion", seconds=9e-4, note="2 gone, 3 new: triton")])
    records = [
        arm.model_copy(update={"compiled_regions": {"baseline:compile": 1, "candidate:compile": 33}.get(arm.name)})
        for arm in seen.arms
    ]
    found = attribution(seen.model_copy(update={"arms": records, "candidate": "candidate:compile"}), row)
    assert "code that a compiler makes otherwise" == found[0].what
    assert "33 regions, 1 without the kernel; 2 gone, 3 new: triton" == found[0].note
    assert ["fusion", "unexplained"] == [line.cause for line in found]


def test_traces_of_another_opponent_explain_nothing() -> None:
    assert 2 == len(lines(traced("baseline:compile"), SHIPPED))


def test_e2es_own_work_is_no_second_time_the_hosts() -> None:
    host = TraceChange(cause="host", seconds=50e-6)
    seen = with_plumbing(CPU).model_copy(update={"trace_differences": [traced(changes=[host]).trace_differences[0]]})
    found = lines(seen, SHIPPED)
    assert pytest.approx(33.0) == found["e2e's own work around each call"]
    assert pytest.approx(50.0 - 33.0) == found["the host outside all operators"]


def test_sites_without_the_kernel_cannot_give_what_the_op_alone_promises() -> None:
    engagement = results.engagement()
    sites = [engagement.sites[0].model_copy(update={"fqn": f"model.{n}.norm", "calls": int(n < 3)}) for n in range(4)]
    isolated = results.evidence().isolated
    assert isolated is not None
    seen = results.evidence(
        engagement=engagement.model_copy(update={"sites": sites}),
        isolated=isolated.model_copy(update={"calls_per_step": 3}),
    )
    found = lines(seen, SHIPPED)
    assert pytest.approx(4 * (39.0 - 406.0)) == found["the op, alone and warm, 4 times"]
    assert pytest.approx(406.0 - 39.0) == found["the kernel is not at 1 site of 4"]


def test_a_clock_that_ran_slower_in_the_candidates_segments() -> None:
    clocked = [
        segment.model_copy(update={"clock_hz": 1.70e9 if segment.arm == "candidate:eager" else 1.72e9})
        for segment in results.evidence().segments
    ]
    found = lines(results.evidence(segments=clocked), SHIPPED)
    assert pytest.approx(0.97 * 71_270 * (0.02 / 1.72)) == found["the device's clock"]
