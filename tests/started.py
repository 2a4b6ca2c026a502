"""Runs of the command in processes of their own, and what they leave."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from e2e import store
from e2e.schema.result import Result

REPOSITORY = Path(__file__).parents[1]
MARK = "E2E_TEST_RUN"
SOON_S = 2.0
_NUMBERS = itertools.count()


def marked(mark: str) -> dict[int, str]:
    """Everything alive with that mark in its environment, by command line."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            environment = (folder / "environ").read_bytes().split(b"\0")
            if f"{MARK}={mark}".encode() in environment:
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def left_behind(mark: str) -> dict[int, str]:
    """What is still alive with that mark after a moment."""
    end = time.monotonic() + SOON_S
    while (found := marked(mark)) and time.monotonic() < end:
        time.sleep(0.05)
    return found


@dataclass(frozen=True)
class Ended:
    """A finished run of the command."""

    code: int
    out: str
    err: str
    folder: Path | None
    seconds: float

    @property
    def result(self) -> Result:
        assert self.folder is not None, f"no result was written:\n{self.err}"
        return store.load(self.folder)

    @property
    def reasons(self) -> list[str]:
        return [str(reason.code) for reason in self.result.reasons]


class Started:
    """A running command; every process it starts carries its mark in the environment."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        self.mark = f"{os.getpid()}-{next(_NUMBERS)}"
        self.out = folder / "results"
        self.scratch = folder / "tmp"
        self.scratch.mkdir(exist_ok=True)
        self._began = time.monotonic()
        self._stderr = folder / "stderr.txt"
        self._files = [self._stderr.open("w"), (folder / "stdout.txt").open("w")]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "e2e", *arguments, *([] if "--resume" in arguments else ["--out", str(self.out)])],
            cwd=REPOSITORY,
            env={
                **os.environ,
                "PYTHONPATH": str(REPOSITORY),
                "TMPDIR": str(self.scratch),
                "NO_COLOR": "1",
                "HF_HUB_OFFLINE": "1",
                MARK: self.mark,
                **environment,
            },
            stdout=self._files[1],
            stderr=self._files[0],
            start_new_session=True,
        )

    def said(self) -> str:
        return self._stderr.read_text()

    def wait_for(self, condition: Callable[[], object], timeout_s: float = 60) -> None:
        end = time.monotonic() + timeout_s
        while not condition():
            assert self.process.poll() is None, f"it ended early:\n{self.said()}"
            assert time.monotonic() < end, f"it never got there:\n{self.said()}"
            time.sleep(0.05)

    def end(self, timeout_s: float = 180) -> Ended:
        code = self.process.wait(timeout_s)
        seconds = time.monotonic() - self._began
        for file in self._files:
            file.close()
        folders = sorted(self.out.glob("*/")) if self.out.exists() else []
        assert len(folders) <= 1
        stdout = self._stderr.with_name("stdout.txt").read_text()
        return Ended(code, stdout, self.said(), folders[0] if folders else None, seconds)

    def processes(self) -> dict[int, str]:
        """Everything alive that this run started, by command line."""
        return marked(self.mark)

    def left_behind(self) -> dict[int, str]:
        """What is still alive after a moment."""
        return left_behind(self.mark)

    def clean_up(self) -> None:
        for file in self._files:
            file.close()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
