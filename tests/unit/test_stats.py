from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e import stats
from e2e.schema.evidence import Segment
from e2e.schema.verdict import Estimate
from tests.fakes import CANDIDATE, EAGER, policy, segment, synthetic_segments

floats = st.floats(-1, 1, allow_nan=False)


@pytest.mark.parametrize(
    ("expected", "probability", "df"),
    [
        (12.7062, 0.975, 1),
        (4.3027, 0.975, 2),
        (2.7764, 0.975, 4),
        (2.3060, 0.975, 8),
        (2.2010, 0.975, 11),
        (63.6567, 0.995, 1),
        (3.4995, 0.995, 7),
        (1.5332, 0.9, 4),
        (0.0, 0.5, 3),
    ],
)
def test_the_t_quantile_agrees_with_printed_tables(expected: float, probability: float, df: int) -> None:
    assert stats.t_quantile(probability, df) == pytest.approx(expected, abs=6e-5)


@pytest.mark.parametrize(("probability", "df"), [(1.0, 3), (0.4, 3), (0.9, 0)])
def test_a_t_quantile_outside_its_range_is_refused(probability: float, df: int) -> None:
    with pytest.raises(ValueError, match="degree of freedom"):
        stats.t_quantile(probability, df)


def test_a_contrast_is_the_log_ratio_of_steps_other_over_arm() -> None:
    segments = [
        segment(CANDIDATE, 2.0, 1, 0, 0, steps=4),
        segment(EAGER, 3.0, 1, 0, 1),
        segment(EAGER, 3.0, 1, 0, 2),
        segment(CANDIDATE, 2.0, 1, 0, 3, steps=4),
    ]
    assert stats.block_contrasts(segments, arm=CANDIDATE, other=EAGER) == {1: [pytest.approx(math.log(2))]}


def test_a_block_without_its_mirror_image_does_not_count() -> None:
    segments = [segment(CANDIDATE, 1.0, 1, 0, 0), segment(EAGER, 2.0, 1, 0, 1)]
    assert stats.block_contrasts(segments, arm=CANDIDATE, other=EAGER) == {}


def test_a_block_with_unequal_numbers_of_segments_does_not_count() -> None:
    segments = [
        segment(CANDIDATE, 1.0, 1, 0, 1),
        segment(EAGER, 2.0, 1, 0, 0),
        segment(EAGER, 2.0, 1, 0, 2),
    ]
    assert stats.block_contrasts(segments, arm=CANDIDATE, other=EAGER) == {}


def test_blocks_of_different_phases_are_different_blocks() -> None:
    steps = {EAGER: 0.01, CANDIDATE: 0.01}
    pilot = synthetic_segments(steps, workers=1, blocks=2, phase="pilot")
    verdict = synthetic_segments(steps, workers=1, blocks=3)
    contrasts = stats.block_contrasts(pilot + verdict, arm=CANDIDATE, other=EAGER)
    assert [5] == [len(values) for values in contrasts.values()]


def test_linear_drift_cancels_in_a_mirrored_block() -> None:
    segments = synthetic_segments({EAGER: 0.01, CANDIDATE: 0.01}, block_sd=0, worker_sd=0, drift=0.5)
    contrasts = stats.block_contrasts(segments, arm=CANDIDATE, other=EAGER)
    assert max(abs(value) for values in contrasts.values() for value in values) < 1e-12


@given(st.floats(1e-6, 1e6))
def test_contrasts_do_not_depend_on_the_unit_of_time(scale: float) -> None:
    segments = synthetic_segments({EAGER: 0.02, CANDIDATE: 0.01}, workers=1, blocks=2)
    scaled = [s.model_copy(update={"seconds": s.seconds * scale}) for s in segments]
    before = stats.block_contrasts(segments, arm=CANDIDATE, other=EAGER)
    after = stats.block_contrasts(scaled, arm=CANDIDATE, other=EAGER)
    assert after == {worker: pytest.approx(values, abs=1e-9) for worker, values in before.items()}


@pytest.mark.parametrize(("seconds", "steps"), [(0.0, 3), (-1.0, 3), (1.0, 0)])
def test_a_segment_without_time_or_steps_is_refused(seconds: float, steps: int) -> None:
    segments = [segment(EAGER, 1.0, 1, 0, 0), segment(CANDIDATE, seconds, 1, 0, 0, steps=steps)]
    with pytest.raises(ValueError, match="no steps or no time"):
        stats.block_contrasts(segments, arm=CANDIDATE, other=EAGER)


def test_one_spike_does_not_move_a_worker() -> None:
    assert stats.worker_estimate([0.01, 0.01, 0.01, 5.0]) == 0.01


def test_estimates_come_in_worker_order() -> None:
    assert stats.worker_estimates({2: [0.9, 0.9], 1: [0.1]}) == [0.1, 0.9]


