"""Wins that are false though nobody cheats (rows W of the catalogue), with an invented clock where a real one would
only add noise. What needs a kernel lies beside this file; W6 and W7 need a compiler and a device."""

from __future__ import annotations

import random

import pytest

from e2e.judge import judge
from e2e.measure.schedule import SeedSource, block
from e2e.schema.verdict import Verdict
from e2e.schema.words import Label, Outcome, ReasonCode
from tests.fakes import (
    ALTERNATIVE,
    CANDIDATE,
    EAGER,
    SHAM,
    SyntheticClock,
    evidence,
    policy,
    steps_of,
    synthetic_segments,
    timed,
    with_ceiling,
)


def judged(segments: object, **changes: object) -> Verdict:
    return judge(evidence(segments, **changes), policy())  # type: ignore[arg-type]


def test_w1_a_gain_over_a_weak_baseline_only_is_matched_by_the_better_one() -> None:
    verdict = judged(timed(1.6, alternative=1.6))
    assert (Outcome.REFUTED, Label.MATCHED_BY_PYTORCH) == (verdict.outcome, verdict.label)


@pytest.mark.parametrize("row", ["W2", "W3", "W5"])
def test_an_isolated_gain_that_the_step_does_not_show_is_refuted(row: str) -> None:
    """Redundant work in a toy, a warm cache, or a launch-bound step: the op alone is not what is timed."""
    assert judged(timed(1.0)).outcome is Outcome.REFUTED


def test_w4_arms_of_one_half_of_a_block_get_the_same_inputs_and_no_other_half_gets_them_again() -> None:
    seeds = SeedSource(0)
    turns = block({EAGER: 3, CANDIDATE: 3, SHAM: 3}, settle=1, rng=random.Random(0), seeds=seeds)
    first, second = turns[:3], turns[3:]
    assert len({tuple(turn.seeds) for turn in first}) == len({tuple(turn.seeds) for turn in second}) == 1
    assert not set(first[0].seeds) & set(second[0].seeds)


def test_w8_the_best_of_twenty_equal_kernels_is_not_confirmed_when_it_is_timed_again() -> None:
    def gain(seed: int) -> float:
        row = judged(timed(1.0, block_sd=0.01, seed=seed)).latency.against[0]
        assert row.speedup is not None
        return row.speedup.point_estimate

    gains = {seed: gain(seed) for seed in range(20)}
    best = max(gains, key=gains.__getitem__)
    assert gains[best] > 1.0
    again = [judged(timed(1.0, block_sd=0.01, seed=100 + best + attempt)).outcome for attempt in range(5)]
    assert Outcome.CONFIRMED not in again


@pytest.mark.parametrize("noise", [{"drift": 0.02}, {"clock_swing": 0.04}])
def test_w9_a_clock_that_drifts_or_has_two_levels_makes_no_win(noise: dict[str, float]) -> None:
    clock = SyntheticClock(3, block_sd=0.002, worker_sd=0.001, **noise)  # type: ignore[arg-type]
    steps = steps_of({ALTERNATIVE: 1.0, CANDIDATE: 1.0, SHAM: 1.0})
    segments = [item for worker in range(100, 105) for item in clock.worker(steps, worker=worker)]
    assert judged(segments).outcome is not Outcome.CONFIRMED


def test_w11_memory_that_moved_within_the_step_is_no_saving_to_the_peak() -> None:
    verdict = judge(evidence(timed(1.0)), policy(objective="memory"))
    assert verdict.outcome is not Outcome.CONFIRMED


def test_w12_a_time_of_next_to_nothing_trips_the_ceiling_and_no_mean_hides_it() -> None:
    verdict = judged([*with_ceiling(1.1), *timed(1e4)])
    assert (Outcome.INCONCLUSIVE, ReasonCode.CEILING_EXCEEDED) == (verdict.outcome, verdict.reasons[0].code)


def test_a_true_gain_of_five_per_cent_is_confirmed_all_the_same() -> None:
    """The other side of all of the above: these times do say something."""
    steps = steps_of({ALTERNATIVE: 1.0, CANDIDATE: 1.05, SHAM: 1.0})
    assert judged(synthetic_segments(steps)).outcome is Outcome.CONFIRMED
