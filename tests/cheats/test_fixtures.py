"""Every fixture says what must come of it, every row has one, and a result is read as it must be. Runs nothing."""

from __future__ import annotations

import dataclasses

import pytest

from e2e.reading import read_kernel
from e2e.schema.words import Outcome, ReasonCode, ReasonKind, kind_of
from tests.cheats.fixtures import Expected, Fixture, Seen, fixtures

ALL = fixtures()
ELSEWHERE = {
    "T9": "tests/honest/slower.py and the parent's clock around a sync",
    "F4": "the mutants' check: tests/unit/test_judge.py, check_no_power",
    "C4": "a captured call keeps its alignment: tests/unit/test_captures.py; others are not tried",
    "N2": "no claim of a precision is read",
    "G2": "docs/threats.md, what it cannot do",
    "G6": "the op's outputs are all compared: tests/unit/test_ops_losses.py",
    "M6": "tests/honest/sums_in_any_order.py: not wrong",
    "M7": "not wrong; not reported",
    "M8": "tests/unit/test_peak.py",
}
"""Rows without a file of their own, and where they are looked at."""
ROWS = {
    *(f"T{n}" for n in range(1, 10)),
    *(f"R{n}" for n in range(1, 10)),
    *(f"F{n}" for n in range(1, 13)),
    *(f"N{n}" for n in range(1, 7)),
    *(f"C{n}" for n in range(1, 9)),
    *(f"M{n}" for n in range(1, 10)),
    *(f"G{n}" for n in range(1, 7)),
    *(f"H{n}" for n in range(1, 7)),
}


def test_every_row_of_the_catalogue_has_a_file_or_a_place() -> None:
    with_files = {item.expected.row for item in ALL if not item.is_honest}
    assert ROWS - with_files == set(ELSEWHERE)


@pytest.mark.parametrize("fixture", ALL, ids=lambda item: item.name)
def test_a_fixture_is_a_kernel_file_that_describes_itself(fixture: Fixture) -> None:
    assert read_kernel(str(fixture.path), op=None).manifest.entry


@pytest.mark.parametrize("fixture", [item for item in ALL if not item.is_honest], ids=lambda item: item.name)
def test_no_cheat_may_be_confirmed_and_what_is_incorrect_names_its_reason(fixture: Fixture) -> None:
    expected = fixture.expected
    assert Outcome.CONFIRMED not in expected.outcome
    if expected.outcome == [Outcome.INCORRECT]:
        assert expected.codes
        assert all(kind_of(code) is ReasonKind.INCORRECT for code in expected.codes)


CHEAT = Fixture(ALL[0].path, Expected(row="T1", outcome=[Outcome.INCORRECT], codes=[ReasonCode.TAMPERED]))
HONEST = next(item for item in ALL if item.is_honest)


def seen(outcome: Outcome | None, *codes: ReasonCode) -> Seen:
    return Seen(outcome, codes, "", 1.0)


def test_a_cheat_is_caught_only_for_its_own_reason() -> None:
    assert CHEAT.result(seen(Outcome.INCORRECT, ReasonCode.TAMPERED)) == "caught"
    assert CHEAT.result(seen(Outcome.INCORRECT, ReasonCode.OP_ERROR_EXCEEDED)) == "missed"
    assert CHEAT.result(seen(Outcome.REFUTED, ReasonCode.BELOW_MARGIN)) == "missed"
    assert CHEAT.result(seen(None)) == "missed"
    assert CHEAT.result(seen(Outcome.CONFIRMED, ReasonCode.GAIN_CONFIRMED)) == "confirmed"


def test_an_honest_kernel_may_win_or_lose_and_is_wronged_by_any_accusation() -> None:
    fixture = dataclasses.replace(HONEST, expected=Expected(row="A10"))
    for fair in (None, Outcome.CONFIRMED, Outcome.REFUTED, Outcome.INCONCLUSIVE):
        assert fixture.result(seen(fair)) == "fair"
    assert fixture.result(seen(Outcome.INCORRECT, ReasonCode.TAMPERED)) == "falsely accused"
    assert fixture.result(seen(Outcome.FAILED, ReasonCode.TIMED_OUT)) == "falsely accused"
    assert fixture.result(seen(None, ReasonCode.WORK_OUTSIDE_STEP)) == "falsely accused"
