"""Runs of planted times on an invented clock, and what the judge makes of them."""

from __future__ import annotations

from collections.abc import Mapping

from e2e import trials
from e2e.arm_names import AS_SHIPPED
from e2e.configuration import load_policy
from e2e.measure.audit import Fingerprint, Replay
from e2e.schema.evidence import Evidence
from e2e.schema.selftest import Trial
from e2e.trials import SHAM, TWIN, Timed
from tests.fakes import STEP_S, SyntheticClock, evidence

POLICY = load_policy("selftest")
PAUSES = trials.pauses_for(STEP_S)
ARMS = [AS_SHIPPED, SHAM, *PAUSES]
RIGHT, WRONG = Fingerprint(1, (1.0, 2.0)), Fingerprint(2, (2.0, 1.0))


def timed_run(
    seed: int,
    *,
    block_sd: float = 0.004,
    worker_sd: float = 0.002,
    twin_speedup: float = 1.0,
    stale: str | None = None,
    pauses: Mapping[str, float] = PAUSES,
) -> Timed:
    """One run; `twin_speedup` is a bias that the harness itself would give to the candidate of identical code."""
    clock = SyntheticClock(seed, block_sd=block_sd, worker_sd=worker_sd)
    arms = [AS_SHIPPED, SHAM, *pauses]
    steps = {arm: STEP_S + pauses.get(arm, 0.0) for arm in arms}
    steps[TWIN] /= twin_speedup
    timed = Timed(seed)
    for worker in range(seed * POLICY.looks[0], (seed + 1) * POLICY.looks[0]):
        timed.segments += clock.worker(steps, worker=worker, blocks=POLICY.blocks)
        timed.pauses[worker] = {arm: pause for arm, pause in pauses.items() if pause}
    timed.digests = {(arm, step): WRONG if arm == stale else RIGHT for arm in arms for step in range(4)}
    timed.replays = [Replay(arm, RIGHT, RIGHT) for arm in arms]
    timed.steps_run = timed.steps_committed = len(timed.digests)
    return timed


def base() -> Evidence:
    return evidence()


def tried(runs: list[Timed]) -> list[Trial]:
    return [trial for timed in runs for trial in trials.trials_of(timed, base(), POLICY, dtype="float32")]


QUIET = [timed_run(seed) for seed in range(20)]
