"""Annotations for GitHub Actions: a workflow command a line, at the place in the kernel's file where that is known."""

from __future__ import annotations

from collections.abc import Iterator

from e2e.schema.result import Result
from e2e.schema.verdict import Reason
from e2e.schema.words import Outcome, ReasonKind, kind_of
from e2e.story import Story, reason_line, tell
from e2e.wording import clean

_MOST = 10
"""GitHub shows no more of one kind for a step."""


class GitHubReport:
    """The headline as an error, or as a notice where the exit code is 0; then every other reason."""

    def render(self, result: Result) -> str:
        """The lines; they go to the step's log."""
        return "".join(f"{line}\n" for line in _lines(result, tell(result)))


def _lines(result: Result, story: Story) -> Iterator[str]:
    yield _command("notice", f"e2e run {result.run_id}", f"{story.outcome}; {story.subject}")
    if result.error is not None:
        yield _command("error", story.outcome, result.error.message, file=_kernel_file(result))
    passes = result.error is None and result.outcome in (Outcome.CONFIRMED, None)
    for number, reason in enumerate(result.reasons[:_MOST]):
        is_headline = number == 0 and not passes
        yield _annotation(reason, "error" if is_headline else _level(reason), story.outcome, _kernel_file(result))


def _level(reason: Reason) -> str:
    kind = kind_of(reason.code)
    if kind in (ReasonKind.INCORRECT, ReasonKind.FAILED):
        return "error"
    return "notice" if kind in (ReasonKind.ADVICE, ReasonKind.INTERVAL) else "warning"


def _annotation(reason: Reason, level: str, title: str, kernel: str | None) -> str:
    where = reason.where
    return _command(level, title, reason_line(reason), file=where.file or kernel, line=where.line)


def _kernel_file(result: Result) -> str | None:
    return result.kernels[0].path if len(result.kernels) == 1 else None


def _command(level: str, title: str, text: str, *, file: str | None = None, line: int | None = None) -> str:
    """`::error file=kernels/a.cu,line=12,title=INCORRECT::message`."""
    places = {"file": file, "line": str(line) if file and line else None, "title": title}
    pairs = ",".join(f"{name}={_property(value)}" for name, value in places.items() if value)
    return f"::{level} {pairs}::{_data(text)}"


def _data(text: str) -> str:
    """What a kernel says must not become a command of its own, which starts a line."""
    return clean(text).replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


PLUGIN = GitHubReport()
