"""Every field of a policy is in the table of docs/workloads.md once, with what the built-in policies say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.configuration import load_policy
from e2e.schema.policy import Policy
from e2e.schema.record import Record
from e2e.schema.words import MODES

DOCUMENT = Path(__file__).parents[2] / "docs" / "workloads.md"
NAMES, _, STANDARD, DEMO = range(4)


def table() -> list[list[str]]:
    """The rows of the policy table, as cells."""
    text = DOCUMENT.read_text(encoding="utf-8").partition("| field | is | `standard` | `demo` |\n")[2]
    rows = text.partition("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]


def names(row: list[str]) -> list[str]:
    return re.findall(r"`([^`]+)`", row[NAMES])


def fields(record: Record, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every field that is not a record itself, by its dotted name."""
    for name in type(record).model_fields:
        value = getattr(record, name)
        if isinstance(value, Record):
            yield from fields(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def in_words(name: str, value: Any) -> str:
    """A value as the table has it."""
    if value is None:
        return "any"
    if isinstance(value, bool):
        return str(value).lower()
    if name == "looks":
        return str(value)
    if isinstance(value, list):
        return "all" if value == list(MODES) else ", ".join(value) or "none"
    return str(value) if isinstance(value, str) else f"{value:.12g}"


def test_every_field_is_in_the_table_once() -> None:
    expected = {name for name, _ in fields(Policy(name="p"))} - {"name"}
    found = [name for row in table() for name in names(row)]
    assert sorted(expected) == sorted(found)


@pytest.mark.parametrize("row", table(), ids=lambda row: row[NAMES])
def test_the_table_says_what_the_built_in_policies_say(row: list[str]) -> None:
    standard, demo = (dict(fields(load_policy(name))) for name in ("standard", "demo"))
    said = [cell.replace("`", "") for cell in row]
    for column, policy in ((STANDARD, standard), (DEMO, standard if said[DEMO] == "same" else demo)):
        value = said[STANDARD] if said[column] == "same" else said[column]
        assert ", ".join(in_words(name, policy[name]) for name in names(row)) == value
    assert said[DEMO] != "same" or all(standard[name] == demo[name] for name in names(row))


def test_the_standard_policy_is_what_a_policy_is_by_default() -> None:
    assert load_policy("standard") == Policy(name="standard")
