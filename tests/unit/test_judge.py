from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e2e.judge import decided, exit_code, judge
from e2e.schema.evidence import CleanTime, DeviceFacts, Evidence, Fault, MutantCheck, Telemetry, Where
from e2e.schema.policy import Policy
from e2e.schema.verdict import Verdict
from e2e.schema.words import EXIT_CODES, Label, Outcome, ReasonCode, ReasonKind, Stage, kind_of
from tests.fakes import (
    ALTERNATIVE,
    CANDIDATE,
    EAGER,
    HEADROOM,
    SHAM,
    STEP_S,
    arm,
    arms,
    audit,
    clean_times,
    engagement,
    evidence,
    model_check,
    op_check,
    policy,
    site,
    steps_of,
    stopped_at,
    synthetic_segments,
    timed,
    training,
    with_ceiling,
)

WIN, TIE, LOSS = timed(1.05), timed(1.0), timed(0.95)
STRADDLE = timed(1.01, block_sd=0.01)


def codes(verdict: Verdict) -> list[ReasonCode]:
    return [reason.code for reason in verdict.reasons]


def headline(verdict: Verdict) -> ReasonCode:
    return verdict.reasons[0].code


def message(verdict: Verdict, code: ReasonCode) -> str:
    return next(reason.message for reason in verdict.reasons if reason.code is code)


def judged(segments: Any = (), rules: Policy | None = None, **changes: Any) -> Verdict:
    return judge(evidence(segments, **changes), rules or policy())


# The interval rule


def test_a_gain_clear_of_margin_and_identical_code_is_confirmed() -> None:
    verdict = judged(WIN)
    assert (Outcome.CONFIRMED, None) == (verdict.outcome, verdict.label)
    assert [ReasonCode.GAIN_CONFIRMED] == codes(verdict)
    assert verdict.latency.outcome is Outcome.CONFIRMED


def test_equal_code_is_refuted_as_below_the_margin() -> None:
    verdict = judged(TIE)
    assert (Outcome.REFUTED, Label.BELOW_MARGIN) == (verdict.outcome, verdict.label)
    assert headline(verdict) is ReasonCode.BELOW_MARGIN


def test_a_gain_over_eager_alone_is_matched_by_the_alternative_and_says_which() -> None:
    verdict = judged(timed(1.159, alternative=1.159))
    assert (Outcome.REFUTED, Label.MATCHED_BY_PYTORCH) == (verdict.outcome, verdict.label)
    assert "F.rms_norm" in verdict.reasons[0].message
    assert [Outcome.REFUTED, Outcome.CONFIRMED] == [row.outcome for row in verdict.latency.against]


def test_slower_than_the_strongest_path_is_a_regression_even_when_faster_than_eager() -> None:
    verdict = judged(timed(1.26, alternative=1.29))
    assert (Outcome.REFUTED, Label.REGRESSION) == (verdict.outcome, verdict.label)


def test_a_loss_within_the_margin_is_no_regression() -> None:
    assert judged(timed(0.995)).label is Label.BELOW_MARGIN


def test_an_interval_across_the_margin_is_inconclusive_and_says_what_is_ruled_out() -> None:
    verdict = judged(STRADDLE)
    assert (Outcome.INCONCLUSIVE, None) == (verdict.outcome, verdict.label)
    assert headline(verdict) is ReasonCode.INTERVAL_STRADDLES
    assert "no gain above" in verdict.reasons[0].message
    assert "no loss" in verdict.reasons[0].message


def test_the_policy_says_which_opponent_decides() -> None:
    segments = timed(1.159, alternative=1.159)
    verdict = judged(segments, policy(decides="as_shipped"), baseline=ALTERNATIVE)
    assert verdict.outcome is Outcome.CONFIRMED


def test_opponents_are_listed_in_the_policys_order_with_their_steps() -> None:
    rows = judged(WIN, policy(opponents=["as_shipped", "best_pytorch"])).latency.against
    assert [(EAGER, "as_shipped"), (ALTERNATIVE, "best_pytorch")] == [(r.arm, r.opponent) for r in rows]
    assert rows[0].arm_step_s == pytest.approx(0.01, rel=0.02)
    assert rows[0].candidate_step_s == pytest.approx(0.01 / 1.05, rel=0.02)


def test_segments_that_chose_the_arms_are_no_part_of_the_interval() -> None:
    pilots = synthetic_segments(steps_of({ALTERNATIVE: 1, CANDIDATE: 2, SHAM: 1}), phase="pilot", first_worker=1)
    assert judged(pilots + TIE).outcome is Outcome.REFUTED


def test_the_latency_block_counts_blocks_and_processes_behind_the_interval() -> None:
    latency = judged(WIN).latency
    assert (40, 5) == (latency.blocks, latency.processes)
    row = latency.against[0].speedup
    assert latency.half_width == pytest.approx((row.upper_bound - row.lower_bound) / 2)
    assert (5, 0.9779) == (row.look, row.confidence_level)


def test_a_half_done_worker_does_not_count() -> None:
    extra = synthetic_segments(steps_of({ALTERNATIVE: 1, CANDIDATE: 9, SHAM: 1}), workers=1, blocks=3, first_worker=900)
    assert judged(TIE + extra).latency == judged(TIE).latency


# Identical code


def test_a_gain_that_identical_code_shows_too_is_inconclusive() -> None:
    verdict = judged(timed(1.05, sham=1.05))
    assert Outcome.INCONCLUSIVE is verdict.outcome
    assert headline(verdict) is ReasonCode.IDENTICAL_CODE_DIFFERS


def test_a_gain_far_above_what_identical_code_shows_is_confirmed() -> None:
    assert judged(timed(1.10, sham=1.02)).outcome is Outcome.CONFIRMED


def test_a_gain_without_any_identical_code_control_is_inconclusive() -> None:
    verdict = judged(WIN, arms=arms(sham={"status": "failed"}))
    assert (Outcome.INCONCLUSIVE, ReasonCode.IDENTICAL_CODE_DIFFERS) == (verdict.outcome, headline(verdict))
    assert verdict.latency.sham is None


