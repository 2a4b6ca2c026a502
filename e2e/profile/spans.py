"""Intervals of time: unions, intersections and gaps. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence

Span = tuple[float, float]
"""Start and end, in the trace's microseconds."""


def merged(spans: Iterable[Span]) -> list[Span]:
    """In order, those that touch as one; the other functions take such lists."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def length_of(spans: Sequence[Span]) -> float:
    """Of all of them."""
    return math.fsum(end - start for start, end in spans)


def common(first: Sequence[Span], second: Sequence[Span]) -> list[Span]:
    """Where both are."""
    found, place = [], 0
    for start, end in first:
        while place < len(second) and second[place][1] <= start:
            place += 1
        here = place
        while here < len(second) and second[here][0] < end:
            found.append((max(start, second[here][0]), min(end, second[here][1])))
            here += 1
    return found


def gaps(whole: Sequence[Span], taken: Sequence[Span]) -> list[Span]:
    """What the second leaves free of the first."""
    found = []
    for start, end in whole:
        at = start
        for left, right in common([(start, end)], taken[max(0, bisect_right(taken, (start, math.inf)) - 1) :]):
            if left > at:
                found.append((at, left))
            at = right
        if end > at:
            found.append((at, end))
    return found


def holds(spans: Sequence[Span], moment: float) -> bool:
    """Whether it lies in one of them; the end of one is after it."""
    at = bisect_right(spans, (moment, math.inf)) - 1
    return at >= 0 and moment < spans[at][1]
