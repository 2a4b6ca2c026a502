"""Other tools' and authors' number tables, and their rules for them: ours claims no more than they do.

Every pair of runs of a table becomes the most that it could be here: a worker process of its own, with as many mirrored
blocks as the policy asks for, all of which read exactly that pair's gain.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from e2e.judge import decided, judge
from e2e.schema.evidence import Segment
from e2e.schema.verdict import Verdict
from e2e.schema.words import Outcome, ReasonCode
from tests.fakes import CANDIDATE, EAGER, SHAM, STEP_S, SyntheticClock, evidence, policy, segment

RULES = policy()
ONE_PAIR = [-5.0]
"""GEAK#318: a kernel, 1.25x alone, measured once in the model."""
OPPOSITE_SIGNS = [2.19, -2.89]
"""torchtitan PR#4832: two repeats of the whole step; its author wrote "inconclusive"."""
REPEAT_DISAGREES = [-2.396, 0.174]
"""vllm-musa PR#168, batch 1: first order and adjacent repeat; "neutral"."""
THREE_RUNS = [100 * (new / old - 1) for old, new in [(304.6, 313.1), (307.7, 310.8), (307.6, 315.1)]]
"""sparkinfer PR#984, tokens per second: "a stable >= 2 % gain is NOT established"."""
THREE_BLOCKS = [3.0, 3.1, 2.9]
"""flameox calls an interval from three blocks valid."""


def of_pairs(gains_percent: Sequence[float]) -> list[Segment]:
    clock = SyntheticClock(0)
    return [
        found
        for worker, gain in enumerate(gains_percent)
        for found in clock.worker({EAGER: STEP_S, CANDIDATE: STEP_S / (1 + gain / 100), SHAM: STEP_S}, worker=worker)
    ]


def judged(segments: Sequence[Segment]) -> Verdict:
    return judge(evidence(segments, baseline=EAGER), RULES)


def spread(mean: float, sd: float, workers: int) -> list[float]:
    """So many numbers with this mean and standard deviation."""
    ramp = [place - (workers - 1) / 2 for place in range(workers)]
    scale = (sum(value**2 for value in ramp) / (workers - 1)) ** 0.5
    return [mean + sd * value / scale for value in ramp]


@pytest.mark.parametrize("gains", [ONE_PAIR, OPPOSITE_SIGNS, REPEAT_DISAGREES, THREE_RUNS, THREE_BLOCKS])
def test_fewer_pairs_than_a_first_look_needs_decide_nothing(gains: list[float]) -> None:
    verdict = judged(of_pairs(gains))
    assert Outcome.INCONCLUSIVE is verdict.outcome
    assert ReasonCode.TOO_FEW_WORKERS is verdict.reasons[0].code


@pytest.mark.parametrize("gains", [OPPOSITE_SIGNS, REPEAT_DISAGREES])
@pytest.mark.parametrize("workers", RULES.looks)
def test_no_gain_is_confirmed_while_repeats_go_on_to_have_opposite_signs(gains: list[float], workers: int) -> None:
    verdict = judged(of_pairs((gains * workers)[:workers]))
    assert verdict.outcome is not Outcome.CONFIRMED


@pytest.mark.parametrize("workers", RULES.looks)
def test_repeats_of_opposite_signs_around_the_margin_are_inconclusive(workers: int) -> None:
    around = [RULES.margin * 100 + gain for gain in (2.5, -2.5)]
    evidence_ = evidence(of_pairs((around * workers)[:workers]), baseline=EAGER)
    assert Outcome.INCONCLUSIVE is judge(evidence_, RULES).outcome
    assert not decided(evidence_, RULES)


@pytest.mark.parametrize("workers", RULES.looks)
def test_a_median_gain_half_as_large_as_its_spread_is_inconclusive(workers: int) -> None:
    """local-inference-lab/vllm#407: +1.44 %, run-to-run variation 2.84 %, p = 0.065."""
    assert Outcome.INCONCLUSIVE is judged(of_pairs(spread(1.44, 2.84, workers))).outcome


def test_twenty_four_pairs_of_three_processes_are_three_processes() -> None:
    """omlx PR#3492: 2.31 % (1.07 to 3.55) from 24 pairs; what varies between processes is not in that interval."""
    assert ReasonCode.TOO_FEW_WORKERS is judged(of_pairs(spread(2.31, 2.93, 3))).reasons[0].code


def test_the_same_interval_from_processes_is_confirmed_only_above_the_margin() -> None:
    assert Outcome.CONFIRMED is judged(of_pairs(spread(2.31, 0.8, 12))).outcome
    assert Outcome.INCONCLUSIVE is judged(of_pairs(spread(2.31, 2.93, 12))).outcome


@pytest.mark.parametrize("gains", [[0.0, 1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0, 5.0]])
def test_a_gain_that_climbs_from_process_to_process_has_not_settled(gains: list[float]) -> None:
    """Hyperloom refuses a monotone climb."""
    assert Outcome.INCONCLUSIVE is judged(of_pairs(gains)).outcome


def test_a_machine_that_speeds_up_all_the_time_is_not_a_faster_candidate() -> None:
    clock = SyntheticClock(0, drift=-0.2)
    workers = [clock.worker(dict.fromkeys((EAGER, CANDIDATE, SHAM), STEP_S), worker=number) for number in range(5)]
    verdict = judged([found for worker in workers for found in worker])
    assert verdict.outcome is not Outcome.CONFIRMED
    assert verdict.latency.against[0].speedup.point_estimate == pytest.approx(1.0)


def test_a_baseline_block_and_then_a_candidate_block_are_no_evidence() -> None:
    """What nearly every peer does: under a climb the second one wins."""
    times = [(EAGER, 1.00), (EAGER, 0.98), (CANDIDATE, 0.96), (CANDIDATE, 0.94)]
    segments = [
        segment(arm, seconds, worker, block, position)
        for worker in range(5)
        for block in range(8)
        for position, (arm, seconds) in enumerate(times)
    ]
    verdict = judged(segments)
    assert Outcome.INCONCLUSIVE is verdict.outcome
    assert [] == verdict.latency.against