def test_the_t_interval_of_five_known_numbers() -> None:
    interval = stats.t_interval([1.0, 2.0, 3.0, 4.0, 5.0], 0.95)
    half = 2.7764 * math.sqrt(2.5 / 5)
    assert interval == pytest.approx((3.0, 3.0 - half, 3.0 + half), abs=1e-4)


def test_one_worker_gives_no_interval() -> None:
    with pytest.raises(ValueError, match="two estimates"):
        stats.t_interval([0.1], 0.95)


@given(st.lists(floats, min_size=2, max_size=12))
def test_the_interval_of_the_inverse_ratio_is_the_inverse_interval(values: list[float]) -> None:
    interval = stats.t_interval(values, 0.95)
    inverse = stats.t_interval([-value for value in values], 0.95)
    assert (-inverse.upper, -inverse.lower) == pytest.approx((interval.lower, interval.upper), abs=1e-9)


def test_an_estimate_is_a_ratio() -> None:
    estimate = stats.as_estimate(stats.Interval(0.0, -0.1, 0.1), level=0.95, look=5)
    assert (1.0, math.exp(-0.1), math.exp(0.1), 5) == (
        estimate.point_estimate,
        estimate.lower_bound,
        estimate.upper_bound,
        estimate.look,
    )


def test_the_step_of_an_arm_is_the_median_over_its_segments() -> None:
    segments = [segment(EAGER, seconds, 1, 0, 0, steps=2) for seconds in (2.0, 4.0, 100.0)]
    assert stats.step_seconds(segments, EAGER) == 2.0
    assert stats.step_seconds(segments, CANDIDATE) is None


def test_two_workers_give_a_ceiling_that_holds_both_of_their_own_intervals() -> None:
    ceiling = stats.ceiling_estimate({1: [0.01, 0.02, 0.03], 2: [0.11, 0.12, 0.13]}, level=0.99)
    assert ceiling is not None
    own = [stats.t_interval(values, 0.99) for values in ([0.01, 0.02, 0.03], [0.11, 0.12, 0.13])]
    assert math.exp(min(i.lower for i in own)) == pytest.approx(ceiling.lower_bound)
    assert math.exp(max(i.upper for i in own)) == pytest.approx(ceiling.upper_bound)
    assert ceiling.look == 2


def test_five_workers_give_a_ceiling_from_their_medians() -> None:
    medians = [0.010, 0.012, 0.011, 0.013, 0.009]
    ceiling = stats.ceiling_estimate({worker: [m, m] for worker, m in enumerate(medians)}, level=0.99)
    assert ceiling is not None
    assert math.exp(stats.t_interval(medians, 0.99).upper) == pytest.approx(ceiling.upper_bound)


def test_single_blocks_give_no_ceiling() -> None:
    assert stats.ceiling_estimate({1: [0.1], 2: [0.1]}, level=0.99) is None


@given(st.lists(st.lists(floats, min_size=2, max_size=9), min_size=1, max_size=7))
def test_a_ceiling_contains_its_own_point(workers: list[list[float]]) -> None:
    ceiling = stats.ceiling_estimate(dict(enumerate(workers)), level=0.99)
    assert ceiling is not None
    assert ceiling.lower_bound <= ceiling.point_estimate * (1 + 1e-12)
    assert ceiling.point_estimate <= ceiling.upper_bound * (1 + 1e-12)


def test_the_block_sd_is_found_despite_spikes() -> None:
    segments = synthetic_segments({EAGER: 0.01, CANDIDATE: 0.01}, workers=12, blocks=20, block_sd=0.01)
    found = stats.block_sd(stats.block_contrasts(segments, arm=CANDIDATE, other=EAGER))
    assert found == pytest.approx(0.01, rel=0.2)


def test_two_blocks_say_nothing_about_their_spread() -> None:
    assert stats.block_sd({1: [0.1, 0.2], 2: [0.3]}) is None


@pytest.mark.parametrize(
    ("expected", "block_sd"), [(8, 0.0), (8, 0.003), (8, 0.006), (17, 0.01), (60, 0.02), (60, 5.0)]
)
def test_noisier_cells_get_more_blocks_within_the_policy(expected: int, block_sd: float) -> None:
    assert stats.blocks_for(block_sd, policy()) == expected


