"""Blocks are mirrored, inputs are shared inside a half and never seen again, and ties go to the simplest."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.measure.schedule import MAX_STEPS, SeedSource, Turn, block, pick_strongest, steps_for

ARMS = {"baseline:eager": 5, "candidate:eager": 5, "sham:eager": 5, "baseline:compile": 7}
TIE = 0.01

plans = st.dictionaries(st.text(min_size=1, max_size=8), st.integers(min_value=1, max_value=50), min_size=1, max_size=6)


def plan_of(arms: dict[str, int] = ARMS, *, settle: int = 1, seed: int = 0, first: int = 100) -> list[Turn]:
    return block(arms, settle=settle, rng=random.Random(seed), seeds=SeedSource(first))


# ---- Blocks


@given(arms=plans, seed=st.integers(min_value=0, max_value=99))
def test_the_second_half_is_the_first_one_mirrored(arms: dict[str, int], seed: int) -> None:
    names = [turn.arm for turn in plan_of(arms, seed=seed)]
    assert names == names[::-1]


@given(arms=plans)
def test_every_arm_runs_exactly_twice_at_rising_positions(arms: dict[str, int]) -> None:
    turns = plan_of(arms)
    assert Counter(turn.arm for turn in turns) == dict.fromkeys(arms, 2)
    assert [turn.position for turn in turns] == list(range(2 * len(arms)))


@given(arms=plans)
def test_mean_position_is_the_same_for_every_arm(arms: dict[str, int]) -> None:
    """This is what takes linear drift out of every contrast."""
    turns = plan_of(arms)
    sums = {arm: sum(turn.position for turn in turns if turn.arm == arm) for arm in arms}
    assert set(sums.values()) == {2 * len(arms) - 1}


def test_the_order_is_drawn_anew_from_the_generator() -> None:
    orders = {tuple(turn.arm for turn in plan_of(seed=seed)) for seed in range(40)}
    assert len(orders) > 10
    assert plan_of(seed=3) == plan_of(seed=3)


@given(arms=plans, settle=st.integers(min_value=0, max_value=5))
def test_within_a_half_every_arm_starts_at_the_same_seed(arms: dict[str, int], settle: int) -> None:
    turns = plan_of(arms, settle=settle)
    halves = turns[: len(arms)], turns[len(arms) :]
    starts = [{turn.seed for turn in half} for half in halves]
    assert [len(start) for start in starts] == [1, 1]
    assert starts[0] != starts[1]


@given(arms=plans, settle=st.integers(min_value=0, max_value=5), blocks=st.integers(min_value=1, max_value=5))
def test_no_arm_ever_sees_a_seed_twice(arms: dict[str, int], settle: int, blocks: int) -> None:
    rng, seeds = random.Random(1), SeedSource(7)
    turns = [turn for _ in range(blocks) for turn in block(arms, settle=settle, rng=rng, seeds=seeds)]
    for arm in arms:
        seen = [seed for turn in turns if turn.arm == arm for seed in turn.seeds]
        assert len(seen) == len(set(seen))


@given(arms=plans, settle=st.integers(min_value=0, max_value=5))
def test_the_two_halves_share_no_seed_whatever_the_arms_lengths(arms: dict[str, int], settle: int) -> None:
    turns = plan_of(arms, settle=settle)
    first = {seed for turn in turns[: len(arms)] for seed in turn.seeds}
    second = {seed for turn in turns[len(arms) :] for seed in turn.seeds}
    assert not first & second


def test_a_turn_has_a_seed_for_each_settle_step_and_each_counted_one() -> None:
    assert Turn("a", 0, steps=3, settle=2, seed=10).seeds == [10, 11, 12, 13, 14]


def test_each_arm_keeps_its_own_number_of_steps() -> None:
    assert {turn.arm: turn.steps for turn in plan_of()} == ARMS


def test_a_seed_source_hands_out_adjoining_ranges() -> None:
    source = SeedSource(5)
    assert [source.take(3), source.take(1), source.take(4)] == [5, 8, 9]


# ---- Length of segments


@pytest.mark.parametrize(
    ("step_s", "steps"),
    [(0.1, 3), (0.01, 25), (0.0099, 26), (1.0, 3), (1e-6, MAX_STEPS), (0.0, MAX_STEPS)],
)
def test_a_segment_is_as_long_as_asked_within_its_limits(step_s: float, steps: int) -> None:
    assert steps == steps_for(step_s, segment_s=0.25, min_steps=3)


# ---- The strongest arm


def test_the_fastest_arm_is_the_strongest() -> None:
    times = {"eager": 1.0, "alternative": 0.8, "compile": 0.9}
    assert pick_strongest(times, list(times), tie=TIE) == "alternative"


def test_arms_within_the_tie_yield_to_the_simplest_of_them() -> None:
    times = {"compile": 1.000, "alternative": 1.005, "eager": 1.009}
    assert pick_strongest(times, ["eager", "alternative", "compile"], tie=TIE) == "eager"


def test_an_arm_just_outside_the_tie_stays_beaten() -> None:
    times = {"eager": 1.0101, "compile": 1.0}
    assert pick_strongest(times, ["eager", "compile"], tie=TIE) == "compile"


def test_exactly_equal_times_go_to_the_simplest_even_without_a_tie() -> None:
    times = {"compile": 1.0, "eager": 1.0}
    assert pick_strongest(times, ["eager", "compile"], tie=0.0) == "eager"


def test_a_tie_is_measured_from_the_fastest_and_does_not_chain() -> None:
    times = {"a": 1.000, "b": 1.009, "c": 1.018}
    assert pick_strongest(times, ["c", "b", "a"], tie=TIE) == "b"


def test_arms_that_were_not_timed_cannot_win() -> None:
    assert pick_strongest({"compile": 2.0}, ["eager", "compile"], tie=TIE) == "compile"
