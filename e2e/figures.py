"""Drawings as data: what is drawn, and on which axis; a report only turns it into marks. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

Ink = Literal["kernel", "pytorch", "control", "good", "bad", "open"]
"""Who a mark belongs to, or what it means."""
Shape = Literal["interval", "bar", "dot", "limit"]
Guides = tuple[tuple[float, str], ...]
"""Values with a meaning, and their names."""
_WIDE = 3.0
"""A ratio axis that spans more than this is logarithmic."""
_ROOM = 0.06
"""Share of the span left free beyond the outermost value."""
_NARROWEST = 0.002
"""Ratios nearer to each other than this are drawn near to each other."""
_TICKS = 4


@dataclass(frozen=True)
class Axis:
    """A scale with its labelled ticks and named lines."""

    low: float
    high: float
    is_log: bool = False
    ticks: tuple[tuple[float, str], ...] = ()
    guides: Guides = ()

    def place(self, value: float) -> float:
        """Share of the axis from its low end, from 0 to 1; what lies beyond an end is put on it."""
        value = min(max(value, self.low), self.high)
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def holds(self, value: float) -> bool:
        """Whether the value lies on the axis."""
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Mark:
    """One mark in a row's drawing."""

    shape: Shape
    value: float
    ink: Ink
    lower: float | None = None
    upper: float | None = None


@dataclass(frozen=True)
class Strip:
    """A drawing for every row of a table, all on one axis."""

    title: str
    axis: Axis
    rows: tuple[tuple[Mark, ...], ...]


@dataclass(frozen=True)
class Line:
    """One series: values by place."""

    name: str
    ink: Ink
    points: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Chart:
    """Values in the order in which they were measured, in bands of places that belong together."""

    title: str
    """What it shows, in a sentence: it stands for the picture where there is none."""
    axis: Axis
    lines: tuple[Line, ...]
    bands: tuple[tuple[str, int, int], ...]
    """Label, first place and last place."""
    interval: tuple[float, float] | None = None
    """Range of the axis that is shaded: an interval of the whole."""


@dataclass(frozen=True)
class Tile:
    """One cell of a heat map."""

    text: str
    note: str
    ink: Ink
    strength: float
    """From 0 to 1."""


@dataclass(frozen=True)
class Grid:
    """A heat map: one tile for every pair of a row and a column; None where there was no cell."""

    title: str
    corner: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Tile | None, ...]], ...]


Figure = Chart | Grid


# ---- Axes


def ratio_axis(values: Iterable[float], *, margin: float | None = None) -> Axis:
    """An axis of ratios with 1 on it; logarithmic where they differ much, so that 2x and 0.5x are as far from 1."""
    guides = ((1.0, "1x"),) if margin is None else ((1.0, "1x"), (1 + margin, "margin"))
    known = [value for value in (*values, *(place for place, _ in guides)) if value > 0]
    low, high = min(known), max(known)
    if high / low > _WIDE:
        room = (high / low) ** _ROOM
        low, high = low / room, high * room
        return Axis(low, high, True, tuple((tick, f"{tick:g}x") for tick in _log_ticks(low, high)), guides)
    room = max(high - low, _NARROWEST) * _ROOM
    low, high = low - room, high + room
    return Axis(low, high, False, tuple((tick, f"{tick:.6g}x") for tick in _even_ticks(low, high)), guides)


def amount_axis(values: Iterable[float]) -> Axis:
    """An axis from 0 to the largest amount, for bars."""
    return Axis(0.0, max(values, default=0.0) or 1.0)


def error_axis(values: Iterable[float]) -> Axis:
    """A logarithmic axis of errors in whole decades; 0 stands at its low end."""
    known = [value for value in values if value > 0] or [1.0]
    low, high = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
    high = max(high, low + 1)
    ticks = tuple((10.0**power, f"1e{power}") for power in range(low, high + 1))
    return Axis(10.0**low, 10.0**high, True, ticks)


def level_axis(values: Iterable[float], label: Callable[[float], str], *, guides: Guides = ()) -> Axis:
    """An axis close around values of one kind, such as step times."""
    known = [*values, *(value for value, _ in guides)]
    low, high = min(known), max(known)
    room = (high - low) * _ROOM or abs(high) * _ROOM or 1.0
    low, high = low - room, high + room
    return Axis(low, high, False, tuple((tick, label(tick)) for tick in _even_ticks(low, high)), guides)


def _even_ticks(low: float, high: float) -> list[float]:
    """Round numbers on an axis, about `_TICKS` of them."""
    rough = (high - low) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= rough)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [step * number for number in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Round numbers on a logarithmic axis; fewer to a decade the more decades there are."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    span = math.log10(high / low)
    factors = [1.0] if span >= 2 else [1.0, 2.0, 5.0] if span >= 1 else [1.0, 1.5, 2.0, 3.0, 5.0]
    return [tick for power in decades for factor in factors if low <= (tick := factor * 10.0**power) <= high]