@pytest.mark.parametrize("block_sd", [-0.1, math.inf, math.nan])
def test_an_impossible_block_sd_is_refused(block_sd: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        stats.blocks_for(block_sd, policy())


def test_the_smallest_detectable_effect_follows_its_formula() -> None:
    sd = math.sqrt(2.5e-6)
    expected = math.expm1((2.7764 + 1.5332) * sd / math.sqrt(5))
    assert stats.detectable(sd, workers=5, level=0.95) == pytest.approx(expected, rel=1e-4)


def test_an_interval_gives_back_the_spread_of_the_workers_behind_it() -> None:
    estimates = [0.001, 0.002, 0.003, 0.004, 0.005]
    told = stats.as_estimate(stats.t_interval(estimates, 0.95), level=0.95, look=5)
    assert stats.worker_sd_of(told) == pytest.approx(math.sqrt(2.5e-6))
    with pytest.raises(ValueError, match="two workers"):
        stats.worker_sd_of(told.model_copy(update={"look": 1}))


def test_halving_an_interval_takes_fewer_than_four_times_few_workers() -> None:
    needed = stats.workers_for(0.01, half_width=0.02, workers=5, level=0.95)
    assert needed == 13  # t falls too: 2.776 / sqrt(5) against 2.179 / sqrt(13)


def test_an_interval_that_is_narrow_enough_needs_no_more_workers() -> None:
    assert stats.workers_for(0.02, half_width=0.02, workers=5, level=0.95) == 5


def test_a_target_out_of_reach_is_said_to_be_so() -> None:
    assert stats.workers_for(0.0, half_width=0.02, workers=5, level=0.95) is None


# What holds for any times

seconds = st.floats(0.1, 10)
runs = st.lists(st.lists(st.tuples(seconds, seconds, seconds, seconds), min_size=1, max_size=4), min_size=2, max_size=6)
levels = st.floats(0.51, 0.99)


def mirrored(workers: list[list[tuple[float, float, float, float]]], *, scale: float = 1.0) -> list[Segment]:
    """Blocks in the order candidate, baseline, baseline, candidate."""
    arms = (CANDIDATE, EAGER, EAGER, CANDIDATE)
    return [
        segment(arm, time * scale, worker, block, position)
        for worker, blocks in enumerate(workers)
        for block, times in enumerate(blocks)
        for position, (arm, time) in enumerate(zip(arms, times, strict=True))
    ]


def reading(segments: list[Segment], *, arm: str = CANDIDATE, other: str = EAGER, level: float = 0.95) -> Estimate:
    estimates = stats.worker_estimates(stats.block_contrasts(segments, arm=arm, other=other))
    return stats.as_estimate(stats.t_interval(estimates, level), level=level, look=len(estimates))


def bounds(estimate: Estimate) -> list[float]:
    return [math.log(x) for x in (estimate.lower_bound, estimate.point_estimate, estimate.upper_bound)]


@given(runs)
def test_swapping_the_arms_inverts_the_ratio_and_its_bounds(workers: list[list[Any]]) -> None:
    one, two = reading(mirrored(workers)), reading(mirrored(workers), arm=EAGER, other=CANDIDATE)
    assert bounds(one) == pytest.approx([-bound for bound in reversed(bounds(two))], abs=1e-9)


@given(runs, st.floats(1e-6, 1e6))
def test_scaling_all_times_changes_no_ratio(workers: list[list[Any]], scale: float) -> None:
    one, two = reading(mirrored(workers)), reading(mirrored(workers, scale=scale))
    assert bounds(one) == pytest.approx(bounds(two), abs=1e-6)


@given(runs, st.randoms(use_true_random=False))
def test_the_order_of_workers_and_of_segments_changes_no_ratio(workers: list[list[Any]], rng: random.Random) -> None:
    segments = mirrored(workers)
    shuffled = rng.sample(segments, len(segments))
    turned = mirrored(workers[::-1])
    assert reading(segments) == reading(shuffled)
    assert bounds(reading(segments)) == pytest.approx(bounds(reading(turned)), abs=1e-9)


@given(runs, levels)
def test_an_interval_contains_its_point(workers: list[list[Any]], level: float) -> None:
    low, point, high = bounds(reading(mirrored(workers), level=level))
    assert low <= point <= high


@given(runs, levels, levels)
def test_a_higher_level_gives_no_narrower_interval(workers: list[list[Any]], one: float, two: float) -> None:
    low, high = sorted((one, two))
    narrow, wide = (bounds(reading(mirrored(workers), level=level)) for level in (low, high))
    assert wide[0] <= narrow[0] + 1e-9
    assert narrow[2] <= wide[2] + 1e-9


@given(st.lists(floats, min_size=2, max_size=40), levels)
def test_the_median_lies_in_its_interval(values: list[float], level: float) -> None:
    interval = stats.median_interval(values, level)
    assert interval.lower - 1e-12 <= interval.mean <= interval.upper + 1e-12


@given(st.floats(0, 1), st.floats(0, 1))
def test_more_noise_never_asks_for_fewer_blocks(one: float, two: float) -> None:
    quiet, noisy = sorted((one, two))
    assert stats.blocks_for(quiet, policy()) <= stats.blocks_for(noisy, policy())