def test_no_gain_needs_no_identical_code_control() -> None:
    assert judged(TIE, arms=arms(sham={"status": "failed"})).outcome is Outcome.REFUTED


def test_a_swap_that_slows_identical_code_as_much_as_the_candidate_refutes_nothing() -> None:
    verdict = judged(timed(0.985, sham=0.985))
    assert (Outcome.INCONCLUSIVE, ReasonCode.IDENTICAL_CODE_DIFFERS) == (verdict.outcome, headline(verdict))


def test_a_gain_hidden_by_the_swaps_own_cost_is_not_refuted() -> None:
    verdict = judged(timed(1.0, sham=0.97))
    assert (Outcome.INCONCLUSIVE, ReasonCode.IDENTICAL_CODE_DIFFERS) == (verdict.outcome, headline(verdict))


def test_a_loss_beyond_the_swaps_own_cost_is_refuted() -> None:
    assert judged(timed(0.90, sham=0.98)).label is Label.REGRESSION


def test_a_difference_of_identical_code_within_half_the_margin_is_no_flag() -> None:
    assert judged(timed(1.0, sham=0.997)).outcome is Outcome.REFUTED


# Headroom and ceiling


def test_an_op_too_cheap_to_win_the_margin_is_refuted_without_the_long_run() -> None:
    verdict = judged(with_ceiling(1.002), stage_finished=Stage.SCREEN, audit=None)
    assert (Outcome.REFUTED, Label.NO_HEADROOM) == (verdict.outcome, verdict.label)
    assert [ReasonCode.NO_HEADROOM] == codes(verdict)
    assert "no kernel for it can win" in verdict.reasons[0].message
    assert verdict.latency.outcome is Outcome.REFUTED


def test_a_ceiling_from_too_few_workers_decides_nothing() -> None:
    verdict = judged(with_ceiling(1.002) + WIN, policy(ceiling_workers=3))
    assert verdict.outcome is Outcome.CONFIRMED


def test_a_ceiling_that_allows_the_margin_decides_nothing() -> None:
    verdict = judged(with_ceiling(1.2) + TIE)
    assert headline(verdict) is ReasonCode.BELOW_MARGIN
    assert verdict.latency.ceiling is not None
    assert verdict.latency.ceiling.look == 2


def test_what_chose_the_arms_is_no_part_of_their_ceiling() -> None:
    pilot = with_ceiling(1.002, workers=2, phase="pilot")
    assert judged(pilot, stage_finished=Stage.SCREEN).latency.ceiling is None
    timed = with_ceiling(1.002, workers=2, phase="ceiling")
    assert judged(timed, stage_finished=Stage.SCREEN).label is Label.NO_HEADROOM


@pytest.mark.parametrize("ratio", [1 / 1.3, 1.3])
def test_a_baseline_that_is_another_one_without_the_candidate_blocks(ratio: float) -> None:
    """Slower in its company, or a clean process so slow that nothing could be seen."""
    verdict = judged(WIN, clean_times=clean_times(WIN, ratio=ratio))
    assert (Outcome.INCONCLUSIVE, ReasonCode.BASELINE_UNFAIR) == (verdict.outcome, headline(verdict))
    assert judged(WIN, clean_times=clean_times(WIN, ratio=1 / 1.02)).outcome is Outcome.CONFIRMED


def test_a_gain_no_larger_than_what_the_candidates_company_costs_the_baseline_is_none() -> None:
    """Spinning in PyTorch's own function for a few microseconds slows the opponent by a few per cent."""
    assert judged(WIN, clean_times=clean_times(WIN, ratio=1 / 1.06)).outcome is Outcome.INCONCLUSIVE
    large = timed(1.30)
    assert judged(large, clean_times=clean_times(large, ratio=1 / 1.06)).outcome is Outcome.CONFIRMED


def test_each_worker_is_compared_with_the_clean_times_of_its_own_moment() -> None:
    """A neighbour of a virtual machine slows everything down for a while: that is nobody's company."""
    workers = sorted({s.worker for s in WIN})
    slow = [s.model_copy(update={"seconds": 1.4 * s.seconds}) if s.worker == workers[0] else s for s in WIN]
    paired = [
        item.model_copy(update={"worker": worker, "step_s": item.step_s * (1.4 if worker == workers[0] else 1.0)})
        for worker in workers
        for item in clean_times(WIN)
    ]
    assert judged(slow, clean_times=paired).outcome is Outcome.CONFIRMED
    late = [item.model_copy(update={"step_s": item.step_s / 1.3}) for item in paired]
    assert headline(judged(slow, clean_times=late)) is ReasonCode.BASELINE_UNFAIR


def test_a_gain_counts_only_if_pytorch_was_also_timed_without_the_candidate() -> None:
    verdict = judged(WIN, clean_times=[])
    assert (Outcome.INCONCLUSIVE, ReasonCode.BASELINE_UNFAIR) == (verdict.outcome, headline(verdict))
    assert judged(LOSS, clean_times=[]).outcome is Outcome.REFUTED


COMPILED, OTHER_MODE = "baseline:compile", "candidate:compile"


def compiled_win(*, clean: dict[str, float], **baseline: Any) -> Verdict:
    """The candidate's best mode is compile; what became of that mode's baseline is up to the test.

    `clean` has baselines' steps without the candidate, over those beside it.
    """
    found = [*arms(), arm(OTHER_MODE), arm(COMPILED, **baseline)]
    segments = synthetic_segments(steps_of({ALTERNATIVE: 1.0, OTHER_MODE: 1.05, SHAM: 1.0}))
    own = [*clean_times(segments), *(CleanTime(arm=name, step_s=STEP_S * ratio) for name, ratio in clean.items())]
    return judged(segments, arms=found, candidate=OTHER_MODE, clean_times=own)


