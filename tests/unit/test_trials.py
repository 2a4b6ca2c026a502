"""The self-test's own judgement, on an invented clock: planted effects of known size through the real judge."""

from __future__ import annotations

import math

import pytest

from e2e import trials
from e2e.arm_names import AS_SHIPPED
from e2e.schema.selftest import Catch, Effect
from e2e.schema.words import Outcome, ReasonCode
from e2e.trials import CANDIDATE, SHAM, TWIN, Timed
from tests.fakes import STEP_S
from tests.planted import ARMS, POLICY, QUIET, base, timed_run, tried


def by_effect(runs: list[Timed]) -> dict[float, Effect]:
    return {effect.planted: effect for effect in trials.effects_of(tried(runs))}


# ---- Effects


def test_every_planted_effect_is_tried_as_a_gain_and_as_a_loss_beside_identical_code() -> None:
    assert [0.0, 0.01, 0.02, 0.05, -0.01, -0.02, -0.05] == [scene.planted for scene in trials.scenes()]
    assert all(len(scene.parts()) == 3 for scene in trials.scenes()), "three different arms"


def test_on_a_quiet_machine_the_gains_are_found_and_nothing_else_is() -> None:
    effects = by_effect(QUIET)
    assert (0, 20) == (effects[0.0].confirmed, effects[0.0].refuted)
    assert 20 == effects[0.05].confirmed
    assert effects[0.02].confirmed >= 16
    assert 0 == effects[-0.01].confirmed + effects[-0.02].confirmed + effects[-0.05].confirmed
    assert 20 == effects[-0.05].refuted
    assert [] == trials.faults_of(list(effects.values()), [])


def test_the_interval_contains_the_truth_that_the_pauses_made() -> None:
    effects = by_effect(QUIET)
    assert effects[0.05].true_speedup == pytest.approx(1.05, rel=2e-3)
    assert effects[-0.05].true_speedup == pytest.approx(1 / 1.05, rel=2e-3)
    assert 1.0 == effects[0.0].true_speedup
    assert all(effect.covered >= 0.9 * effect.runs for effect in effects.values())


def test_a_pause_longer_than_planned_moves_the_truth_and_not_the_coverage() -> None:
    timed = timed_run(3)
    arm = trials.slowed(0.05, "a")
    for pauses in timed.pauses.values():
        pauses[arm] *= 1.4
    scene = next(scene for scene in trials.scenes() if scene.planted == 0.05)
    assert trials.true_speedup(timed, scene) == pytest.approx(1.07, rel=3e-3)
    (trial,) = [trial for trial in tried([timed]) if trial.planted == 0.05]
    assert not trial.is_covered, "the clock did not pause that long"


def test_a_noisy_machine_confirms_nothing_false_and_is_said_to_show_no_power() -> None:
    effects = by_effect([timed_run(seed, block_sd=0.15, worker_sd=0.06) for seed in range(20)])
    assert 0 == sum(effects[planted].confirmed for planted in effects if planted <= 0)
    (doubt,) = trials.doubts_of(list(effects.values()))
    assert "a gain of 5 %" in doubt
    assert "too noisy" in doubt


def test_identical_code_alone_is_tried_without_gains_and_nothing_is_missed_then() -> None:
    alone = trials.pauses_for(STEP_S, sizes=())
    found = tried([timed_run(seed, pauses=alone) for seed in range(5)])
    assert {trial.planted for trial in found} == {0.0} and len(found) == 5
    (effect,) = trials.effects_of(found)
    assert (effect.runs, effect.confirmed) == (5, 0)
    assert trials.doubts_of([effect]) == [] == trials.faults_of([effect], [])
    biased = trials.effects_of(tried([timed_run(seed, pauses=alone, twin_speedup=1.05) for seed in range(5)]))
    assert trials.faults_of(biased, []), "a gain that nobody planted is a fault, alone or not"


def test_no_finished_run_is_a_doubt_and_not_a_pass() -> None:
    (doubt,) = trials.doubts_of([])
    assert "--budget" in doubt


# ---- What must not happen


def test_a_harness_that_flatters_identical_code_is_a_fault() -> None:
    effects = list(by_effect([timed_run(seed, twin_speedup=1.04) for seed in range(5)]).values())
    faults = trials.faults_of(effects, [])
    assert any("identical code was CONFIRMED" in fault for fault in faults)


def test_intervals_that_miss_the_truth_too_often_are_a_fault() -> None:
    missing = effect(0.02, runs=20, covered=12)
    assert ["a gain of 2 %: the interval contained the truth in only 12 of 20 runs"] == trials.faults_of([missing], [])
    assert [] == trials.faults_of([effect(0.02, runs=20, covered=16)], []), "chance gives that once in 25 times"


