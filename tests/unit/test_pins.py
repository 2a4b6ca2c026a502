from __future__ import annotations

from typing import Any

import pytest

from e2e.judge import judge
from e2e.schema.evidence import ExamRecord, Origin
from e2e.schema.policy import Pins
from e2e.schema.verdict import Verdict
from e2e.schema.words import Mode, Outcome, ReasonCode, Stage
from tests.fakes import arm, arms, evidence, op_check, policy, stopped_at, timed, with_ceiling

HASH, OTHER = "a" * 64, "b" * 64
WIN = timed(1.05)
ALL = Pins(workload_sha256=HASH, weights="pretrained", stage=Stage.VERDICT, fresh_seed=True, no_overrides=True)


def origin(**changes: Any) -> Origin:
    return Origin(**{"workload_sha256": HASH, "weights": "pretrained", "seed_chosen": False, **changes})


def judged(pins: Pins, **changes: Any) -> Verdict:
    return judge(evidence(WIN, **changes), policy(pins=pins))


def test_a_run_that_meets_every_pin_is_judged_by_its_evidence() -> None:
    assert judged(ALL, origin=origin()).outcome is Outcome.CONFIRMED


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"workload_sha256": OTHER}, "hash is bbbbbbbbbbbb, and the policy pins aaaaaaaaaaaa"),
        ({"weights": "random"}, "the weights are random, and the policy pins pretrained"),
        ({"seed_chosen": True}, "the caller chose the seed"),
        ({"overrides": ["model.dtype", "cells.batch"]}, "--set changed model.dtype, cells.batch"),
    ],
)
def test_a_pin_that_does_not_hold_bars_the_verdict_and_says_why(changes: dict[str, Any], words: str) -> None:
    verdict = judged(ALL, origin=origin(**changes))
    assert (verdict.outcome, verdict.reasons[0].code) == (Outcome.INCONCLUSIVE, ReasonCode.POLICY_NOT_MET)
    assert words in verdict.reasons[0].message
    assert judged(Pins(), origin=origin(**changes)).outcome is Outcome.CONFIRMED


def test_a_fresh_seed_means_that_no_earlier_run_had_the_same_exam() -> None:
    fresh = Pins(fresh_seed=True)
    assert judged(fresh, origin=origin(), exam=ExamRecord(seed=3)).outcome is Outcome.CONFIRMED
    verdict = judged(fresh, origin=origin(), exam=ExamRecord(seed=3, run=2))
    assert (verdict.outcome, verdict.reasons[0].code) == (Outcome.INCONCLUSIVE, ReasonCode.POLICY_NOT_MET)
    assert judged(Pins(), origin=origin(), exam=ExamRecord(seed=3, run=2)).outcome is Outcome.CONFIRMED


def test_every_pin_that_does_not_hold_is_named() -> None:
    message = judged(ALL, origin=origin(weights="random", seed_chosen=True)).reasons[0].message
    assert message.count(";") == 1


def test_what_a_run_did_not_record_does_not_meet_a_pin() -> None:
    for pins in (
        Pins(workload_sha256=HASH),
        Pins(weights="random"),
        Pins(fresh_seed=True),
        Pins(no_overrides=True),
    ):
        assert judged(pins).reasons[0].code is ReasonCode.POLICY_NOT_MET
    assert judged(Pins(stage=Stage.VERDICT)).outcome is Outcome.CONFIRMED


def test_a_stage_below_the_pinned_one_does_not_count() -> None:
    pinned = policy(pins=Pins(stage=Stage.SCREEN))
    assert judge(stopped_at(Stage.CHECK), pinned).outcome is Outcome.INCONCLUSIVE
    screened = stopped_at(Stage.SCREEN, segments=with_ceiling(1.2))
    assert judge(screened, pinned).outcome is None


def test_a_wrong_kernel_is_wrong_whatever_is_pinned() -> None:
    wrong = judged(ALL, origin=origin(seed_chosen=True), op_checks=[op_check(status="wrong")])
    assert wrong.outcome is Outcome.INCORRECT


# ---- Required modes


def test_a_mode_that_cannot_run_bars_nothing_unless_it_is_required() -> None:
    skipped = arm("baseline:compile", status="skipped", reason="no Triton for this card", step_s=None)
    run = evidence(WIN, arms=[*arms(), skipped])
    assert judge(run, policy()).outcome is Outcome.CONFIRMED
    verdict = judge(run, policy(required_modes=[Mode.COMPILE]))
    assert (verdict.outcome, verdict.reasons[0].code) == (Outcome.INCONCLUSIVE, ReasonCode.BASELINE_UNFAIR)
    assert "requires a baseline in compile (skipped: no Triton for this card)" in verdict.reasons[0].message


def test_a_required_mode_that_nobody_tried_bars_the_verdict_too() -> None:
    verdict = judge(evidence(WIN), policy(required_modes=[Mode.MAX_AUTOTUNE]))
    assert "max-autotune (not tried)" in verdict.reasons[0].message


def test_a_required_mode_that_was_measured_is_fine() -> None:
    run = evidence(WIN, arms=[*arms(), arm("baseline:compile")])
    assert judge(run, policy(required_modes=[Mode.EAGER, Mode.COMPILE])).outcome is Outcome.CONFIRMED


def test_a_check_without_times_needs_no_mode() -> None:
    rules = policy(required_modes=[Mode.COMPILE])
    assert judge(stopped_at(Stage.CHECK), rules).outcome is None


def test_a_device_can_be_pinned_by_name() -> None:
    name = evidence(WIN).device.name if evidence(WIN).device else ""
    assert judged(Pins(devices=["other", name])).outcome is Outcome.CONFIRMED
    verdict = judged(Pins(devices=["NVIDIA B200"]))
    assert (verdict.outcome, verdict.reasons[0].code) == (Outcome.INCONCLUSIVE, ReasonCode.POLICY_NOT_MET)
    assert f"the device is {name}, and the policy pins NVIDIA B200" in verdict.reasons[0].message
    assert "did not record its device" in judged(Pins(devices=[name]), device=None).reasons[0].message