def test_a_mode_that_only_the_candidate_has_is_no_win_over_pytorch() -> None:
    """A kernel that makes the compiler fail for everybody else would take credit for the compiler."""
    failed = compiled_win(status="failed", reason="BackendCompilerFailed", step_s=None, clean={})
    assert (Outcome.INCONCLUSIVE, ReasonCode.BASELINE_UNFAIR) == (failed.outcome, headline(failed))


def test_a_win_in_a_mode_that_no_opponent_has_needs_that_mode_timed_without_the_candidate() -> None:
    """A kernel that slows the compiled baseline down in the tournament makes eager the one to beat."""
    assert compiled_win(clean={COMPILED: 1.04}).outcome is Outcome.CONFIRMED
    unseen, faster = compiled_win(clean={}), compiled_win(clean={COMPILED: 0.94})
    assert (unseen.outcome, faster.outcome) == (Outcome.INCONCLUSIVE, Outcome.INCONCLUSIVE)
    assert "in the candidate's own mode, compile" in message(unseen, ReasonCode.BASELINE_UNFAIR)
    assert "baseline:compile is 1.06x as fast" in message(faster, ReasonCode.BASELINE_UNFAIR)


def test_a_baseline_that_fails_only_beside_the_candidate_blocks_whatever_the_candidates_mode() -> None:
    other = arm("baseline:compile", status="failed", reason="BackendCompilerFailed")
    assert judged(WIN, arms=[*arms(), other]).outcome is Outcome.CONFIRMED
    blocked = judged(WIN, arms=[*arms(), other], clean_works=["baseline:compile"])
    assert (Outcome.INCONCLUSIVE, ReasonCode.BASELINE_UNFAIR) == (blocked.outcome, headline(blocked))
    assert "without the candidate it works" in message(blocked, ReasonCode.BASELINE_UNFAIR)


def test_a_baseline_left_out_for_an_earlier_pilot_blocks_a_win_until_it_is_timed_without_the_candidate() -> None:
    other = arm(COMPILED, status="left_out", reason="far behind", step_s=None)
    seen = [CleanTime(arm=name, step_s=STEP_S) for name in (EAGER, ALTERNATIVE)]
    blocked = judged(WIN, arms=[*arms(), other], clean_times=seen)
    assert (Outcome.INCONCLUSIVE, ReasonCode.BASELINE_UNFAIR) == (blocked.outcome, headline(blocked))
    slower = [*seen, CleanTime(arm=COMPILED, step_s=1.3 * STEP_S)]
    assert judged(WIN, arms=[*arms(), other], clean_times=slower).outcome is Outcome.CONFIRMED
    faster = [*seen, CleanTime(arm=COMPILED, step_s=STEP_S / 1.3)]
    assert judged(WIN, arms=[*arms(), other], clean_times=faster).outcome is Outcome.INCONCLUSIVE
    assert judged(TIE, arms=[*arms(), other], clean_times=seen).outcome is Outcome.REFUTED


def test_an_opponent_that_does_not_decide_and_is_slowed_proves_nothing_and_blocks_nothing() -> None:
    fair = judged(timed(1.0, alternative=1.2))
    shipped = fair.latency.against[1]
    assert (shipped.opponent, fair.label) == ("as_shipped", Label.REGRESSION)
    rules = policy(decides="best_pytorch")
    slowed = judged(timed(1.2, alternative=1.2), rules, clean_times=[CleanTime(arm=EAGER, step_s=STEP_S / 1.3)])
    assert slowed.outcome is Outcome.REFUTED
    assert slowed.label is Label.BELOW_MARGIN, "matched by PyTorch would claim a gain over eager as shipped"
    assert slowed.latency.against[1].outcome is Outcome.INCONCLUSIVE
    assert ReasonCode.OPPONENT_SLOWED in codes(slowed)


def test_one_slow_process_is_no_pattern() -> None:
    few = policy(looks=[6])
    clean = [CleanTime(arm=ALTERNATIVE, step_s=STEP_S / 1.3)]
    assert ReasonCode.BASELINE_UNFAIR not in codes(judged(WIN, few, clean_times=clean))


def test_a_baseline_mode_thrown_out_blocks_where_the_candidate_uses_that_mode() -> None:
    void = arm("baseline:eager+other", status="void", reason="its outputs are wrong")
    assert headline(judged(WIN, arms=[*arms(), void])) is ReasonCode.BASELINE_UNFAIR


def test_the_ceiling_is_that_of_the_fastest_headroom_arm() -> None:
    fast = "headroom:compile"
    segments = synthetic_segments(
        steps_of({ALTERNATIVE: 1.0, HEADROOM: 1.001, fast: 1.2}), workers=2, phase="ceiling", first_worker=1
    )
    ceiling = judged(segments, arms=[*arms(), arm(fast)]).latency.ceiling
    assert ceiling is not None
    assert ceiling.point_estimate == pytest.approx(1.2, rel=0.01)


def test_a_candidate_in_a_mode_without_headroom_arm_leaves_the_ceiling_unknown() -> None:
    compiled = "candidate:compile"
    verdict = judged(with_ceiling(1.002), candidate=compiled, arms=[*arms(), arm(compiled, kernel_calls=13)])
    assert verdict.latency.ceiling is None
    assert ReasonCode.NO_HEADROOM not in codes(verdict)


@pytest.mark.parametrize("changes", [{"recompiles": [HEADROOM]}, {"arms": arms(headroom={"status": "void"})}])
def test_a_headroom_arm_that_is_void_or_recompiled_gives_no_ceiling(changes: dict[str, Any]) -> None:
    assert judged(with_ceiling(1.002), **changes).latency.ceiling is None


def test_a_gain_above_the_ceiling_is_never_confirmed() -> None:
    verdict = judged(with_ceiling(1.02) + timed(1.2))
    assert (Outcome.INCONCLUSIVE, ReasonCode.CEILING_EXCEEDED) == (verdict.outcome, headline(verdict))
    assert [Outcome.INCONCLUSIVE] * 2 == [row.outcome for row in verdict.latency.against]


