from __future__ import annotations

import pytest

from e2e.judge import judge
from e2e.schema.evidence import Evidence
from e2e.schema.policy import Limits, Policy
from e2e.schema.verdict import Verdict
from e2e.schema.words import Outcome, ReasonCode, Stage
from tests import results

EXCEEDED: list[tuple[dict[str, float], str]] = [
    ({"first_step_s": 0.4}, "first step 410 ms, at most 400 ms allowed"),
    ({"memory_ratio": 0.99}, "peak memory 1.000x PyTorch's, at most 0.990x PyTorch's allowed"),
    ({"model_error_ratio": 1.02}, "the model's error 1.025x PyTorch's, at most 1.020x PyTorch's allowed"),
    ({"kl": 2e-5}, "KL divergence 2.1e-05 nats per token, at most 2e-05 nats per token allowed"),
    ({"split_spread": 0.0}, "a row alone and among others differ by 0.0031, at most 0 allowed"),
    ({"top1": 0.997}, "same top token 99.67 %, at least 99.7 % allowed"),
]
KEPT = Limits(first_step_s=0.5, memory_ratio=1.0, model_error_ratio=1.03, kl=3e-5, top1=0.99, coverage=1.0)


def judged(limits: Limits, **changes: object) -> Verdict:
    """Under the rule that the run is CONFIRMED by."""
    return judge(results.evidence(**changes), Policy(name="lenient", decides="as_shipped", limits=limits))


def test_within_every_limit_the_evidence_decides() -> None:
    assert judged(Limits()).outcome is Outcome.CONFIRMED
    assert judged(KEPT).outcome is Outcome.CONFIRMED


@pytest.mark.parametrize(("limit", "words"), EXCEEDED)
def test_beyond_a_limit_a_gain_is_not_worth_adopting(limit: dict[str, float], words: str) -> None:
    verdict = judged(Limits.model_validate(limit))
    assert (verdict.outcome, verdict.reasons[0].code) == (Outcome.REFUTED, ReasonCode.LIMIT_EXCEEDED)
    assert words == verdict.reasons[0].message
    assert ReasonCode.GAIN_CONFIRMED in [reason.code for reason in verdict.reasons], "the gain is still said"


@pytest.mark.parametrize(
    ("repeats", "spread", "code"),
    [
        (True, None, ReasonCode.GAIN_CONFIRMED),
        (False, 1e-7, ReasonCode.LIMIT_EXCEEDED),
        (False, None, ReasonCode.POLICY_NOT_MET),
    ],
)
def test_a_policy_may_ask_for_a_kernel_that_repeats_itself_bit_for_bit(
    repeats: bool, spread: float | None, code: ReasonCode
) -> None:
    checks = [check.model_copy(update={"repeats": repeats, "spread": spread}) for check in results.op_checks()]
    assert judged(Limits(op_spread=0), op_checks=checks).reasons[0].code is code


def test_a_coverage_below_the_least_is_beyond_a_limit() -> None:
    partly = results.engagement().model_copy(update={"coverage": 0.5})
    verdict = judged(Limits(coverage=0.9), engagement=partly)
    assert "coverage 50 %, at least 90 % allowed" in verdict.reasons[0].message


def test_every_limit_that_is_exceeded_is_named() -> None:
    message = judged(Limits(kl=1e-9, top1=1.0)).reasons[0].message
    assert message.count(";") == 1


@pytest.mark.parametrize(
    ("limits", "changes", "words"),
    [
        (Limits(build_s=10.0), {}, "build"),
        (
            Limits(first_step_s=1.0),
            {"arms": [a.model_copy(update={"first_step_s": None}) for a in results.arms()]},
            "first",
        ),
        (Limits(memory_ratio=2.0), {"memory": []}, "peak memory"),
        (Limits(kl=1.0, model_error_ratio=9.0), {"model_check": None}, "the model's error, KL divergence"),
    ],
)
def test_what_was_not_seen_is_not_within_a_limit(limits: Limits, changes: dict[str, object], words: str) -> None:
    verdict = judged(limits, **changes)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    said = next(reason for reason in verdict.reasons if reason.code is ReasonCode.POLICY_NOT_MET)
    assert f"limits what this run did not see: {words}" in said.message


def test_a_build_that_a_cache_had_is_not_seen() -> None:
    seen = results.evidence().model_dump(mode="json")
    seen["builds"] = [{"kernel": "0" * 64, "seconds": 0.01, "cached": True}]
    verdict = judge(Evidence.model_validate(seen), Policy(name="p", decides="as_shipped", limits=Limits(build_s=5.0)))
    assert verdict.reasons[0].code is ReasonCode.POLICY_NOT_MET
    seen["builds"] = [{"kernel": "0" * 64, "seconds": 9.0, "cached": False}]
    verdict = judge(Evidence.model_validate(seen), Policy(name="p", decides="as_shipped", limits=Limits(build_s=5.0)))
    assert "build 9.00 s, at most 5.00 s allowed" == verdict.reasons[0].message


def test_before_a_verdict_there_is_nothing_to_limit() -> None:
    told = judged(Limits(kl=1e-9), stage_asked=Stage.CHECK, stage_finished=Stage.CHECK, segments=[])
    assert told.outcome is None
