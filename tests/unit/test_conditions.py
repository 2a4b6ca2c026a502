"""Flags on the state of machine and arms: each raised by what it is about, and by nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from e2e.judge import judge
from e2e.schema.evidence import Allocations, Segment, Steadiness, Telemetry
from e2e.schema.verdict import Verdict
from e2e.schema.words import Outcome, ReasonCode
from tests.fakes import ALTERNATIVE, CANDIDATE, EAGER, evidence, policy, timed

WIN = timed(1.05)
HEALTHY = {"clock_hz": 1.98e9, "throttled": False}


def seen(segments: list[Segment], change: Callable[[Segment], dict[str, Any]]) -> list[Segment]:
    """The segments as a machine with telemetry stores them, changed as the test says."""
    return [s.model_copy(update={**HEALTHY, "device_s": 0.99 * s.seconds, **change(s)}) for s in segments]


def verdict(segments: list[Segment], **changes: Any) -> Verdict:
    return judge(evidence(segments, **changes), policy())


def codes(found: Verdict) -> set[ReasonCode]:
    return {reason.code for reason in found.reasons}


CONDITIONS = {
    ReasonCode.THROTTLED,
    ReasonCode.NOT_STEADY,
    ReasonCode.CLOCK_CONFOUND,
    ReasonCode.CARRY_OVER,
    ReasonCode.TIMER_DISAGREES,
    ReasonCode.ALLOCATOR_CHURN,
    ReasonCode.ENVIRONMENT_CHANGED,
    ReasonCode.CONTENTION,
}


def test_a_healthy_run_raises_no_flag() -> None:
    found = verdict(seen(WIN, lambda s: {}))
    assert found.outcome is Outcome.CONFIRMED and not codes(found) & CONDITIONS


def test_what_was_not_seen_raises_no_flag() -> None:
    assert not codes(verdict(WIN)) & CONDITIONS


def test_a_device_that_slows_down_under_the_baseline_alone_bars_the_verdict() -> None:
    found = verdict(seen(WIN, lambda s: {"throttled": s.arm == ALTERNATIVE and s.block < 4}))
    assert found.outcome is Outcome.INCONCLUSIVE
    assert found.reasons[0].code is ReasonCode.THROTTLED
    assert "50 % of the segments of eager with F.rms_norm and 0 % " in found.reasons[0].message


@pytest.mark.parametrize("slowed", [lambda s: s.block == 0, lambda s: s.arm == EAGER])
def test_throttling_of_all_arms_alike_or_of_an_arm_that_decides_nothing_is_no_flag(
    slowed: Callable[[Segment], bool],
) -> None:
    found = verdict(seen(WIN, lambda s: {"throttled": slowed(s)}))
    assert found.outcome is Outcome.CONFIRMED and ReasonCode.THROTTLED not in codes(found)


def test_a_gain_that_comes_from_a_higher_clock_is_pointed_out() -> None:
    found = verdict(seen(WIN, lambda s: {"clock_hz": 1.98e9 if s.arm == CANDIDATE else 1.88e9}))
    assert ReasonCode.CLOCK_CONFOUND in codes(found)
    assert found.outcome is Outcome.CONFIRMED  # advice until its false-alarm rate is known


def test_a_step_that_is_bound_by_memory_is_not_accused_for_both_arms_clocks() -> None:
    assert ReasonCode.CLOCK_CONFOUND not in codes(verdict(seen(WIN, lambda s: {"clock_hz": 1.5e9})))


def test_a_candidate_that_profits_from_its_place_in_the_block_carries_over() -> None:
    late = seen(WIN, lambda s: {"seconds": s.seconds * (0.98 if s.arm == CANDIDATE and s.position >= 4 else 1.0)})
    found = verdict(late)
    assert ReasonCode.CARRY_OVER in codes(found)
    assert ReasonCode.CARRY_OVER not in codes(verdict(seen(WIN, lambda s: {})))


def test_host_time_hidden_from_the_device_in_one_arm_is_pointed_out() -> None:
    def hidden(s: Segment) -> dict[str, Any]:
        return {"device_s": s.seconds * (0.90 if s.arm == CANDIDATE else 0.99)}

    assert ReasonCode.TIMER_DISAGREES in codes(verdict(seen(WIN, hidden)))


def test_both_arms_waiting_for_the_host_alike_is_no_disagreement() -> None:
    assert ReasonCode.TIMER_DISAGREES not in codes(verdict(seen(WIN, lambda s: {"device_s": 0.5 * s.seconds})))


@pytest.mark.parametrize(
    ("arms", "flagged"), [([CANDIDATE], True), ([ALTERNATIVE, CANDIDATE], False), ([EAGER], False)]
)
def test_driver_allocations_in_one_arm_only_are_pointed_out(arms: list[str], flagged: bool) -> None:
    found = verdict(WIN, allocations=[Allocations(arm=arm, count=3) for arm in arms])
    assert (ReasonCode.ALLOCATOR_CHURN in codes(found)) is flagged


@pytest.mark.parametrize(
    ("arm", "steady", "flagged"), [(CANDIDATE, False, True), (CANDIDATE, True, False), (EAGER, False, False)]
)
def test_an_arm_still_changing_when_timing_began_is_named(arm: str, steady: bool, flagged: bool) -> None:
    warm = Steadiness(worker=2, arm=arm, steps=40, seconds=1.0, is_steady=steady, change_ratio=0.1)
    assert (ReasonCode.NOT_STEADY in codes(verdict(WIN, steadiness=[warm]))) is flagged


@pytest.mark.parametrize(("slope", "flagged"), [(0.01, True), (-0.01, True), (0.001, False)])
def test_steps_that_climb_or_fall_through_every_workers_blocks_had_not_settled(slope: float, flagged: bool) -> None:
    moving = seen(WIN, lambda s: {"seconds": s.seconds * (1 + slope * s.block)})
    found = verdict(moving)
    assert (ReasonCode.NOT_STEADY in codes(found)) is flagged
    assert found.outcome is Outcome.CONFIRMED, "mirrored blocks cancel a drift"


def test_a_drift_of_one_worker_alone_is_noise() -> None:
    first = min(segment.worker for segment in WIN)
    moving = seen(WIN, lambda s: {"seconds": s.seconds * (1 + 0.02 * s.block if s.worker == first else 1)})
    assert ReasonCode.NOT_STEADY not in codes(verdict(moving))


def test_a_changed_power_limit_is_pointed_out() -> None:
    found = verdict(WIN, telemetry=Telemetry(changed=["power limit 700 W -> 500 W"]))
    assert ReasonCode.ENVIRONMENT_CHANGED in codes(found)


@pytest.mark.parametrize(
    "telemetry",
    [
        Telemetry(cpu_pressure_ratio=0.3),
        Telemetry(steal_ratio=0.05),
        Telemetry(foreign_processes=1),
    ],
)
def test_company_on_the_machine_is_pointed_out(telemetry: Telemetry) -> None:
    assert ReasonCode.CONTENTION in codes(verdict(WIN, telemetry=telemetry))