def test_a_measured_gain_contradicts_a_ceiling_below_the_margin() -> None:
    verdict = judged(with_ceiling(1.002) + WIN)
    assert (Outcome.INCONCLUSIVE, ReasonCode.CEILING_EXCEEDED) == (verdict.outcome, headline(verdict))


# Incorrect


def test_a_wrong_op_is_incorrect_and_the_worst_input_is_named_with_its_numbers() -> None:
    checks = [
        op_check(status="wrong", error_candidate=3.1e-3, site="model.norm"),
        op_check(status="wrong", error_candidate=3.1e-2),
        op_check(),
    ]
    verdict = judged(WIN, op_checks=checks)
    assert (Outcome.INCORRECT, ReasonCode.OP_ERROR_EXCEEDED) == (verdict.outcome, headline(verdict))
    for part in ("2 of 3", "0.031", "0.0024", "model.layers.3.input_layernorm", "captured"):
        assert part in verdict.reasons[0].message
    where = Where(site="model.layers.3.input_layernorm", shape="8 x 256 x 384", dtype="float32")
    assert where == verdict.reasons[0].where
    assert verdict.numerics.outcome is Outcome.INCORRECT


def test_an_error_that_is_not_a_number_is_the_worst() -> None:
    wrong = ReasonCode.NONFINITE_OUTPUT
    checks = [
        op_check(status="wrong", error_candidate=9.0, code=wrong),
        op_check(status="wrong", error_candidate=None, code=wrong, site="model.norm"),
    ]
    assert judged(op_checks=checks).reasons[0].where.site == "model.norm"


def test_every_distinct_code_gives_one_reason() -> None:
    checks = [
        op_check(status="wrong", code=ReasonCode.NONFINITE_OUTPUT),
        op_check(status="wrong"),
        op_check(status="wrong", code=ReasonCode.INPUTS_CHANGED),
        op_check(status="wrong", code=ReasonCode.WRONG_OUTPUT_LAYOUT),
        op_check(status="wrong"),
    ]
    assert {
        ReasonCode.NONFINITE_OUTPUT,
        ReasonCode.OP_ERROR_EXCEEDED,
        ReasonCode.INPUTS_CHANGED,
        ReasonCode.WRONG_OUTPUT_LAYOUT,
    } == set(codes(judged(op_checks=checks)))
    assert len(codes(judged(op_checks=checks))) == 4


def test_a_kernel_that_raises_in_a_check_has_failed() -> None:
    verdict = judged(op_checks=[op_check(status="raised", message="illegal address")])
    assert (Outcome.FAILED, ReasonCode.CANDIDATE_RAISED) == (verdict.outcome, headline(verdict))
    assert "illegal address" in verdict.reasons[0].message


def test_a_check_cannot_carry_a_conclusion() -> None:
    verdict = judged(WIN, op_checks=[op_check(status="wrong", code=ReasonCode.GAIN_CONFIRMED)])
    assert verdict.outcome is Outcome.INCORRECT


def test_a_declined_edge_input_is_not_wrong() -> None:
    checks = [op_check(), op_check(label="odd width", status="declined", error_candidate=None)]
    assert judged(WIN, op_checks=checks).outcome is Outcome.CONFIRMED


def test_wrong_model_outputs_are_incorrect() -> None:
    verdict = judged(WIN, model_check=model_check(status="wrong", error_candidate=0.1))
    assert (Outcome.INCORRECT, ReasonCode.MODEL_ERROR_EXCEEDED) == (verdict.outcome, headline(verdict))


def test_a_lost_gradient_is_incorrect_and_named() -> None:
    lost = training(missing=["model.norm.weight"], with_gradient_candidate=39)
    verdict = judged(training=lost)
    assert (Outcome.INCORRECT, ReasonCode.GRADIENTS_MISSING) == (verdict.outcome, headline(verdict))
    assert verdict.reasons[0].where.parameter == "model.norm.weight"


def test_a_wrong_gradient_is_incorrect_and_named() -> None:
    wrong = training(status="wrong", worst_parameter="model.norm.weight", worst_error_candidate=0.3)
    verdict = judged(training=wrong)
    assert (Outcome.INCORRECT, ReasonCode.GRADIENT_ERROR_EXCEEDED) == (verdict.outcome, headline(verdict))
    assert "model.norm.weight" in verdict.reasons[0].message


def test_a_passed_training_check_is_no_reason() -> None:
    assert judged(WIN, training=training()).outcome is Outcome.CONFIRMED


def test_a_candidate_step_that_cannot_be_replayed_is_stale() -> None:
    verdict = judged(WIN, audit=audit(mismatches=[f"{CANDIDATE}: 3 of 40"]))
    assert (Outcome.INCORRECT, ReasonCode.STALE_OUTPUT) == (verdict.outcome, headline(verdict))
    assert "3 of 40" in verdict.reasons[0].message


@pytest.mark.parametrize("name", [ALTERNATIVE, EAGER, SHAM])
def test_a_baseline_that_repeats_elsewhere_but_not_beside_the_candidate_is_contaminated(name: str) -> None:
    verdict = judged(WIN, audit=audit(mismatches=[f"{name}: 1 of 40"]))
    assert (Outcome.INCORRECT, ReasonCode.CONTAMINATED_BASELINE) == (verdict.outcome, headline(verdict))


@pytest.mark.parametrize(
    ("line", "repeats"),
    [
        (f"{ALTERNATIVE}: 1 of 40", False),
        (f"{ALTERNATIVE}: 1 of 40", None),
        (f"{CANDIDATE}: 1 of 40", None),
        (f"{HEADROOM}: 1 of 40", True),
        ("nobody: 1 of 40", True),
    ],
)
def test_a_mismatch_without_a_repeating_baseline_accuses_nobody(line: str, repeats: bool | None) -> None:
    verdict = judged(WIN, audit=audit(mismatches=[line], baseline_repeats=repeats))
    assert (Outcome.INCONCLUSIVE, ReasonCode.UNVERIFIED_OUTPUTS) == (verdict.outcome, headline(verdict))


