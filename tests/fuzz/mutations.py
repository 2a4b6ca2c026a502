"""Texts and documents that were right once, changed in one to a few places."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

Draw = Callable[..., Any]

ODD_NUMBERS = st.sampled_from([0, -1, 1, 2**31, 2**63, 2**64, 10**30, -0.0, 1e-320, 1e308, 0.5, -1.5, True, False])
ODD_TEXTS = st.sampled_from(
    ["", " ", "\0", "\ud800", "..", "/", "/dev/null", "\x1b[31m", "a" * 5000, "null", "nan", "1e999", "{}", "%s{x}"]
)
VALUES = st.recursive(
    st.none() | ODD_NUMBERS | ODD_TEXTS | st.text(max_size=8) | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)
_LINES = ["", "  - a", "x: y", "\t", "'", '"', "{", "]", "&a", "!!python/object:os.system", "---", "\x00", "é" * 300]
KINDS = ("drop", "replace", "near", "extra")
"""What happens to a value."""


@st.composite
def changed_text(draw: Draw, texts: Sequence[str]) -> str:
    """One of the texts with up to four of its lines dropped, doubled, swapped, cut or replaced."""
    rows = draw(st.sampled_from(texts)).split("\n")
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(0, len(rows) - 1)))
        kind = draw(st.sampled_from(["drop", "double", "swap", "cut", "replace", "join", "char"]))
        rows = _edited(rows, place, kind, draw)
    return "\n".join(rows)


def _edited(rows: list[str], place: int, kind: str, draw: Draw) -> list[str]:
    before, row, after = rows[:place], rows[place] if rows else "", rows[place + 1 :]
    if kind == "drop":
        return [*before, *after]
    if kind == "double":
        return [*before, row, row, *after]
    if kind == "swap":
        return [*before, *after[:1], row, *after[1:]]
    if kind == "join":
        return [*before, row + "".join(after[:1]), *after[1:]]
    at = draw(st.integers(0, len(row)))
    if kind == "cut":
        return [*before, row[:at], *after]
    if kind == "char":
        return [*before, row[:at] + draw(st.characters()) + row[at + 1 :], *after]
    new = draw(st.sampled_from(_LINES) | st.text(max_size=20))
    return [*before, row[:at] + new, *after]


@st.composite
def changed_document(draw: Draw, documents: Sequence[Any], *, most: int = 3, kinds: Sequence[str] = KINDS) -> Any:
    """One of the documents with up to `most` of its values dropped, doubled or replaced, wherever they stand."""
    document = json.loads(json.dumps(draw(st.sampled_from(documents))))
    for _ in range(draw(st.integers(1, most))):
        owner: Any = document
        while isinstance(owner, dict | list) and owner:
            keys = list(owner) if isinstance(owner, dict) else list(range(len(owner)))
            key = draw(st.sampled_from(keys))
            inner = owner[key]
            if not isinstance(inner, dict | list) or not inner or draw(st.integers(0, 4)) == 0:
                _change(owner, key, draw, kinds)
                break
            owner = inner
    return document


def _change(owner: Any, key: Any, draw: Draw, kinds: Sequence[str]) -> None:
    kind = draw(st.sampled_from(kinds))
    if kind == "drop":
        del owner[key]
    elif kind == "extra" and isinstance(owner, dict):
        owner[draw(st.text(max_size=8))] = draw(VALUES)
    elif kind == "extra":
        owner.append(owner[key])
    elif kind == "near":
        owner[key] = draw(_near(owner[key]))
    else:
        owner[key] = draw(VALUES)


def _near(value: Any) -> st.SearchStrategy[Any]:
    """Another value of the same kind, which a schema lets pass."""
    if isinstance(value, bool):
        return st.just(not value)
    if isinstance(value, int):
        return st.sampled_from([0, 1, -1, value + 1, -value, value * 1000, 2**62])
    if isinstance(value, float):
        return st.sampled_from([0.0, -value, value * 1e-12, value * 1e12, 1e-300, 1e300, -1.0])
    if isinstance(value, str):
        return st.sampled_from(["", value[::-1], value + "x", "/" * 3, value[:3]]) | ODD_TEXTS
    if isinstance(value, list):
        return st.sampled_from([[], value * 2, value[::-1], value[:1]])
    return st.just({} if isinstance(value, dict) else 0)
