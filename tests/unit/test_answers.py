"""The form of every answer of a worker that holds a candidate: what is missing, wrong or beyond is nonsense."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from e2e.schema.answers import ANSWERS, checked

HONEST: dict[str, dict[str, Any]] = {
    "run_ops": {"remarks": [{"declined": "rows % 8"}, {"inputs_changed": False, "repeats": True, "layout": None}]},
    "opcheck": {"called": None, "faked": "other strides"},
    "scout": {"fqns": ["model.norm"]},
    "engage": {"calls": {"model.norm": 1}, "watermark_moved": [True]},
    "logits": {"calls": {"model.norm": 9}},
    "gradients": {"loss": 2.5, "with_gradient": ["w"], "parameters": 1, "calls": {}},
    "prepare": {"first_step_s": 0.5, "graph_breaks": False, "prepare_s": None, "regions": None, "kernel_calls": [9]},
    "room": {"held_bytes": 1, "free_bytes": None},
    "warm_up": {"steps": 10, "seconds": 1, "is_steady": True, "change_ratio": 0.001},
    "go": {"digests": [[1, [0.5]]], "device_s": None, "allocations": None, "recompiled": False},
    "digests": {"digests": []},
    "isolated": {"seconds": {"eager": 1e-5, "candidate": 5e-6}, "plumbing_s": -1e-9},
    "generation": {"first_token_s": 0.01, "step_s": 0.2},
    "feed": {"batch_s": 0.01},
    "trace": {"steps": 3},
    "memory": {"steps": 8, "first_step_s": 0.1, "growth_bytes": -4096, "host_high_water_bytes": 2**30},
    "pause": {"pause_s": 0.001},
}
TEXTS = ("opcheck",)
"""Requests that are answered in words."""
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def every_field() -> list[tuple[str, str]]:
    return [(do, name) for do, reply in HONEST.items() for name in reply]


@pytest.mark.parametrize("do", ANSWERS)
def test_an_honest_answer_passes_as_it_is(do: str) -> None:
    reply = HONEST.get(do, {})
    found = checked(do, reply)
    if do not in ("run_ops", "isolated"):
        assert found == {**found, **reply}


def test_what_a_remark_leaves_out_is_absent() -> None:
    declined, seen = checked("run_ops", HONEST["run_ops"])["remarks"]
    assert (declined["declined"], declined["problem"], seen["declined"]) == ("rows % 8", None, None)


@pytest.mark.parametrize(("do", "name"), every_field())
def test_a_field_that_is_missing_is_nonsense(do: str, name: str) -> None:
    with pytest.raises(ValidationError):
        checked(do, {key: value for key, value in HONEST[do].items() if key != name})


@pytest.mark.parametrize(("do", "name"), every_field())
def test_a_field_of_another_kind_is_nonsense(do: str, name: str) -> None:
    for wrong in (9 if do in TEXTS else "9", {"a": []}):
        with pytest.raises(ValidationError):
            checked(do, {**HONEST[do], name: wrong})


@pytest.mark.parametrize("do", ANSWERS)
def test_a_field_that_nobody_asked_for_is_nonsense(do: str) -> None:
    with pytest.raises(ValidationError):
        checked(do, {**HONEST.get(do, {}), "verdict": "confirmed"})


@pytest.mark.parametrize(
    ("do", "name"), [("pause", "pause_s"), ("warm_up", "steps"), ("trace", "steps"), ("logits", "calls")]
)
def test_less_than_nothing_and_more_than_there_can_be_are_nonsense(do: str, name: str) -> None:
    for wrong in (-1, 10**400):
        with pytest.raises(ValidationError):
            checked(do, {**HONEST[do], name: wrong})


@given(st.sampled_from(sorted(HONEST)), st.dictionaries(st.sampled_from(["steps", "calls"]) | st.text(), JUNK))
def test_junk_is_refused_and_never_anything_else(do: str, junk: dict[str, Any]) -> None:
    with contextlib.suppress(ValidationError):
        assert set(checked(do, junk)) >= set(junk)
