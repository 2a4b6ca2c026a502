"""METHOD.md B8 in small: an invented clock drives the real decision code, seeded."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest

from e2e.judge import decided, judge
from e2e.schema.evidence import Segment
from e2e.schema.policy import Policy
from e2e.schema.words import Outcome
from e2e.stats import blocks_for
from tests.fakes import CANDIDATE, EAGER, SHAM, SyntheticClock, evidence, policy

RUNS = 100


@dataclass(frozen=True)
class Noise:
    """One column of METHOD.md B8's tables."""

    block_sd: float
    worker_sd: float
    drift: float = 0.0


QUIET = Noise(0.005, 0.002)
TYPICAL = Noise(0.01, 0.003)
DRIFTING = Noise(0.005, 0.002, drift=0.02)


def run(seed: int, noise: Noise, *, gain: float = 1.0, bias: float = 1.0) -> Outcome | None:
    """One run: workers until a look decides, then the verdict. A harness bias hits sham and candidate."""
    rules = policy()
    clock = SyntheticClock(seed, block_sd=noise.block_sd, worker_sd=noise.worker_sd, drift=noise.drift)
    steps = {EAGER: 0.01, CANDIDATE: 0.01 / gain / bias, SHAM: 0.01 / bias}
    segments: list[Segment] = []
    for worker in range(rules.looks[-1]):
        segments += clock.worker(steps, worker=worker, blocks=blocks_for(noise.block_sd, rules))
        if worker + 1 in rules.looks and decided(evidence(segments, baseline=EAGER), rules):
            break
    return outcome_of(segments, rules)


def outcome_of(segments: list[Segment], rules: Policy) -> Outcome | None:
    return judge(evidence(segments, baseline=EAGER), rules).outcome


@pytest.mark.parametrize("noise", [QUIET, TYPICAL, DRIFTING])
def test_equal_code_is_never_confirmed_and_nearly_always_refuted(noise: Noise) -> None:
    outcomes = Counter(run(seed, noise) for seed in range(RUNS))
    assert outcomes[Outcome.CONFIRMED] == 0
    assert outcomes[Outcome.REFUTED] >= 0.95 * RUNS


def test_a_true_gain_of_three_per_cent_is_confirmed_at_typical_noise() -> None:
    outcomes = Counter(run(seed, TYPICAL, gain=1.03) for seed in range(RUNS))
    assert outcomes[Outcome.CONFIRMED] >= 0.95 * RUNS


def test_a_true_loss_of_two_per_cent_is_refuted_at_typical_noise() -> None:
    outcomes = Counter(run(seed, TYPICAL, gain=0.98) for seed in range(RUNS // 2))
    assert outcomes[Outcome.REFUTED] >= 0.95 * RUNS // 2


def test_a_bias_of_the_harness_itself_is_not_confirmed_as_a_gain() -> None:
    outcomes = Counter(run(seed, QUIET, bias=1.015) for seed in range(RUNS))
    assert outcomes[Outcome.CONFIRMED] <= 0.01 * RUNS
