"""Drawings as inline SVG: widths in per cent, so that text keeps its size on a phone; colours from the page's style."""

from __future__ import annotations

from e2e.figures import Axis, Chart, Grid, Line, Mark
from e2e.reports._markup import Markup, joined, tag

_ROW, _HEAD, _PLOT = 24.0, 34.0, 220.0
"""Heights in pixels: of a row's drawing, of an axis, of a chart."""
_BEYOND = 200.0
"""Guides are drawn so far beyond a row, and cut at its cell: rows may be higher than their drawing."""
_SIDE = 2.0
"""Per cent left free on both sides."""
_LABELS = 6.0
"""Per cent of a chart that its axis' labels have for themselves."""
_LINE = 12.0
"""Labels of levels nearer to each other than this, in pixels, would overlap."""
_TICK_ROOM = 18.0
"""Ticks nearer to each other than this, in per cent, would overlap on a phone."""


def strip(marks: tuple[Mark, ...], axis: Axis, alt: str) -> Markup:
    """One row's drawing."""
    guides = [_upright(_x(axis, value), -_BEYOND, _BEYOND, "guide") for value, _ in axis.guides]
    drawn = [_mark(mark, axis) for mark in marks]
    return _svg(_ROW, alt, *guides, *drawn)


def strip_axis(axis: Axis, alt: str) -> Markup:
    """The head of a column of drawings: ticks, and names of the guides, where they have room."""
    parts = []
    taken: list[float] = []
    for number, (value, label) in enumerate(axis.guides):
        x = _x(axis, value)
        taken += [x, x + 0.75 * _TICK_ROOM]  # its name stands to the right
        is_first = number == 0 and len(axis.guides) > 1
        is_left = (is_first and x > _TICK_ROOM / 3) or x > 100 - _TICK_ROOM
        parts.append(_text(x, 14, label, "guide-label", "end" if is_left else "start", shift=-3 if is_left else 3))
        parts.append(_upright(x, 18, _HEAD, "guide"))
    for value, label in axis.ticks:
        x = _x(axis, value)
        if all(abs(x - other) >= _TICK_ROOM for other in taken):
            taken.append(x)
            parts.append(_text(x, 14, label, "tick"))
            parts.append(_upright(x, 20, 26, "tick-mark"))
    return _svg(_HEAD, alt, *parts) if parts else Markup("")


def _mark(mark: Mark, axis: Axis) -> Markup:
    x, middle, ink = _x(axis, mark.value), _ROW / 2, f"ink-{mark.ink}"
    if mark.shape == "bar":
        start = _x(axis, axis.low if mark.lower is None else mark.lower)
        left, width = min(start, x), max(abs(x - start), 0.4)
        return tag("rect", x=_pc(left), width=_pc(width), y=6, height=_ROW - 12, rx=2, class_=f"bar {ink}")
    if mark.shape == "limit":
        return _upright(x, 4, _ROW - 4, f"limit {ink}")
    if not axis.holds(mark.value):
        return _end(mark.value, axis, ink)
    point = tag("circle", cx=_pc(x), cy=middle, r=4.5, class_=f"dot {ink}")
    if mark.lower is None or mark.upper is None:
        return point
    left, right = _x(axis, mark.lower), _x(axis, mark.upper)
    whisker = tag("line", x1=_pc(left), x2=_pc(right), y1=middle, y2=middle, class_=f"whisker {ink}")
    return joined(whisker, *(_end(bound, axis, ink) for bound in (mark.lower, mark.upper)), point)


def _end(value: float, axis: Axis, ink: str) -> Markup:
    """Of an interval; an arrow where it lies beyond the axis."""
    x, middle = _x(axis, value), _ROW / 2
    if axis.holds(value):
        return _upright(x, middle - 4, middle + 4, f"whisker {ink}")
    return _text(x, middle + 4, "\u25b6" if value > axis.high else "\u25c0", f"beyond {ink}")


