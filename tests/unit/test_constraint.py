"""Expressions over named dimensions: what they say, and that nothing else gets through."""

from __future__ import annotations

import contextlib
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e2e.schema.constraint import check_expression, evaluate, holds

DIMS = {"rows": 16, "hidden": 2048, "dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (7, 7),
        ("rows", 16),
        ("4 * hidden", 8192),
        ("(hidden + 255) // 256", 8),
        ("hidden % 3 - 1", 1),
        (" rows ", 16),
    ],
)
def test_arithmetic_has_its_value(text: int | str, value: int) -> None:
    assert evaluate(text, DIMS) == value


@pytest.mark.parametrize(
    ("text", "truth"),
    [
        ("hidden % 8 == 0", True),
        ("64 <= hidden <= 1024", False),
        ("dtype == 'bfloat16'", True),
        ("dtype != 'bfloat16'", False),
        ("rows * hidden < 2 * 16384 + 1", True),
    ],
)
def test_a_comparison_has_its_truth(text: str, truth: bool) -> None:
    assert holds(text, DIMS) is truth


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " ",
            "hidden ** 9",
            "-hidden",
            "1.5",
            "None",
            "True",
            "f(1)",
            "a.b",
            "a[0]",
            "[1]",
            "x if y else z",
        ),
        *(
            "1 << 9",
            "hidden / 2",
            "lambda: 0",
            "(a := 1)",
            "'word'",
            "hidden +",
            "1if",
            "'\\d'",
            "\0",
            "\ud800",
        ),
        *("__import__('os').system('true')", "9" * 201, "(" * 150),
    ],
)
def test_anything_but_arithmetic_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not an expression|not a number|not allowed|at most 200"):
        check_expression(text)


def test_arithmetic_is_no_comparison_and_the_other_way_round() -> None:
    with pytest.raises(ValueError, match="must be a comparison"):
        check_expression("hidden", comparison=True)
    with pytest.raises(ValueError, match="must be arithmetic"):
        check_expression("hidden == 8")
    with pytest.raises(ValueError, match="not a comparison"):
        holds("hidden", DIMS)
    with pytest.raises(ValueError, match="not a number"):
        evaluate("hidden == 8", DIMS)


def test_a_divisor_that_may_be_zero_is_refused_only_when_it_is() -> None:
    check_expression("hidden // (rows - 2)")
    assert evaluate("hidden // (rows - 2)", DIMS) == 146
    with pytest.raises(ValueError, match="division by zero"):
        evaluate("hidden % (rows - 16)", DIMS)


def test_an_unknown_name_is_named_beside_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown name 'hiden'; known: dtype, hidden, rows"):
        evaluate("hiden * 4", DIMS)


def test_a_word_is_not_a_number() -> None:
    with pytest.raises(ValueError, match="another kind"):
        holds("dtype == 16", DIMS)
    with pytest.raises(ValueError, match="over numbers"):
        evaluate("dtype * 2", DIMS)


@given(st.text(max_size=250) | st.text("()+-*/%<>=!'0123456789abcdefhinowstrly. ", max_size=80))
@settings(max_examples=300, deadline=None)
def test_no_text_raises_anything_but_value_error(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for attempt in (
            lambda: check_expression(text),
            lambda: check_expression(text, comparison=True),
            lambda: evaluate(text, DIMS),
            lambda: holds(text, DIMS),
        ):
            with contextlib.suppress(ValueError):
                attempt()