def test_a_wrong_kernel_gets_no_word_on_its_speed() -> None:
    verdict = judged(WIN, op_checks=[op_check(status="wrong")])
    assert ReasonCode.GAIN_CONFIRMED not in codes(verdict)
    assert ([], None, None) == (
        verdict.latency.against,
        verdict.latency.outcome,
        verdict.latency.half_width,
    )


# Failed and not applicable


FAULTS = [code for code in ReasonCode if kind_of(code) not in (ReasonKind.NO_HEADROOM, ReasonKind.INTERVAL)]
OUTCOMES = {
    ReasonKind.INCORRECT: Outcome.INCORRECT,
    ReasonKind.FAILED: Outcome.FAILED,
    ReasonKind.NOT_APPLICABLE: Outcome.NOT_APPLICABLE,
    ReasonKind.BLOCKING: Outcome.INCONCLUSIVE,
    ReasonKind.ADVICE: Outcome.CONFIRMED,
}


@pytest.mark.parametrize("code", FAULTS)
def test_a_fault_gives_the_outcome_of_its_kind(code: ReasonCode) -> None:
    fault = Fault(code=code, message="it broke", stage=Stage.CHECK, where=Where(file="k.cu", line=3))
    verdict = judged(WIN, faults=[fault, fault])
    assert OUTCOMES[kind_of(code)] is verdict.outcome
    reason = next(reason for reason in verdict.reasons if reason.code is code)
    assert ("k.cu", 3) == (reason.where.file, reason.where.line)
    assert "it broke (and 1 more)" in reason.message


def test_a_fault_that_states_a_conclusion_is_refused() -> None:
    fault = Fault(code=ReasonCode.GAIN_CONFIRMED, message="trust me", stage=Stage.CHECK)
    with pytest.raises(ValueError, match="conclusion"):
        judged(faults=[fault])


def test_patched_sites_without_a_call_mean_failed() -> None:
    verdict = judged(WIN, engagement=engagement(site("a", calls=0), site("b", calls=0)))
    assert (Outcome.FAILED, ReasonCode.NEVER_CALLED) == (verdict.outcome, headline(verdict))


def test_a_kernel_called_at_some_of_its_sites_has_failed_and_the_silent_ones_are_named() -> None:
    verdict = judged(WIN, engagement=engagement(site("a"), site("b", calls=0)))
    assert (Outcome.FAILED, ReasonCode.PARTLY_APPLIED) == (verdict.outcome, headline(verdict))
    assert verdict.reasons[0].where.site == "b"


def test_sites_excluded_by_declared_constraints_are_no_failure() -> None:
    verdict = judged(WIN, engagement=engagement(site("a"), site("b", status="declined", calls=0)))
    assert verdict.outcome is Outcome.CONFIRMED


def test_a_model_without_the_op_is_not_applicable() -> None:
    none = engagement(sites_found=0, sites_patched=0, sites_called=0, sites=[])
    verdict = judged(engagement=none, op_checks=[], stage_finished=Stage.BUILD)
    assert (Outcome.NOT_APPLICABLE, ReasonCode.NO_SITES) == (verdict.outcome, headline(verdict))
    assert len(verdict.reasons) == 1


def test_sites_of_another_meaning_are_not_applicable_and_say_why() -> None:
    sites = [site(name, status="incompatible", calls=0, reason="weight has an offset of 1") for name in "ab"]
    verdict = judged(engagement=engagement(*sites))
    assert (Outcome.NOT_APPLICABLE, ReasonCode.SITES_INCOMPATIBLE) == (verdict.outcome, headline(verdict))
    assert "weight has an offset of 1" in verdict.reasons[0].message


def test_constraints_that_exclude_every_site_are_said_to() -> None:
    sites = [site("a", status="declined", calls=0, reason="hidden % 8 == 0")]
    verdict = judged(engagement=engagement(*sites))
    assert (Outcome.NOT_APPLICABLE, ReasonCode.SITES_INCOMPATIBLE) == (verdict.outcome, headline(verdict))
    assert "declared constraints exclude all 1 sites: hidden % 8 == 0" in verdict.reasons[0].message


# Blocking


@pytest.mark.parametrize(
    "changes",
    [{"audit": None}, {"audit": audit(steps_committed=2399)}, {"audit": audit(steps_audited=0)}],
)
def test_unverified_outputs_block_a_verdict(changes: dict[str, Any]) -> None:
    verdict = judged(WIN, **changes)
    assert (Outcome.INCONCLUSIVE, ReasonCode.UNVERIFIED_OUTPUTS) == (verdict.outcome, headline(verdict))


@pytest.mark.parametrize(
    "changes",
    [{"mutants": [MutantCheck(name="zeros", caught=False)]}, {"op_checks": [op_check(label="large values")]}],
)
def test_a_check_that_catches_nothing_blocks_a_verdict(changes: dict[str, Any]) -> None:
    verdict = judged(WIN, **changes)
    assert (Outcome.INCONCLUSIVE, ReasonCode.CHECK_NO_POWER) == (verdict.outcome, headline(verdict))


@pytest.mark.parametrize(
    "changes",
    [
        {"arms": arms(candidate={"kernel_calls": 0})},
        {"arms": arms(candidate={"kernel_calls": None})},
        {"arms": arms(candidate={"status": "void"})},
        {"engagement": engagement(proof="")},
        {"engagement": engagement(watermark_moved=False)},
        {"engagement": None},
        {"candidate": None},
    ],
)
def test_without_proof_that_the_kernel_ran_nothing_is_decided(changes: dict[str, Any]) -> None:
    verdict = judged(WIN, **changes)
    assert (Outcome.INCONCLUSIVE, ReasonCode.NOT_ON_PATH) == (verdict.outcome, headline(verdict))


def test_an_unseen_watermark_is_not_read_as_unmoved() -> None:
    assert judged(WIN, engagement=engagement(watermark_moved=None)).outcome is Outcome.CONFIRMED


