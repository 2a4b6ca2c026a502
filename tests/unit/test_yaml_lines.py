"""YAML with lines: what is read, what is refused, and how mistakes are told."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, ValidationError, field_validator

from e2e.errors import UsageError
from e2e.schema.record import Record
from e2e.yaml_lines import MAX_BYTES, explain, parse, printable


class Wheel(Record):
    size: int = Field(gt=0)
    tyre: Literal["road", "gravel"] = "road"


class Bicycle(Record):
    name: str
    wheels: list[Wheel] = Field(default_factory=list)
    spare: Wheel | None = None
    entry: str | dict[Literal["a", "b"], str] = ""
    extras: dict[str, Any] = Field(default_factory=dict)

    @field_validator("name")
    @classmethod
    def _no_space(cls, value: str) -> str:
        if " " in value:
            raise ValueError("must be one word")
        return value


def mistakes(text: str) -> list[str]:
    data, lines = parse(text, file="b.yaml")
    with pytest.raises(ValidationError) as caught:
        Bicycle.model_validate(data)
    return explain(caught.value, lines, "b.yaml", Bicycle)


def refusal(text: str, **options: Any) -> str:
    with pytest.raises(UsageError) as caught:
        parse(text, file="b.yaml", **options)
    return caught.value.message


def test_data_and_lines_belong_together() -> None:
    data, lines = parse("a: 1\nb:\n  - x\n  - c: [y,\n     z]\n", file="b.yaml", first_line=10)
    assert data == {"a": 1, "b": ["x", {"c": ["y", "z"]}]}
    assert lines[("a",)] == 10
    assert lines[("b", 1, "c")] == 13
    assert lines[("b", 1, "c", 1)] == 14


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("1e-5", 1e-5), ("-2.5", -2.5), ("012", 12), ("0x10", 16), ("0o17", 15), ("1:30", "1:30")],
        *[
            ("true", True),
            ("~", None),
            ("", None),
            ("2024-01-01", "2024-01-01"),
            ("'12'", "12"),
            ("1_000", "1_000"),
        ],
        *[('"yes"', "yes"), ("-O3", "-O3"), ("rows", "rows"), ("é", "é")],
    ],
)
def test_scalars_are_read_as_in_yaml_1_2(text: str, value: object) -> None:
    assert parse(f"a: {text}", file="b.yaml").data == {"a": value}


@pytest.mark.parametrize("word", ["yes", "No", "on", "OFF"])
def test_a_word_that_some_read_as_a_boolean_is_refused(word: str) -> None:
    assert "b.yaml:1: a: " in refusal(f"a: {word}")
    assert "write true or false" in refusal(f"a: {word}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2\na: 3", "b.yaml:3: a: given twice (first on line 1); keep one"),
        ("a: &x 1\nb: *x", "b.yaml:1: not readable as YAML: anchors and aliases are not allowed"),
        ("a: 1\nb: *x", "b.yaml:2: not readable as YAML: anchors and aliases are not allowed"),
        (
            "a: !!python/object:os.system x",
            "b.yaml:1: a: tags such as 'tag:yaml.org,2002:python/object:os.system'",
        ),
        ("a: .inf", "b.yaml:1: a: '.inf' is not a finite number"),
        ("a: 1e999", "b.yaml:1: a: '1e999' is not a finite number"),
        ("a: " + "9" * 5000, "b.yaml:1: a: a number has at most 100 digits"),
        ("? [a]\n: 1", "b.yaml:1: a key must be a plain word"),
        ("a: b: c", "b.yaml:1: not readable as YAML"),
        ("a:\n\tb: 1", "b.yaml:2: not readable as YAML"),
        ("a: 1\n--- \nb: 1", "b.yaml:2: not readable as YAML"),
        ("a: 1\nb: \x01", "b.yaml:2: not readable as YAML: a control character"),
        ("[" * 500, "nested more than 32 levels deep"),
        ("a: " + "x" * MAX_BYTES, "b.yaml:1: too large"),
    ],
)
def test_what_is_outside_the_subset_is_refused_with_its_line(text: str, said: str) -> None:
    assert said in refusal(text)


def test_all_structural_mistakes_come_at_once_in_lines_of_the_file() -> None:
    rows = refusal("a: yes\nb: .nan\nb: 1", first_line=5).split("\n")
    assert [row.partition(" ")[0] for row in rows] == ["b.yaml:5:", "b.yaml:6:", "b.yaml:7:"]


def test_every_field_error_is_told_with_its_line_and_the_nearest_name() -> None:
    text = "nam: x\nwheels:\n  - size: 0\n  - size: 26\n    tyre: gravle\nspare:\n  sise: 1\nextras: 3\n"
    assert mistakes(text) == [
        "b.yaml:1: name: missing; it is required",
        "b.yaml:1: nam: no such field; did you mean 'name'?",
        "b.yaml:3: wheels[0].size: must be greater than 0, not 0",
        "b.yaml:5: wheels[1].tyre: must be 'road' or 'gravel', not 'gravle'; did you mean 'gravel'?",
        "b.yaml:6: spare.size: missing; it is required",
        "b.yaml:7: spare.sise: no such field; did you mean 'size'?",
        "b.yaml:8: extras: must be a mapping of fields, not 3",
    ]


def test_a_field_without_a_near_name_is_told_all_names() -> None:
    assert mistakes("name: x\nzzz: 1") == ["b.yaml:2: zzz: no such field; known: name, wheels, spare, entry, extras"]


def test_a_union_is_one_mistake_not_one_per_member() -> None:
    assert mistakes("name: x\nentry: 3") == [
        "b.yaml:2: entry: must be a valid string, not 3 (put it in quotes); or must be a mapping of fields, not 3"
    ]
    assert mistakes("name: x\nentry:\n  a: 3") == [
        "b.yaml:3: entry.a: must be a valid string, not 3 (put it in quotes)"
    ]
    assert mistakes("name: x\nentry:\n  c: f") == ["b.yaml:3: entry.c: must be 'a' or 'b', not 'c'"]


def test_a_validator_speaks_in_its_own_words() -> None:
    assert mistakes("name: two words") == ["b.yaml:1: name: must be one word"]


def test_a_file_that_is_no_mapping_is_told_so() -> None:
    assert mistakes("- a") == ["b.yaml:1: must be a mapping of fields"]
    assert mistakes("") == ["b.yaml:1: must be a mapping of fields, not empty"]


def test_control_characters_never_reach_the_terminal() -> None:
    assert mistakes('name: x\n"\\e[2J": 1') == [
        "b.yaml:2: \\x1b[2J: no such field; known: name, wheels, spare, entry, extras"
    ]
    assert printable("a" * 100, 10) == "aaaaaaa..."


@given(st.text(max_size=200) | st.text("ab:-[]{}&*!?|>'\"#%@,. \n\t01", max_size=60))
@settings(max_examples=300, deadline=None)
def test_no_text_raises_anything_but_usage_error(text: str) -> None:
    try:
        data, lines = parse(text, file="b.yaml")
    except UsageError:
        return
    try:
        Bicycle.model_validate(data)
    except ValidationError as error:
        for row in explain(error, lines, "b.yaml", Bicycle):
            assert row.startswith("b.yaml:")
            assert "\n" not in row
