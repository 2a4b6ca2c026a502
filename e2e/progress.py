"""Progress for people (stderr) and for programs (`--events`, JSON lines).

No threads and no timers: while a clock runs, the parent is silent (PROTOTYPES.md, section 4).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from e2e.errors import UsageError, exit_code_of
from e2e.protocols import Progress
from e2e.units import Seconds
from e2e.wording import clean, span

Clock = Callable[[], Seconds]

_QUIET_S = 10.0
"""Plain lines about how far a part is: at most one in this time, and the last."""


class PlainProgress:
    """One line per event, with elapsed seconds: for pipes, logs and CI."""

    def __init__(self, stream: TextIO, *, clock: Clock = time.monotonic) -> None:
        self._stream, self._clock, self._start = stream, clock, clock()
        self._said_at: Seconds | None = None

    def stage(self, name: str, detail: str = "") -> None:
        """A stage, or a part of one, begins."""
        self._said_at = None
        self._say(f"{name}{detail and f': {detail}'}")

    def note(self, text: str) -> None:
        """Something is known now."""
        self._say(f"  {text}")

    def advance(self, done: int, total: int, what: str, left_s: Seconds | None = None) -> None:
        """How far a long part is; most calls say nothing here."""
        now = self._clock()
        if done < total and self._said_at is not None and now - self._said_at < _QUIET_S:
            return
        self._said_at = now
        self._say(f"  {_how_far(done, total, what, left_s)}")

    def close(self) -> None:
        """Nothing is left to take away."""

    def _say(self, text: str) -> None:
        indent = text[: len(text) - len(text.lstrip())]
        _write(self._stream, f"[{self._clock() - self._start:6.1f} s] {indent}{clean(text)}\n")


class LineProgress:
    """Notes stay, the present activity is one line that is rewritten: for terminals."""

    def __init__(self, stream: TextIO, *, clock: Clock = time.monotonic) -> None:
        self._stream, self._clock, self._start = stream, clock, clock()
        self._stage = ""

    def stage(self, name: str, detail: str = "") -> None:
        """A stage, or a part of one, begins."""
        self._stage = clean(f"{name}{detail and f': {detail}'}")
        self._show(self._stage)

    def note(self, text: str) -> None:
        """Something is known now."""
        _write(self._stream, f"\r\x1b[K{clean(text)}\n")
        self._show(self._stage)

    def advance(self, done: int, total: int, what: str, left_s: Seconds | None = None) -> None:
        """How far a long part is."""
        self._show(f"{self._stage}: {_how_far(done, total, what, left_s)}")

    def close(self) -> None:
        """Take the line away, so that the report starts in the first column."""
        _write(self._stream, "\r\x1b[K")

    def _show(self, text: str) -> None:
        line = f"[{self._clock() - self._start:4.0f} s] {clean(text)}"
        width = shutil.get_terminal_size().columns - 1  # a full line would wrap and could not be rewritten
        _write(self._stream, f"\r\x1b[K{line[:width]}")


class EventProgress:
    """JSON lines: `start`, `stage`, `note`, `progress`, `finish`, each with `elapsed_s`.

    As a context it closes its stream, after a `finish` in every case: readers wait for one.
    """

    def __init__(self, stream: TextIO, *, clock: Clock = time.monotonic) -> None:
        self._stream, self._clock, self._start = stream, clock, clock()
        self._finished = False

    def __enter__(self) -> EventProgress:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if not self._finished:
            self.finish(code=exit_code_of(error), outcome=None, run=None)
        with contextlib.suppress(OSError):
            self._stream.close()

    def start(self, command: Sequence[str]) -> None:
        """The command begins."""
        self._event("start", command=list(command))

    def stage(self, name: str, detail: str = "") -> None:
        """A stage, or a part of one, begins."""
        self._event("stage", name=name, detail=detail)

    def note(self, text: str) -> None:
        """Something is known now."""
        self._event("note", text=text)

    def advance(self, done: int, total: int, what: str, left_s: Seconds | None = None) -> None:
        """How far a long part is."""
        self._event("progress", done=done, total=total, what=what, left_s=left_s)

    def finish(self, *, code: int, outcome: str | None, run: str | None) -> None:
        """The command ended with this exit code."""
        self._finished = True
        self._event("finish", code=code, outcome=outcome, run=run)

    def _event(self, event: str, **fields: Any) -> None:
        record = {"event": event, "elapsed_s": round(self._clock() - self._start, 3), **fields}
        _write(self._stream, json.dumps(record, allow_nan=False) + "\n")


class Several:
    """Tells every listener."""

    def __init__(self, listeners: Sequence[Progress]) -> None:
        self._listeners = tuple(listeners)

    def stage(self, name: str, detail: str = "") -> None:
        """A stage, or a part of one, begins."""
        for listener in self._listeners:
            listener.stage(name, detail)

    def note(self, text: str) -> None:
        """Something is known now."""
        for listener in self._listeners:
            listener.note(text)

    def advance(self, done: int, total: int, what: str, left_s: Seconds | None = None) -> None:
        """How far a long part is."""
        for listener in self._listeners:
            listener.advance(done, total, what, left_s)


def for_people(stream: TextIO) -> PlainProgress | LineProgress:
    """What suits the stream: a rewritten line on a terminal; plain lines in pipes, CI and under NO_COLOR."""
    plain = any(os.environ.get(name) for name in ("CI", "NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return LineProgress(stream) if stream.isatty() and not plain else PlainProgress(stream)


def events_to(path: str) -> EventProgress:
    """Writes `--events FILE`.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        return EventProgress(open(path, "w", encoding="utf-8"))  # closed when the context ends
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"--events {path}: cannot write there: {reason}") from error


def _how_far(done: int, total: int, what: str, left_s: Seconds | None) -> str:
    left = f", about {span(left_s)} left" if left_s is not None else ""
    return f"{what} {done} of {total}{left}"


def _write(stream: TextIO, text: str) -> None:
    """Nobody listening any more is no reason to lose a run."""
    with contextlib.suppress(OSError):
        stream.write(text)
        stream.flush()
