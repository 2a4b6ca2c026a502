"""METHOD.md B8 in small; `python -m tests.calibration` is the whole of it, by the same code."""

from __future__ import annotations

import pytest

from e2e.configuration import load_policy
from e2e.judge import judge
from tests.calibration import (
    BIMODAL,
    DRIFT,
    HOST_BOUND,
    MARKER,
    MEASURED,
    QUIET,
    SPIKES,
    TYPICAL,
    Bound,
    Row,
    Section,
    Tally,
    Truth,
    measured,
    missed,
    planted,
    report,
    sections,
    written_below,
)
from tests.fakes import CANDIDATE, EAGER, SyntheticClock, Throttle, evidence, policy, timed

RUNS = 40
STANDARD = load_policy("standard")
QUESTIONS = list(sections(STANDARD, load_policy("demo")))
FAST = {MEASURED, QUIET, TYPICAL, DRIFT, SPIKES, BIMODAL}
"""Machines on which a run is short."""
SMALL = [
    pytest.param(section, row, id=f"{section.title} {row.noise.name}: {planted(row.truth)}")
    for section in QUESTIONS
    if section.title[0] in "1345"
    for row in section.rows
    if row.noise in FAST
][::2]
"""Every other row, for a few seconds' work; rates near a bound need more runs than these."""


@pytest.mark.parametrize(("section", "row"), SMALL)
def test_few_runs_keep_the_bounds_of_many(section: Section, row: Row) -> None:
    assert missed(row, measured(row, section.policy, runs=range(RUNS), seed=1)) == []


def test_a_true_loss_of_two_per_cent_is_refuted_at_typical_noise() -> None:
    tally = measured(Row(TYPICAL, Truth(gain=0.98), ()), STANDARD, runs=range(RUNS), seed=1)
    assert tally.share("refuted") >= 0.95


def test_a_step_that_loses_nothing_with_its_op_has_no_headroom() -> None:
    tally = measured(Row(MEASURED, Truth(ceiling=1.0), ()), STANDARD, runs=range(RUNS), seed=1)
    assert tally.share("no_headroom") >= 0.9


def test_twelve_host_bound_workers_confirm_no_five_per_cent_wrongly_nor_surely() -> None:
    tally = measured(Row(HOST_BOUND, Truth(gain=1.05), ()), STANDARD, runs=range(10), seed=1)
    assert tally.share("refuted") == 0
    assert tally.mean_workers > 6


def test_every_item_of_the_acceptance_table_has_its_bounds() -> None:
    assert {"1", "2", "3", "4", "5", "6", "7"} == {section.title[0] for section in QUESTIONS}
    assert all(any(row.bounds for row in section.rows) for section in QUESTIONS)


def test_a_run_does_not_depend_on_how_the_runs_were_divided() -> None:
    row, whole = Row(QUIET, Truth(), ()), Tally()
    for part in (range(2), range(2, 3)):
        whole.merge(measured(row, STANDARD, runs=part, seed=3))
    assert whole == measured(row, STANDARD, runs=range(3), seed=3)


def test_a_missed_bound_is_named_in_the_table() -> None:
    row = Row(QUIET, Truth(), (Bound("confirmed", ">=", 0.95), Bound("refuted", ">=", 0.95)))
    tally = Tally()
    tally.add(judge(evidence(timed(1.0)), policy()), row.truth)
    assert missed(row, tally) == [row.bounds[0]]
    text = report([Section("Equal", STANDARD, (row,))], [[tally]], head="Today.")
    assert "**MISSED: confirmed >= 95 %**" in text
    assert "MISSED: refuted" not in text


def test_a_report_takes_the_place_of_the_last_one() -> None:
    once = written_below(MARKER, f"# Title\n\n{MARKER}\n\nold\n", "new")
    assert once == f"# Title\n\n{MARKER}\n\nnew\n"
    with pytest.raises(ValueError, match="no line"):
        written_below(MARKER, "# Title\n", "new")


def test_a_throttled_arm_says_so_and_runs_at_a_lower_clock() -> None:
    clock = SyntheticClock(0, throttle=Throttle((EAGER,), slowdown=0.25, share=1.0))
    segments = clock.worker({EAGER: 0.01, CANDIDATE: 0.01}, worker=1)
    slow, normal = ([s for s in segments if s.arm == arm] for arm in (EAGER, CANDIDATE))
    assert {True} == {s.throttled for s in slow}
    assert {False} == {s.throttled for s in normal}
    assert (slow[0].seconds / normal[0].seconds) == pytest.approx(1.25)
    assert slow[0].clock_hz is not None
    assert slow[0].clock_hz * slow[0].seconds == pytest.approx((normal[0].clock_hz or 0) * normal[0].seconds)


def test_a_clock_of_two_levels_visits_both() -> None:
    segments = SyntheticClock(0, clock_swing=0.04).worker({EAGER: 0.01, CANDIDATE: 0.01}, worker=1, blocks=40)
    assert len({s.clock_hz for s in segments}) == 2
