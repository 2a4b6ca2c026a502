from __future__ import annotations

import pytest

from e2e.judge import judge
from e2e.schema.evidence import StageEnd
from e2e.schema.words import Stage
from e2e.sizing import OVERHEAD, presized, repeat_seconds, worker_seconds, workers_to_decide
from tests import results
from tests.fakes import evidence, policy, timed

STRADDLE = evidence(timed(1.005, block_sd=0.01))


def test_a_wider_interval_needs_more_workers() -> None:
    row = judge(STRADDLE, policy()).latency.against[0]
    rows = [row.model_copy(update={"speedup": results.estimate(1.03, half)}) for half in (0.001, 0.03, 0.05, 0.5)]
    needed = [workers_to_decide(row, policy()) for row in rows]
    assert needed[0] == 5
    assert needed[3] is None
    assert needed[1] is not None and needed[2] is not None
    assert 5 < needed[1] < needed[2]


def test_without_an_interval_no_number_of_workers_is_known() -> None:
    assert workers_to_decide(None, policy()) is None


def test_a_workers_time_is_its_timed_segments_and_the_overhead() -> None:
    segments = STRADDLE.segments
    expected = OVERHEAD * sum(segment.seconds for segment in segments) / 5
    assert worker_seconds(STRADDLE) == pytest.approx(expected)
    assert worker_seconds(evidence()) is None


def test_where_the_stages_are_known_a_workers_time_is_what_it_really_took() -> None:
    ends = [StageEnd(stage=Stage.SCREEN, seconds=56.0), StageEnd(stage=Stage.VERDICT, seconds=221.0)]
    seen = STRADDLE.model_copy(update={"stage_ends": ends})
    assert worker_seconds(seen) == pytest.approx(33.0)
    assert worker_seconds(seen.model_copy(update={"workers_finished": 0})) == worker_seconds(STRADDLE)


def test_a_repeat_gets_the_time_of_the_run_and_of_the_workers_beyond_it() -> None:
    each = worker_seconds(STRADDLE)
    assert each is not None
    assert repeat_seconds(STRADDLE, policy(), workers=5) == 900
    many = repeat_seconds(STRADDLE, policy(), workers=205)
    assert many % 60 == 0
    assert 900 + 200 * each <= many < 900 + 200 * each + 60


def test_a_repeat_has_one_look_at_95_per_cent_and_all_else_of_its_policy() -> None:
    stored = policy(margin=0.02)
    repeat = presized(stored, workers=23, budget_s=1200)
    assert (repeat.looks, repeat.level, repeat.budgets.cell_s) == ([23], 0.95, 1200)
    same = {"looks": stored.looks, "level": stored.level, "budgets": stored.budgets}
    assert repeat.model_copy(update=same) == stored


@pytest.mark.parametrize(
    ("looks", "level", "expected"), [([5], 0.95, 0.95), ([5], 0.8, 0.95), ([5], 0.99, 0.99), ([5, 8, 12], 0.999, 0.997)]
)
def test_a_strict_policy_stays_strict_and_a_lenient_one_becomes_usual(
    looks: list[int], level: float, expected: float
) -> None:
    repeat = presized(policy(looks=looks, level=level), workers=9, budget_s=60)
    assert repeat.level == pytest.approx(expected)
