"""What a check tells people: outcome, worst input, what failed first, and the command that shows it again."""

from __future__ import annotations

from typing import Any

from e2e.check_story import nearest_to_wrong, tell
from e2e.reports.text import printed
from e2e.schema.check import CheckReport, DtypeCheck, TorchCheck
from e2e.schema.evidence import DeviceFacts, MutantCheck, OpCheck
from e2e.schema.verdict import Reason
from e2e.schema.words import Outcome, ReasonCode
from tests import fakes

AGAIN = "e2e check k.cpp --dtype float16 --seed 7"


def op_check(label: str, error: float | None, **changes: Any) -> OpCheck:
    fields: dict[str, Any] = {
        "site": "rms_norm",
        "label": label,
        "shape": "4 x 8",
        "stride": "(8, 1)",
        "dtype": "float16",
        "status": "passed",
        "error_candidate": error,
        "error_baseline": 1e-4,
        "allowed": 2e-4,
        "repeats": True,
    }
    return OpCheck(**{**fields, **changes})


def dtype_check(*inputs: OpCheck, **changes: Any) -> DtypeCheck:
    fields: dict[str, Any] = {
        "dtype": "float16",
        "outcome": None,
        "reasons": [],
        "inputs": list(inputs),
        "mutants": [MutantCheck(name="zeros", caught=True)],
        "gradients": None,
        "torch": TorchCheck(called=None, faked=None),
    }
    return DtypeCheck(**{**fields, **changes})


def report(*dtypes: DtypeCheck, **changes: Any) -> CheckReport:
    worst = next((item for item in dtypes if item.outcome), None)
    fields: dict[str, Any] = {
        "created": "2026-01-01T00:00:00+00:00",
        "seconds": 3.0,
        "command": ["e2e", "check", "k.cpp"],
        "again": AGAIN,
        "outcome": worst.outcome if worst else None,
        "reasons": worst.reasons if worst else [],
        "kernel": fakes.kernel(),
        "device": DeviceFacts(kind="cpu", name="CPU", count_threads=2),
        "seed": 7,
        "error_ratio": 2.0,
        "dtypes": list(dtypes),
        "method": "2",
        "environment": {"packages": {"torch": "2.13.0"}},
        "unseen": [],
    }
    return CheckReport(**{**fields, **changes})


def wrong(code: ReasonCode = ReasonCode.OP_ERROR_EXCEEDED, **changes: Any) -> DtypeCheck:
    reason = Reason(code=code, message="1 of 3 op checks")
    inputs = [op_check("example", 1e-4), op_check("one row", 3e-4, status="wrong", **changes), op_check("zeros", 9e-5)]
    return dtype_check(*inputs, outcome=Outcome.INCORRECT, reasons=[reason])


def test_a_check_that_passed_claims_nothing_about_speed() -> None:
    text = printed(tell(report(dtype_check(op_check("example", 1e-4)))))
    assert text.startswith("PASSED   rms_norm by ")
    assert "nothing is said of speed" in text
    assert "1 of 1" in text
    assert "opcheck passes in 1 of 1 dtype" in text
    assert "reproduce" not in text


def test_a_failure_names_the_first_wrong_input_its_error_and_the_command() -> None:
    text = printed(tell(report(dtype_check(op_check("example", 1e-4)), wrong())))
    assert text.startswith("INCORRECT")
    assert "one row: float16 4 x 8, strides (8, 1)" in text
    assert "error 0.0003, allowed 0.0002" in text
    assert AGAIN in text


def test_what_is_wrong_with_an_input_beside_its_error_comes_first() -> None:
    text = printed(tell(report(wrong(ReasonCode.INPUTS_CHANGED, message="an input tensor was written to"))))
    assert "found        an input tensor was written to" in text


def test_an_output_without_an_error_is_the_worst() -> None:
    item = dtype_check(op_check("a", 9.0, status="wrong"), op_check("b", None, status="wrong"), op_check("c", 1e-4))
    assert (found := nearest_to_wrong(item)) is not None
    assert found.label == "b"


def test_declined_inputs_are_listed_once_with_their_dtypes() -> None:
    declined = op_check("no rows", None, status="declined", message="it raised ValueError: no rows")
    text = printed(tell(report(*[dtype_check(op_check("example", 1e-4), declined)] * 2)))
    assert 1 == text.count("no rows (4 x 8)")
    assert "[float16, float16]" in text


def test_a_kernel_that_did_not_build_has_no_rows_and_a_command() -> None:
    reason = Reason(code=ReasonCode.BUILD_FAILED, message="k.cpp:3: error")
    text = printed(tell(report(outcome=Outcome.FAILED, reasons=[reason], device=None)))
    assert text.startswith("FAILED   rms_norm by ")
    assert "[build_failed]" in text
    assert AGAIN in text
