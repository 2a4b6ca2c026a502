"""How long the model check is, and what a remark makes of an op check."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from e2e.schema.evidence import Answer, ModelFacts
from e2e.schema.words import ReasonCode
from e2e.stages.correctness import _model_tokens, op_checks
from tests import fakes


def course(*, device: str, parameters: int, width: int, tokens: int = 1, **numerics: Any) -> Any:
    model = ModelFacts(model_class="Model", parameters=parameters, dtypes={}, data="text")
    policy = fakes.policy()
    policy = policy.model_copy(update={"numerics": policy.numerics.model_copy(update=numerics)})
    return SimpleNamespace(
        facts={"answer": Answer(width=width, tokens=tokens).model_dump()},
        policy=policy,
        crew=SimpleNamespace(device=device),
        evidence=SimpleNamespace(model=model),
    )


@pytest.mark.parametrize(
    ("device", "parameters", "expected"),
    [("cpu", 6_000_000, 4096), ("cpu", 2**27, 512), ("cpu", 2**33, 64), ("cuda:0", 2**33, 4096)],
)
def test_a_cpu_is_asked_for_fewer_tokens_of_a_larger_model(device: str, parameters: int, expected: int) -> None:
    asked = course(device=device, parameters=parameters, width=256, model_tokens=4096, capture_bytes=2**28)
    assert expected == _model_tokens(asked)


@pytest.mark.parametrize(("width", "tokens", "expected"), [(2**17, 1, 512), (2**28, 1, 1), (1000, 196, 4096)])
def test_answers_must_fit_the_policys_bytes(width: int, tokens: int, expected: int) -> None:
    """An image's answer is one row of classes for all its patches."""
    asked = course(device="cuda", parameters=1, width=width, tokens=tokens, model_tokens=4096, capture_bytes=2**28)
    assert expected == _model_tokens(asked)


@pytest.mark.parametrize(("spread", "code"), [(None, None), (1e-7, None), (1e-2, ReasonCode.OP_ERROR_EXCEEDED)])
def test_two_calls_may_differ_as_much_as_one_may_err(spread: float | None, code: ReasonCode | None) -> None:
    row = {
        **{"site": "model.norm", "label": "captured", "shape": "4 x 8", "stride": "(8, 1)", "dtype": "float32"},
        **{"status": "passed", "error_candidate": 1e-8, "error_baseline": 1e-8, "allowed": 1e-6},
    }
    said = {"declined": None, "problem": None, "inputs_changed": False, "aliased": False, "layout": None}
    (found,) = op_checks([row], [{**said, "repeats": spread is None, "spread": spread}], is_lossy=False)
    assert (found.code, found.spread) == (code, spread)
    assert (code is None) == (found.message == "")
