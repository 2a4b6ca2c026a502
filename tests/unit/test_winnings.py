"""What an op costs and the most that a kernel could win, from invented blocks with known answers."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from e2e.schema.evidence import Evidence, Segment
from e2e.winnings import relative_times, strongest_of, winnings_of
from tests.fakes import ALTERNATIVE, EAGER, HEADROOM, STEP_S, SyntheticClock, arm, evidence, policy, segment

COMPILED, COMPILED_HEADROOM = "baseline:compile", "headroom:compile"
POLICY = policy(ceiling_level=0.95)


def timed(steps: Mapping[str, float], *, blocks: int = 10, noise: float = 0.001, seed: int = 1) -> Evidence:
    """Arms with those steps, in blocks of one process; the first two are the pilot's."""
    clock = SyntheticClock(seed, block_sd=noise)
    pilot = clock.worker(steps, worker=0, blocks=2, phase="pilot")
    rest = clock.worker(steps, worker=0, blocks=blocks, phase="ceiling")
    return evidence([*pilot, *rest], arms=[arm(name) for name in steps], baseline=None, candidate=None)


def test_share_ceiling_and_half_the_op_are_those_that_were_planted() -> None:
    found = winnings_of(timed({EAGER: STEP_S, HEADROOM: 0.9 * STEP_S}), POLICY)
    assert found.share is not None
    assert found.ceiling is not None
    assert found.share.lower_bound <= 0.1 <= found.share.upper_bound
    assert found.share.point_estimate == pytest.approx(0.1, abs=0.003)
    assert found.ceiling.point_estimate == pytest.approx(1 / 0.9, rel=0.003)
    assert found.twice_as_fast == pytest.approx(1 / 0.95, rel=0.003)
    assert (found.worth, found.strongest, found.ceiling.look) == ("yes", EAGER, 1)


def test_the_ceiling_is_against_the_strongest_path_and_the_share_of_the_step_as_shipped() -> None:
    steps = {EAGER: STEP_S, ALTERNATIVE: 0.905 * STEP_S, HEADROOM: 0.9 * STEP_S}
    found = winnings_of(timed(steps), POLICY)
    assert found.strongest == ALTERNATIVE
    assert found.share is not None
    assert found.ceiling is not None
    assert found.share.point_estimate == pytest.approx(0.1, abs=0.003)
    assert found.ceiling.point_estimate == pytest.approx(0.905 / 0.9, rel=0.003)
    assert found.worth == "no"
    (free,) = found.alternatives
    assert free.name == "F.rms_norm"
    assert free.speedup is not None
    assert free.speedup.point_estimate == pytest.approx(1 / 0.905, rel=0.003)


def test_a_mode_without_the_op_replaced_by_nothing_has_no_ceiling_and_says_why() -> None:
    made = timed({EAGER: STEP_S, HEADROOM: 0.9 * STEP_S, COMPILED: 0.5 * STEP_S})
    skipped = arm(COMPILED_HEADROOM, status="skipped", reason="compiling takes about 40 s", step_s=None)
    found = winnings_of(made.model_copy(update={"arms": [*made.arms, skipped]}), POLICY)
    assert (found.strongest, found.ceiling, found.twice_as_fast, found.worth) == (COMPILED, None, None, None)
    assert found.ceiling_reason == "the op replaced by nothing, in mode compile: compiling takes about 40 s"
    assert found.share is not None, "how much of the eager step it is, is known all the same"


def test_an_arm_that_compiled_while_it_was_timed_speaks_for_nothing() -> None:
    made = timed({EAGER: STEP_S, HEADROOM: 0.9 * STEP_S})
    found = winnings_of(made.model_copy(update={"recompiles": [HEADROOM]}), POLICY)
    assert (found.share, found.ceiling, found.worth) == (None, None, None)
    assert found.ceiling_reason == f"{HEADROOM} compiled while it was timed"


def test_an_arm_that_failed_keeps_its_reason_and_has_no_speed() -> None:
    made = timed({EAGER: STEP_S, HEADROOM: 0.9 * STEP_S})
    failed = arm(ALTERNATIVE, status="failed", reason="it raised", step_s=None)
    (row,) = winnings_of(made.model_copy(update={"arms": [*made.arms, failed]}), POLICY).alternatives
    assert (row.speedup, row.reason) == (None, "it raised")


@pytest.mark.parametrize(("headroom", "worth"), [(0.9, "yes"), (0.999, "no"), (0.99, "maybe")])
def test_worth_says_for_certain_perhaps_or_not(headroom: float, worth: str) -> None:
    assert winnings_of(timed({EAGER: STEP_S, HEADROOM: headroom * STEP_S}, noise=0.004), POLICY).worth == worth


def test_nothing_timed_is_unknown_and_not_zero() -> None:
    found = winnings_of(evidence(arms=[arm(EAGER)], baseline=None), POLICY)
    assert (found.share, found.ceiling, found.strongest, found.worth) == (None, None, None, None)
    assert found.ceiling_reason == "no arm was timed"


def disturbed(arms: Mapping[str, float]) -> list[Segment]:
    """Blocks of which the middle ones met a machine that was ten times as slow; one arm missed half of those."""
    found = []
    for block in range(9):
        slow = 10.0 if 2 <= block <= 6 else 1.0
        order = [*arms, *reversed(arms)]
        found += [
            segment(name, 3 * slow * arms[name], 0, block, place, phase="ceiling") for place, name in enumerate(order)
        ]
    return found


def test_a_machine_that_slows_for_a_while_does_not_choose_the_strongest() -> None:
    segments = disturbed({EAGER: STEP_S, COMPILED: 0.8 * STEP_S})
    hidden = [s for s in segments if not (s.arm == EAGER and 2 <= s.block <= 6)]
    made = evidence(hidden, arms=[arm(EAGER), arm(COMPILED)], baseline=None)
    assert strongest_of(made, POLICY) == COMPILED, "medians over segments would say eager"
    assert relative_times(made)[COMPILED] == pytest.approx(0.8)


def test_a_tie_goes_to_the_simpler_path() -> None:
    made = timed({EAGER: STEP_S, ALTERNATIVE: 0.9995 * STEP_S, COMPILED: 0.999 * STEP_S}, noise=0.0)
    assert strongest_of(made, POLICY) == EAGER