def chart(figure: Chart) -> Markup:
    """Values over places, with bands, an axis whose labels stand on its lines, and a legend."""
    places = max((place for line in figure.lines for place, _ in line.points), default=0) + 1
    parts = []
    for index, (label, first, last) in enumerate(figure.bands):
        left, right = _place(first - 0.5, places), _place(last + 0.5, places)
        shade = "band" if index % 2 == 0 else "band odd"
        parts.append(tag("rect", x=_pc(left), width=_pc(right - left), y=0, height=_PLOT, class_=shade))
        parts.append(_text((left + right) / 2, _PLOT + 16, label, "tick"))
    if figure.interval is not None:
        low, high = (_y(figure.axis, bound) for bound in figure.interval)
        parts.append(
            tag("rect", x="0", width="100%", y=f"{high:.1f}", height=f"{max(low - high, 1):.1f}", class_="interval")
        )
    named = [_y(figure.axis, value) for value, _ in figure.axis.guides]
    parts += [
        _level(figure.axis, value, label, "grid-line")
        for value, label in figure.axis.ticks
        if all(abs(_y(figure.axis, value) - other) >= _LINE for other in named)
    ]
    parts += [_level(figure.axis, value, label, "guide") for value, label in figure.axis.guides]
    parts += [_series(line, figure, places) for line in figure.lines]
    drawn = _svg(_PLOT + 24, figure.title, *parts)
    keys = [tag("li", tag("span", class_=f"key ink-{line.ink}"), line.name) for line in figure.lines]
    if figure.interval is not None:
        keys.append(tag("li", tag("span", class_="key interval-key"), "interval of the whole"))
    if figure.bands:
        keys.append(tag("li", "below: number of the worker process"))
    return tag("figure", tag("figcaption", figure.title), drawn, tag("ul", *keys, class_="legend"))


def _series(line: Line, figure: Chart, places: int) -> Markup:
    """Dots, joined within a band."""
    at = dict(line.points)
    parts = []
    for place, value in line.points:
        x, y = _place(place, places), _y(figure.axis, value)
        begins_band = any(place == first for _, first, _ in figure.bands)
        if place - 1 in at and not begins_band:
            before = _y(figure.axis, at[place - 1])
            ends = {"x1": _pc(_place(place - 1, places)), "x2": _pc(x), "y1": f"{before:.1f}", "y2": f"{y:.1f}"}
            parts.append(tag("line", class_=f"joint ink-{line.ink}", **ends))
        parts.append(tag("circle", cx=_pc(x), cy=f"{y:.1f}", r=3, class_=f"dot ink-{line.ink}"))
    return joined(*parts)


def _level(axis: Axis, value: float, label: str, style: str) -> Markup:
    y = _y(axis, value)
    line = tag("line", x1="0", x2="100%", y1=f"{y:.1f}", y2=f"{y:.1f}", class_=style)
    return joined(line, tag("text", label, x=4, y=f"{y - 4:.1f}", class_="level"))


def grid(figure: Grid) -> Markup:
    """A heat map as a table: colour only repeats what its words say."""
    head = tag("tr", tag("th", figure.corner), *(tag("th", column, scope="col") for column in figure.columns))
    rows = []
    for label, tiles in figure.rows:
        cells = [
            tag("td")
            if tile is None
            else tag(
                "td",
                tag("b", tile.text),
                tag("small", tile.note),
                class_=f"tile ink-{tile.ink}",
                style=f"--depth:{0.15 + 0.6 * tile.strength:.2f}",
            )
            for tile in tiles
        ]
        rows.append(tag("tr", tag("th", label, scope="row"), *cells))
    table = tag("table", tag("thead", head), tag("tbody", *rows), class_="heat")
    return tag("figure", tag("figcaption", figure.title), tag("div", table, class_="wide"))


# ---- Places


def _svg(height: float, alt: str, *parts: Markup) -> Markup:
    return tag("svg", tag("title", alt), *parts, role="img", aria_label=alt, width="100%", height=height)


def _x(axis: Axis, value: float) -> float:
    return _SIDE + (100 - 2 * _SIDE) * axis.place(value)


def _y(axis: Axis, value: float) -> float:
    return _PLOT - 8 - (_PLOT - 24) * axis.place(value)


def _place(place: float, places: int) -> float:
    """Right of the axis' labels."""
    return _LABELS + (100 - _LABELS) * (place + 0.5) / places


def _pc(value: float) -> str:
    return f"{value:.2f}%"


def _upright(x: float, top: float, bottom: float, style: str) -> Markup:
    return tag("line", x1=_pc(x), x2=_pc(x), y1=top, y2=bottom, class_=style)


def _text(x: float, y: float, text: str, style: str, anchor: str | None = None, *, shift: float = 0) -> Markup:
    """`shift` is in pixels."""
    anchor = anchor or ("start" if x < 8 else "end" if x > 92 else "middle")
    return tag("text", text, x=_pc(x), dx=shift or None, y=y, text_anchor=anchor, class_=style)
