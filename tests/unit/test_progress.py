from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from e2e.errors import EnvironmentFault, UsageError
from e2e.progress import EventProgress, LineProgress, PlainProgress, Several, events_to, for_people


class FakeClock:
    """Stands still until told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Gone(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_plain_lines_carry_elapsed_seconds_and_do_not_flood() -> None:
    stream, clock = io.StringIO(), FakeClock()
    progress = PlainProgress(stream, clock=clock)
    progress.stage("build", "kernels/a.cu")
    for done in range(1, 5):
        clock.now += 4
        progress.advance(done, 4, "worker", left_s=60.0)
    progress.note("ceiling 1.026x")
    assert stream.getvalue().splitlines() == [
        "[   0.0 s] build: kernels/a.cu",
        "[   4.0 s]   worker 1 of 4, about 60 s left",
        "[  16.0 s]   worker 4 of 4, about 60 s left",
        "[  16.0 s]   ceiling 1.026x",
    ]


def test_a_terminal_gets_one_line_that_is_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    stream = Terminal()
    progress = LineProgress(stream, clock=FakeClock())
    progress.stage("verdict")
    progress.advance(1, 5, "w" * 100)
    progress.note("a choice")
    progress.close()
    written = stream.getvalue()
    assert written.count("\n") == 1
    assert all(len(part.removeprefix("\x1b[K")) < 40 for part in written.split("\r"))
    assert written.endswith("\r\x1b[K")


@pytest.mark.parametrize("name", ["CI", "NO_COLOR"])
def test_ci_and_no_color_get_plain_lines(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for variable in ("CI", "NO_COLOR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(for_people(Terminal()), LineProgress)
    assert isinstance(for_people(io.StringIO()), PlainProgress)
    monkeypatch.setenv(name, "1")
    assert isinstance(for_people(Terminal()), PlainProgress)


def test_a_reader_that_went_away_does_not_end_the_run() -> None:
    PlainProgress(Gone()).note("x")
    LineProgress(Gone()).note("x")


def test_words_from_outside_cannot_steer_the_terminal() -> None:
    stream = io.StringIO()
    PlainProgress(stream, clock=FakeClock()).note("\x1b[2J\nx")
    assert stream.getvalue() == "[   0.0 s]   \\x1b[2J x\n"


def read(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_events_are_json_lines_from_start_to_finish(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    with events_to(str(file)) as events:
        events.start(["e2e", "validate"])
        both = Several([events, PlainProgress(io.StringIO())])
        both.stage("build")
        both.note("known")
        both.advance(1, 2, "worker")
        events.finish(code=10, outcome="refuted", run="id")
    found = read(file)
    assert [record["event"] for record in found] == ["start", "stage", "note", "progress", "finish"]
    assert found[-1]["code"] == 10
    assert all(isinstance(record["elapsed_s"], float) for record in found)


@pytest.mark.parametrize(
    ("error", "code"), [(EnvironmentFault("x"), 6), (KeyboardInterrupt(), 130), (ZeroDivisionError(), 70)]
)
def test_events_finish_also_when_the_run_raises(tmp_path: Path, error: BaseException, code: int) -> None:
    file = tmp_path / "events.jsonl"
    with pytest.raises(type(error)), events_to(str(file)):
        raise error
    assert ["finish", code] == [read(file)[-1]["event"], read(file)[-1]["code"]]


def test_events_that_cannot_be_written_are_the_callers_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot write there"):
        events_to(str(tmp_path / "no" / "such" / "folder"))


def test_an_event_has_no_infinity() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        EventProgress(io.StringIO()).advance(1, 2, "x", left_s=float("inf"))