def test_where_others_use_the_machine_a_missed_truth_is_a_doubt_and_no_fault() -> None:
    missing = effect(0.02, runs=20, covered=12).model_copy(update={"quiet_runs": 2, "quiet_covered": 1})
    assert [] == trials.faults_of([missing], [])
    assert "missed the truth of a gain of 2 %" in trials.doubts_of([missing])[-1]
    assert 1 == len(trials.doubts_of([effect(0.02, runs=20, covered=20)])), "only the power is not shown"


def test_identical_code_that_is_called_wrong_is_a_fault() -> None:
    effects = by_effect([timed_run(1, stale=TWIN)])
    assert 1 == effects[0.0].other
    assert any("called wrong" in fault for fault in trials.faults_of(list(effects.values()), []))


@pytest.mark.parametrize(
    ("kind", "outcome", "words"),
    [
        ("wrong", None, "was not caught"),
        ("wrong", Outcome.INCONCLUSIVE, "was not caught"),
        ("wrong", Outcome.INCORRECT, None),
        ("wrong", Outcome.FAILED, None),
        ("honest", None, None),
        ("honest", Outcome.INCORRECT, "was accused"),
        ("honest", Outcome.INCONCLUSIVE, "was accused"),
    ],
)
def test_wrong_kernels_must_be_caught_and_honest_ones_pass(
    kind: str, outcome: Outcome | None, words: str | None
) -> None:
    catch = Catch.model_validate(
        {"op": "rms_norm", "kernel": "zeros", "kind": kind, "stage": "check", "outcome": outcome, "codes": []}
    )
    faults = trials.faults_of([], [catch])
    assert (words is not None) == bool(faults)
    assert words is None or words in faults[0]


def effect(planted: float, *, runs: int, covered: int) -> Effect:
    return Effect(
        planted=planted,
        runs=runs,
        true_speedup=1 + planted,
        mean_estimate=1 + planted,
        covered=covered,
        quiet_runs=runs,
        quiet_covered=covered,
        confirmed=0,
        refuted=0,
        inconclusive=runs,
        other=0,
    )


# ---- Flags and noise


def test_flags_over_identical_code_are_counted_and_interval_words_are_not() -> None:
    alarms = {alarm.code: alarm.runs for alarm in trials.alarms_of(tried(QUIET[:5]))}
    assert ReasonCode.BELOW_MARGIN not in alarms
    noisy = [timed_run(seed, block_sd=0.15, worker_sd=0.06) for seed in range(5)]
    assert 5 == {alarm.code: alarm.runs for alarm in trials.alarms_of(tried(noisy))}[ReasonCode.NOISY]


def test_the_noise_floor_is_the_clocks_own() -> None:
    noise = trials.noise_of(QUIET, POLICY, opening_s=2.0, timed_s=9.0)
    assert noise is not None
    assert noise.block_sd == pytest.approx(0.004, rel=0.35)
    assert 0.001 < noise.worker_sd < 0.004
    assert noise.seconds_per_worker == pytest.approx(2.0 + 9.0 * 4 / len(ARMS))
    assert math.expm1(2.0 * noise.worker_sd / 5**0.5) < noise.half_width < math.expm1(5.0 * noise.worker_sd / 5**0.5)


def test_more_minutes_resolve_smaller_effects_and_too_few_nothing() -> None:
    noise = trials.noise_of(QUIET, POLICY, opening_s=30.0, timed_s=45.0)
    assert noise is not None
    rows = trials.resolvable(noise, POLICY)
    assert 5.0 == rows[0].minutes, "five workers of 50 s take more than two minutes"
    assert [row.effect for row in rows] == sorted((row.effect for row in rows), reverse=True)


def test_without_a_run_there_is_no_noise_floor() -> None:
    assert trials.noise_of([], POLICY, opening_s=1.0, timed_s=1.0) is None


def test_the_candidate_of_identical_code_takes_the_place_that_a_kernel_has() -> None:
    scene = trials.scenes()[0]
    seen = trials.staged(QUIET[0], scene, base(), dtype="float32")
    assert (AS_SHIPPED, CANDIDATE) == (seen.baseline, seen.candidate)
    assert {AS_SHIPPED, CANDIDATE, SHAM} == {segment.arm for segment in seen.segments}
    assert seen.audit is not None
    assert (4, []) == (seen.audit.steps_compared, seen.audit.disagreements)