def test_a_compilation_while_timed_blocks_a_verdict() -> None:
    verdict = judged(WIN, recompiles=[CANDIDATE])
    assert (Outcome.INCONCLUSIVE, ReasonCode.RECOMPILED) == (verdict.outcome, headline(verdict))


def test_a_compilation_in_a_headroom_arm_blocks_nothing() -> None:
    assert judged(WIN, recompiles=[HEADROOM]).outcome is Outcome.CONFIRMED


@pytest.mark.parametrize("segments", [timed(1.05, workers=4), timed(1.05, workers=1), []])
def test_fewer_workers_than_a_first_look_are_too_few(segments: Any) -> None:
    verdict = judged(segments)
    assert (Outcome.INCONCLUSIVE, ReasonCode.TOO_FEW_WORKERS) == (verdict.outcome, headline(verdict))


def test_workers_with_fewer_blocks_than_the_policy_asks_are_too_few() -> None:
    assert headline(judged(timed(1.05, blocks=6))) is ReasonCode.TOO_FEW_WORKERS


def test_workers_that_did_not_finish_are_too_few() -> None:
    assert headline(judged(WIN, workers_finished=4)) is ReasonCode.TOO_FEW_WORKERS


@pytest.mark.parametrize("changes", [{"status": "failed", "reason": "boom"}, {"status": "void"}])
def test_a_failed_eager_baseline_is_unfair(changes: dict[str, Any]) -> None:
    verdict = judged(WIN, arms=arms(baseline=changes))
    assert (Outcome.INCONCLUSIVE, ReasonCode.BASELINE_UNFAIR) == (verdict.outcome, headline(verdict))


def test_another_baseline_mode_that_failed_bars_nothing() -> None:
    failed = arm("baseline:compile", status="failed", reason="no compiler")
    assert judged(WIN, arms=[*arms(), failed]).outcome is Outcome.CONFIRMED


def test_no_arm_for_the_deciding_opponent_is_unfair() -> None:
    assert ReasonCode.BASELINE_UNFAIR in codes(judged(WIN, baseline=None))


def test_an_exhausted_budget_blocks_what_is_undecided() -> None:
    verdict = judged(STRADDLE, budget_exhausted=True)
    assert (Outcome.INCONCLUSIVE, ReasonCode.BUDGET_EXHAUSTED) == (verdict.outcome, headline(verdict))
    assert ReasonCode.INTERVAL_STRADDLES in codes(verdict)


@pytest.mark.parametrize("segments", [WIN, TIE, with_ceiling(1.002)])
def test_an_exhausted_budget_does_not_undo_what_is_decided(segments: Any) -> None:
    assert ReasonCode.BUDGET_EXHAUSTED not in codes(judged(segments, budget_exhausted=True))


def test_a_budget_that_ends_before_the_verdict_is_inconclusive() -> None:
    verdict = judged(budget_exhausted=True, stage_finished=Stage.CHECK)
    assert (Outcome.INCONCLUSIVE, ReasonCode.BUDGET_EXHAUSTED) == (verdict.outcome, headline(verdict))


@pytest.mark.parametrize("finished", [None, Stage.BUILD, Stage.CHECK])
def test_a_killed_run_is_inconclusive_rather_than_passed(finished: Stage | None) -> None:
    verdict = judged(stage_finished=finished)
    assert (Outcome.INCONCLUSIVE, ReasonCode.RUN_INCOMPLETE) == (verdict.outcome, headline(verdict))


# Stages


@pytest.mark.parametrize("stage", [Stage.BUILD, Stage.CHECK])
def test_an_early_stage_that_passed_has_no_outcome_and_no_reasons(stage: Stage) -> None:
    verdict = judge(stopped_at(stage), policy())
    assert (None, None, []) == (verdict.outcome, verdict.label, verdict.reasons)


def test_an_early_stage_can_fail() -> None:
    verdict = judge(stopped_at(Stage.CHECK, op_checks=[op_check(status="wrong")]), policy())
    assert verdict.outcome is Outcome.INCORRECT


def test_a_screen_with_room_for_a_gain_is_promising_and_has_no_outcome() -> None:
    verdict = judge(stopped_at(Stage.SCREEN, segments=with_ceiling(1.2)), policy())
    assert (None, Label.PROMISING) == (verdict.outcome, verdict.label)
    assert [ReasonCode.PROMISING] == codes(verdict)


def test_a_screen_refutes_where_there_is_no_headroom() -> None:
    verdict = judge(stopped_at(Stage.SCREEN, segments=with_ceiling(1.002)), policy())
    assert (Outcome.REFUTED, Label.NO_HEADROOM) == (verdict.outcome, verdict.label)


def test_a_screen_never_confirms() -> None:
    verdict = judge(stopped_at(Stage.SCREEN, segments=with_ceiling(1.2) + WIN), policy())
    assert (None, Label.PROMISING) == (verdict.outcome, verdict.label)


@pytest.mark.parametrize(
    "changes",
    [
        {"segments": []},
        {"segments": with_ceiling(1.2), "arms": arms(candidate={"step_s": 0.0106})},
    ],
)
def test_a_screen_without_ceiling_or_with_a_slow_pilot_is_inconclusive(changes: dict[str, Any]) -> None:
    verdict = judge(stopped_at(Stage.SCREEN, **changes), policy())
    assert (Outcome.INCONCLUSIVE, ReasonCode.INTERVAL_STRADDLES) == (verdict.outcome, headline(verdict))


def test_an_unknown_pilot_time_is_not_read_as_a_loss() -> None:
    screened = stopped_at(Stage.SCREEN, segments=with_ceiling(1.2), arms=arms(candidate={"step_s": None}))
    assert judge(screened, policy()).label is Label.PROMISING


# Looks


