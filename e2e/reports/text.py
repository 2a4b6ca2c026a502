"""For terminals: the first screen tells the whole story; 100 columns and no colour when piped."""

from __future__ import annotations

import io
import os
import shutil
import sys

from rich.console import Console, JustifyMethod
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from e2e.schema.result import Result
from e2e.story import Story, Tone, tell
from e2e.story_sections import Section, Table

WIDTH = 100
"""Where there is no terminal, and at most on one: longer lines are hard to read."""
_NARROWEST = 60
_STYLES: dict[Tone, str] = {"good": "bold green", "bad": "bold red", "open": "bold yellow"}


class TextReport:
    """Text with colour on a terminal, plain lines elsewhere."""

    def render(self, result: Result) -> str:
        """The whole report."""
        return printed(tell(result))


def printed(story: Story) -> str:
    """Any story as text."""
    stream = io.StringIO()
    _story(_console(stream), story)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def _console(stream: io.StringIO) -> Console:
    """A console that writes into memory as stdout would look."""
    on_terminal = sys.stdout.isatty()
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    terminal = not plain and (on_terminal or bool(os.environ.get("FORCE_COLOR")))
    width = max(_NARROWEST, min(WIDTH, shutil.get_terminal_size().columns)) if on_terminal else WIDTH
    return Console(
        file=stream,
        width=width,
        force_terminal=terminal,
        color_system="standard" if terminal else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )


def _story(console: Console, story: Story) -> None:
    console.print(Text.assemble((story.outcome, _STYLES[story.tone]), f"   {story.subject}"))
    if story.sentence:
        console.print(_labelled(story.asked, story.sentence))
    for reason in story.reasons:
        console.print(_labelled("because", reason))
    for mark in story.marks:
        console.print(Text(mark, "bold yellow"))
    for section in story.sections:
        _section(console, section)
    console.print()
    for line in story.footer:
        console.print(Text(line, "dim"))


def _section(console: Console, section: Section) -> None:
    console.print()
    console.print(Text(section.title, "bold"))
    if section.table is not None and section.table.rows:
        console.print(_table(section.table))
    for label, text in section.facts:
        console.print(_labelled(label, text))
    for line in section.lines:
        indent = len(line) - len(line.lstrip())
        console.print(Padding(Text(line.strip()), (0, 0, 0, 2 + indent)))


def _labelled(label: str, text: str) -> RichTable:
    """`label  text`, with the text's further lines under its first."""
    grid = RichTable.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=13, no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(f"  {label}", "dim"), Text(text))
    return grid


def _table(table: Table) -> Padding:
    drawn = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for index, title in enumerate(table.header):
        first, last = index == 0, index == len(table.header) - 1
        justify: JustifyMethod = "left" if first or last else "right"
        drawn.add_column(Text(title), justify=justify, no_wrap=not (first or last), overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(cell) for cell in row))
    return Padding(drawn, (0, 0, 0, 2))


PLUGIN = TextReport()
