"""Markdown, for pull requests and the run's folder; the same words as the text report."""

from __future__ import annotations

import re

from e2e.schema.result import Result
from e2e.story import Story, tell
from e2e.story_sections import Section, Table

_SPECIAL = re.compile(r"([\\`*\[\]<>|~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")
"""Underscores inside a word are only themselves in GitHub's dialect."""


class MarkdownReport:
    """GitHub's dialect: tables, no HTML."""

    def render(self, result: Result) -> str:
        """The whole report."""
        return written(tell(result))


def written(story: Story) -> str:
    """Any story as Markdown."""
    lines = [f"# {_escape(story.outcome)}", "", _escape(story.subject), ""]
    if story.sentence:
        lines += [f"{story.asked.capitalize()}: *{_escape(story.sentence)}*", ""]
    lines += [line for mark in story.marks for line in (f"> **{_escape(mark)}**", "")]
    lines += [f"- {_escape(reason)}" for reason in story.reasons]
    lines += [line for label, text in story.signing for line in ("", f"**{label.capitalize()}.** {_escape(text)}")]
    for section in story.sections:
        lines += ["", f"## {_escape(section.title)}", "", *_section(section)]
    lines += ["", "---", "", *(f"{_escape(line)}  " for line in story.footer)]
    return "\n".join(lines).rstrip() + "\n"


def _section(section: Section) -> list[str]:
    lines = _table(section.table) if section.table is not None and section.table.rows else []
    lines += [f"- **{_escape(label)}**: {_escape(text)}" for label, text in section.facts]
    if lines and section.lines:
        lines.append("")
    for line in section.lines:
        # An indented line is a command: code, so that it can be copied whole.
        is_command = line.startswith(" ")
        lines.append(f"  - `{line.strip().replace('`', '')}`" if is_command else f"- {_escape(line)}")
    return lines


def _table(table: Table) -> list[str]:
    last = len(table.header) - 1
    rule = ["---" if index in (0, last) else "---:" for index in range(len(table.header))]
    rows = [list(map(_escape, row)) for row in (table.header, *table.rows)]
    rows.insert(1, rule)
    return [f"| {' | '.join(row)} |" for row in rows]


def _escape(text: str) -> str:
    """Text as text: names in it come from files that others wrote."""
    return _SPECIAL.sub(r"\\\1", text)


PLUGIN = MarkdownReport()
