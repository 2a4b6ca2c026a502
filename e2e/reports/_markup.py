"""HTML and SVG, built from the inside out: what is not markup already is escaped. The result is well-formed XML too."""

from __future__ import annotations

import html

_VOID = "meta"
"""The one element used here that has no end in HTML."""


class Markup(str):
    """Text that is markup already; only `tag`, `joined` and a file of ours make it."""

    __slots__ = ()


def tag(name: str, /, *children: str | None, **attributes: str | float | None) -> Markup:
    """One element. Children that are plain text are escaped; `class_` is `class`, `data_x` is `data-x`.

    An attribute or a child that is None is left out.
    """
    pairs = [f' {_name(key)}="{_escaped(str(value))}"' for key, value in attributes.items() if value is not None]
    opening = f"<{name}{''.join(pairs)}"
    return Markup(f"{opening}/>" if name == _VOID else f"{opening}>{joined(*children)}</{name}>")


def joined(*children: str | None) -> Markup:
    """Elements and texts, one after the other."""
    return Markup("".join(child if isinstance(child, Markup) else _escaped(child) for child in children if child))


def _name(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def _escaped(text: str) -> str:
    """Text as text, without characters that nobody sees: they come from files that others wrote."""
    seen = "".join(char if char.isprintable() or char in "\n\u00a0" else _spelt(char) for char in text)
    return html.escape(seen)


def _spelt(char: str) -> str:
    return char.encode("unicode_escape").decode()
