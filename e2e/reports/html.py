"""One HTML file for browsers and printers: opens offline, asks for nothing, runs no script."""

from __future__ import annotations

import itertools
from pathlib import Path

from e2e.figures import Chart, Figure, Strip
from e2e.reports._drawings import chart, grid, strip, strip_axis
from e2e.reports._markup import Markup, joined, tag
from e2e.schema.result import Result
from e2e.story import Story, tell
from e2e.story_sections import Section, Table

_STYLE = Path(__file__).with_name("_page.css")
_NOTHING_FROM_OUTSIDE = "default-src 'none'; style-src 'unsafe-inline'"
"""Browsers then refuse scripts and requests, whatever a name in a result tries."""


class HtmlReport:
    """Everything that the run holds, in the order in which people ask for it."""

    def render(self, result: Result) -> str:
        """The whole page."""
        return page(tell(result, is_full=True))


def page(story: Story) -> str:
    """Any story as a page."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", http_equiv="Content-Security-Policy", content=_NOTHING_FROM_OUTSIDE),
        tag("title", f"{story.outcome}: {story.subject}"),
        tag("style", Markup(_STYLE.read_text(encoding="utf-8"))),
    )
    body = tag("body", _header(story), tag("main", *_parts(story)), _footer(story))
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _set(text: str) -> str:
    """As a printer would set it."""
    return text.replace(" +- ", " \u00b1 ").replace(" *", "\u00a0*")


def _header(story: Story) -> Markup:
    word, _, label = story.outcome.partition(": ")
    told = [tag("p", tag("b", f"{story.asked.capitalize()}: "), story.sentence, class_="tested")]
    reasons = tag("ul", *(tag("li", _set(reason)) for reason in story.reasons), class_="reasons")
    return tag(
        "header",
        tag("p", story.subject, class_="subject"),
        tag("h1", tag("span", word, class_="word"), tag("span", label, class_="label") if label else None),
        *(told if story.sentence else []),
        reasons if story.reasons else None,
        *(tag("p", mark, class_="mark") for mark in story.marks),
        tag("dl", *_pairs(story.signing), class_="signing") if story.signing else None,
        class_=f"tone-{story.tone}",
    )


def _footer(story: Story) -> Markup:
    return tag("footer", *(tag("p", line) for line in story.footer))


def _parts(story: Story) -> list[Markup]:
    """Sections in order; those of a cell that does not decide are folded together."""
    parts = []
    for cell, sections in itertools.groupby(story.sections, key=lambda section: section.cell):
        drawn = [_section(section) for section in sections]
        parts += drawn if cell is None else [tag("details", tag("summary", cell), *drawn, class_="cell")]
    return parts


def _section(section: Section) -> Markup:
    inside = joined(
        _figure(section.figure) if section.figure is not None else None,
        _table(section.table, section.title) if section.table is not None and section.table.rows else None,
        tag("dl", *_pairs(section.facts), class_="facts") if section.facts else None,
        *_lines(section.lines),
    )
    if section.is_folded:
        return tag("details", tag("summary", section.title), inside, class_="section")
    return tag("section", tag("h2", section.title), inside)


def _figure(figure: Figure) -> Markup:
    return chart(figure) if isinstance(figure, Chart) else grid(figure)


def _pairs(facts: tuple[tuple[str, str], ...]) -> list[Markup]:
    return [tag("div", tag("dt", label), tag("dd", _set(text))) for label, text in facts]


def _lines(lines: tuple[str, ...]) -> list[Markup]:
    """An indented line is a command: code, so that it can be copied whole."""
    return [
        tag("pre", tag("code", line.strip())) if line.startswith(" ") else tag("p", _set(line), class_="line")
        for line in lines
    ]


def _table(table: Table, title: str) -> Markup:
    drawing = table.strip
    sides = [_side(table, index) for index in range(len(table.header))]
    head = [tag("th", text, scope="col", class_=side) for text, side in zip(table.header, sides, strict=True)]
    if drawing is not None:
        head.insert(1, tag("th", strip_axis(drawing.axis, f"Axis: {drawing.title}"), scope="col", class_="strip"))
    rows = [tag("tr", *_row(table, number, sides)) for number in range(len(table.rows))]
    whole = tag(
        "table",
        tag("caption", title),
        tag("thead", tag("tr", *head)),
        tag("tbody", *rows),
        class_="drawn" if drawing else None,
    )
    return tag("div", whole, class_="wide")


def _row(table: Table, number: int, sides: list[str]) -> list[Markup]:
    """Every cell has its column's name, for screens too narrow for a head."""
    row = table.rows[number]
    first, *others = zip(row, table.header, sides, strict=True)
    cells = [tag("th", _set(first[0]), scope="row", class_=first[2])]
    cells += [tag("td", _set(text), class_=side, data_name=name) for text, name, side in others]
    if table.strip is not None:
        cells.insert(1, tag("td", _drawn(table.strip, row, number), class_="strip"))
    return cells


def _drawn(drawing: Strip, row: tuple[str, ...], number: int) -> Markup | None:
    marks = drawing.rows[number]
    return strip(marks, drawing.axis, f"{drawing.title}: {', '.join(filter(None, row))}") if marks else None


def _side(table: Table, index: int) -> str:
    """Text on the left, numbers on the right; a last column may hold either."""
    last = index == len(table.header) - 1
    cells = [row[index] for row in table.rows if row[index]]
    return "text" if index == 0 or (last and not all(cell[0] in "+-0123456789" for cell in cells)) else "number"


PLUGIN = HtmlReport()
