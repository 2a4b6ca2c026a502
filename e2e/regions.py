"""Where a kernel wins in a sweep, and the dispatch rule that follows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from e2e.schema.result import Region, Regions
from e2e.schema.words import Outcome

Dimension = Literal["rows", "sequence", "batch"]
_DIMENSIONS: tuple[Dimension, ...] = ("rows", "sequence", "batch")
"""In order of preference: `rows` is what most ops' constraints know (docs/kernels.md)."""
_BROKEN = {Outcome.INCORRECT, Outcome.FAILED, Outcome.NOT_APPLICABLE}


def regions_of(cells: Sequence[Region], *, is_of_one_kind: bool = True) -> Regions:
    """The table with its rule, if a threshold of one dimension parts the cells that win from all others.

    A cell where it is unknown whether the kernel wins counts as one that does not. There is no rule beside a
    cell where the kernel is wrong or does not run, nor across dtypes or kinds of step.
    """
    is_none = not is_of_one_kind or any(cell.outcome in _BROKEN for cell in cells)
    rules = [] if is_none else _rules(cells)
    rule, limits = rules[0] if rules else (None, None)
    others = ", ".join(other for other, _ in rules[1:])
    if others:
        limits = f"{limits}; {others} would fit these cells as well"
    return Regions(cells=list(cells), rule=rule, limits=limits)


def _rules(cells: Sequence[Region]) -> list[tuple[str, str]]:
    """Every threshold that parts them, in words of `constraints`, and what it leaves unmeasured."""
    wins = [cell for cell in cells if cell.standing == "wins"]
    others = [cell for cell in cells if cell.standing != "wins"]
    found: dict[tuple[int, ...], tuple[str, str]] = {}
    for name in _DIMENSIONS if wins and others else ():
        low, high = _span(wins, name)
        other_low, other_high = _span(others, name)
        if low > other_high:
            rule = f"{name} >= {low}", f"between {name} {other_high} and {low}, and above {high}, nothing was measured"
        elif high < other_low:
            rule = f"{name} <= {high}", f"between {name} {high} and {other_low}, and below {low}, nothing was measured"
        else:
            continue
        found.setdefault(_ranks(cells, name), rule)
    return list(found.values())


def _span(cells: Sequence[Region], name: Dimension) -> tuple[int, int]:
    values = [getattr(cell, name) for cell in cells]
    return min(values), max(values)


def _ranks(cells: Sequence[Region], name: Dimension) -> tuple[int, ...]:
    """Dimensions that order the cells alike say the same in other words."""
    values = [getattr(cell, name) for cell in cells]
    return tuple(sorted(set(values)).index(value) for value in values)
