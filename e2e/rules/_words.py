"""Phrases that several rules use."""

from __future__ import annotations

from collections.abc import Sequence

from e2e import wording


def error_words(error: float | None, allowed: float | None) -> str:
    """`error 0.031, allowed 0.0024`."""
    return f"error {wording.small(error)}, allowed {wording.small(allowed)}"


def some(items: Sequence[str], most: int = 3) -> str:
    """`a, b, c and 4 more`."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more