@pytest.mark.parametrize(
    ("expected", "segments"),
    [
        (True, WIN),
        (True, TIE),
        (False, STRADDLE),
        (False, timed(1.05, workers=4)),
        (False, timed(1.05, workers=6)),
        (True, timed(1.05, workers=8)),
        (False, timed(1.05, sham=1.05)),
    ],
)
def test_a_run_is_decided_only_at_a_planned_look_and_outside_the_margin(expected: bool, segments: Any) -> None:
    assert expected is decided(evidence(segments), policy())


# Advice


ADVICE: list[tuple[ReasonCode, dict[str, Any]]] = [
    (
        ReasonCode.HOST_BOUND,
        {"device": DeviceFacts(kind="cuda", name="H200", count_threads=8, busy_ratio=0.4)},
    ),
    (ReasonCode.CONTENTION, {"telemetry": Telemetry(cpu_pressure_ratio=0.2)}),
    (ReasonCode.CONTENTION, {"telemetry": Telemetry(steal_ratio=0.03)}),
    (ReasonCode.CONTENTION, {"telemetry": Telemetry(foreign_processes=1)}),
    (ReasonCode.CANNOT_SEE, {"unseen": ["device memory of other processes"]}),
    (ReasonCode.RANDOM_WEIGHTS, {"random_weights": True}),
]


@pytest.mark.parametrize(("code", "changes"), ADVICE)
def test_advice_follows_the_outcome_and_never_changes_it(code: ReasonCode, changes: dict[str, Any]) -> None:
    verdict = judged(WIN, **changes)
    assert Outcome.CONFIRMED is verdict.outcome
    assert [ReasonCode.GAIN_CONFIRMED, code] == codes(verdict)


def test_a_wide_interval_is_called_noisy() -> None:
    verdict = judged(timed(1.2, block_sd=0.05))
    assert ReasonCode.NOISY in codes(verdict)
    assert "margin 1 %" in message(verdict, ReasonCode.NOISY)


@pytest.mark.parametrize(
    "changes",
    [
        {"device": None},
        {"device": DeviceFacts(kind="cuda", name="H200", count_threads=8)},
        {"device": DeviceFacts(kind="cpu", name="a CPU", count_threads=2, busy_ratio=0.1)},
        {"telemetry": Telemetry()},
        {"telemetry": Telemetry(cpu_pressure_ratio=0.0, steal_ratio=0.0, foreign_processes=0)},
        {"training": None},
        {"memory": []},
    ],
)
def test_what_cannot_be_seen_is_never_read_as_bad(changes: dict[str, Any]) -> None:
    assert [ReasonCode.GAIN_CONFIRMED] == codes(judged(WIN, **changes))


# Precedence

LADDER: list[tuple[ReasonKind, Callable[[], dict[str, Any]]]] = [
    (ReasonKind.INCORRECT, lambda: {"op_checks": [op_check(status="wrong")]}),
    (
        ReasonKind.FAILED,
        lambda: {"faults": [Fault(code=ReasonCode.TIMED_OUT, message="", stage=Stage.SCREEN)]},
    ),
    (
        ReasonKind.NOT_APPLICABLE,
        lambda: {"engagement": engagement(site("a", status="incompatible", calls=0))},
    ),
    (ReasonKind.NO_HEADROOM, lambda: {"segments": with_ceiling(1.002)}),
    (ReasonKind.BLOCKING, lambda: {"mutants": [MutantCheck(name="zeros", caught=False)]}),
    (ReasonKind.INTERVAL, dict),
    (ReasonKind.ADVICE, lambda: {"random_weights": True}),
]


@pytest.mark.parametrize("first", range(len(LADDER)))
def test_the_first_reason_is_of_the_kind_that_comes_first_in_the_design(first: int) -> None:
    changes: dict[str, Any] = {"segments": TIE}
    for _, change in reversed(LADDER[first:]):
        changes |= change()
    if LADDER[first][0] is ReasonKind.ADVICE:
        changes |= {"stage_asked": Stage.CHECK}
    found = [kind_of(code) for code in codes(judge(evidence(**changes), policy()))]
    assert LADDER[first][0] is found[0]
    assert sorted(found, key=list(ReasonKind).index) == found


# Numerics


def test_drift_is_the_worst_captured_ratio_and_leaves_out_exact_baselines() -> None:
    checks = [
        op_check(error_candidate=3e-7, error_baseline=2e-7),
        op_check(error_candidate=9e-7, error_baseline=0.0),
        op_check(error_candidate=9e-7, error_baseline=None),
        op_check(label="large values", error_candidate=9e-7, error_baseline=1e-7),
    ]
    numerics = judged(WIN, op_checks=checks).numerics
    assert numerics.worst_op_ratio == pytest.approx(1.5)
    assert (None, 4, 2, 2) == (
        numerics.outcome,
        numerics.op_checks,
        numerics.mutants_caught,
        numerics.mutants,
    )
    assert numerics.model_ratio == pytest.approx(1.5)


# Exit codes


def test_every_outcome_has_its_exit_code_and_a_passed_stage_has_zero() -> None:
    assert {0, 10, 11, 12, 13, 14} == {exit_code(outcome) for outcome in Outcome}
    assert [EXIT_CODES[outcome] for outcome in Outcome] == [exit_code(outcome) for outcome in Outcome]
    assert exit_code(None) == 0


# Properties

RUNS = st.sampled_from([WIN, TIE, LOSS, STRADDLE, with_ceiling(1.002), with_ceiling(1.02) + WIN, []])
few = settings(max_examples=25, deadline=None)


def summary(run: Evidence) -> tuple[Any, ...]:
    verdict = judge(run, policy())
    return verdict.outcome, verdict.label, codes(verdict)


@few
@given(RUNS, st.lists(st.sampled_from(ADVICE), max_size=3))
def test_adding_advice_never_changes_an_outcome(segments: Any, advice: list[tuple[ReasonCode, dict[str, Any]]]) -> None:
    changes: dict[str, Any] = {}
    for _, change in advice:
        changes |= change
    plain, advised = judged(segments), judged(segments, **changes)
    assert (plain.outcome, plain.label) == (advised.outcome, advised.label)


@few
@given(RUNS, st.floats(1e-5, 1e3))
def test_scaling_every_time_leaves_the_verdict_unchanged(segments: Any, scale: float) -> None:
    scaled = [s.model_copy(update={"seconds": s.seconds * scale}) for s in segments]
    assert summary(evidence(segments)) == summary(evidence(scaled))


@few
@given(st.integers(0, 2**32), st.floats(0.0001, 0.03))
def test_a_pair_of_arms_is_never_confirmed_in_both_directions(seed: int, block_sd: float) -> None:
    segments = timed(1.0, block_sd=block_sd, seed=seed)
    other = {CANDIDATE: ALTERNATIVE, ALTERNATIVE: CANDIDATE}
    swapped = [s.model_copy(update={"arm": other.get(s.arm, s.arm)}) for s in segments]
    outcomes = [judged(segments).outcome, judged(swapped).outcome]
    assert outcomes.count(Outcome.CONFIRMED) <= 1


@few
@given(st.floats(0.5, 2.0))
def test_arms_with_the_same_times_are_never_confirmed(eager_s: float) -> None:
    segments = synthetic_segments({EAGER: eager_s, ALTERNATIVE: eager_s, CANDIDATE: eager_s, SHAM: eager_s}, block_sd=0)
    assert judged(segments).outcome is not Outcome.CONFIRMED


@few
@given(RUNS, st.randoms(use_true_random=False))
def test_the_order_in_which_segments_are_stored_does_not_matter(segments: Any, shuffler: Any) -> None:
    shuffled = list(segments)
    shuffler.shuffle(shuffled)
    assert summary(evidence(segments)) == summary(evidence(shuffled))


def test_timed_steps_that_answer_otherwise_than_the_baseline_are_incorrect() -> None:
    verdict = judged(WIN, audit=audit(disagreements=[f"{CANDIDATE}: 40 of 88"]))
    assert (Outcome.INCORRECT, ReasonCode.MODEL_ERROR_EXCEEDED) == (verdict.outcome, headline(verdict))


def test_a_gain_whose_timed_outputs_were_never_compared_is_not_confirmed() -> None:
    verdict = judged(WIN, audit=audit(steps_compared=0))
    assert (Outcome.INCONCLUSIVE, ReasonCode.UNVERIFIED_OUTPUTS) == (verdict.outcome, headline(verdict))


def test_a_wrong_model_names_what_the_kernel_declares_to_write_to() -> None:
    wrong = {"status": "wrong", "error_candidate": 0.1}
    loud, silent = (judged(WIN, model_check=model_check(**wrong, mutates=names)) for names in (["x"], []))
    assert "it declares `mutates: [x]`" in message(loud, ReasonCode.MODEL_ERROR_EXCEEDED)
    assert "mutates" not in message(silent, ReasonCode.MODEL_ERROR_EXCEEDED)


def test_a_model_check_that_never_called_the_kernel_has_no_power() -> None:
    verdict = judged(WIN, model_check=model_check(kernel_calls=0))
    assert (Outcome.INCONCLUSIVE, ReasonCode.CHECK_NO_POWER) == (verdict.outcome, headline(verdict))


# A kernel adopted earlier as the opponent

ADOPTED = "kernel:kernels/other.cpp"
ADOPTED_ARM = f"baseline:eager+{ADOPTED}"


def against_adopted(*, candidate: float, other: float, **changes: Any) -> Verdict:
    """Eager is slow; both kernels beat it by the ratios given."""
    speedups = {ALTERNATIVE: 1.0, CANDIDATE: candidate, SHAM: 1.0, ADOPTED_ARM: other}
    segments = synthetic_segments(steps_of(speedups))
    rules = policy(opponents=["best_pytorch", ADOPTED], decides=ADOPTED)
    found = evidence(segments, arms=[*arms(), arm(ADOPTED_ARM)], adopted={ADOPTED: ADOPTED_ARM}, **changes)
    return judge(found, rules)


def test_a_kernel_must_beat_the_adopted_one_where_the_policy_says_so() -> None:
    better = against_adopted(candidate=1.20, other=1.10)
    assert better.outcome is Outcome.CONFIRMED
    assert [row.opponent for row in better.latency.against] == ["best_pytorch", ADOPTED]
    equal = against_adopted(candidate=1.10, other=1.10)
    assert equal.outcome is Outcome.REFUTED
    assert equal.latency.against[0].outcome is Outcome.CONFIRMED


def test_an_adopted_kernel_that_was_never_timed_leaves_nothing_to_decide() -> None:
    found = judge(evidence(WIN), policy(opponents=["best_pytorch", ADOPTED], decides=ADOPTED))
    assert found.outcome is Outcome.INCONCLUSIVE
    assert headline(found) is ReasonCode.BASELINE_UNFAIR


# ---- Patches


def test_a_patch_whose_sites_nobody_can_ask_alone_is_judged_by_the_models_outputs() -> None:
    alone = {"op_checks": [], "mutants": []}
    unchecked = engagement(site("a", unchecked="it is called with more than one tensor"))
    assert Outcome.CONFIRMED is judged(WIN, engagement=unchecked, **alone).outcome
    some = engagement(site("a", unchecked="it is called with more than one tensor"), site("b"))
    for seen in (engagement(site("a")), some):
        assert ReasonCode.CHECK_NO_POWER is headline(judged(WIN, engagement=seen, **alone))
    assert ReasonCode.CHECK_NO_POWER is headline(judged(WIN, engagement=unchecked, model_check=None, **alone))


def test_a_model_that_a_patch_leaves_alone_is_none_for_it_and_the_message_says_so() -> None:
    proof = "the patch was run, and changed no module of this model"
    none = engagement(sites_found=0, sites_patched=0, sites_called=0, sites=[], proof=proof)
    verdict = judged(engagement=none, op_checks=[], stage_finished=Stage.CHECK)
    assert (Outcome.NOT_APPLICABLE, ReasonCode.NO_SITES) == (verdict.outcome, headline(verdict))
    assert proof in verdict.reasons[0].message
