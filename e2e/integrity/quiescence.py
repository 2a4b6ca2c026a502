"""Whether a worker that nothing is asked of works all the same: read from /proc, outside the candidate's process."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.units import Seconds

WINDOW_S = 0.1
WINDOWS = 8
"""Looked at, at most: threads that wait for their next loop by spinning stop within 200 ms."""
BUSY_SHARE = 0.25
"""Of one core. Where the kernel counts in ticks of 10 ms only, a window has ten of them."""
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Process:
    """A line of the process table."""

    parent: int
    session: int
    used_s: Seconds
    """By all its threads, the time included in which they wanted a core and others had it, and by children that it has
    collected."""


def used_s(table: Mapping[int, Process], worker: int, *, others: Collection[int], zygote: int) -> Seconds:
    """Processor time so far of a worker, and of what it left running.

    A process of the worker's session or line is its own; one that let go of everything has the zygote for a parent, as
    workers have, and belongs to whoever is asked about. What descends from `others`, which are workers too, is theirs.
    """
    total = 0.0
    for pid, process in table.items():
        line = [pid, process.session, *_ancestors(pid, table)]
        first = next((item for item in line if item in (worker, zygote) or item in others), None)
        if first == worker or (first == zygote != pid):
            total += process.used_s
    return total


def _ancestors(pid: int, table: Mapping[int, Process]) -> Iterator[int]:
    """Parents, nearest first; the table may have changed while it was read, so not for ever."""
    for _ in range(len(table)):
        if pid not in table:
            return
        pid = table[pid].parent
        yield pid


def processes() -> dict[int, Process]:
    """The process table, as far as it may be read; empty where there is no /proc."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            own, children = (sum(map(int, fields[start : start + 2])) * _TICK_S for start in (11, 13))
            found[int(folder.name)] = Process(int(fields[1]), int(fields[3]), max(own, _wanted_s(folder)) + children)
    return found


def _wanted_s(folder: Path) -> Seconds:
    """Time on a core, or waiting for one, of all threads: on a busy machine an endless loop gets little of a core."""
    total = 0
    for task in (folder / "task").iterdir():
        with contextlib.suppress(OSError, ValueError):
            total += sum(map(int, (task / "schedstat").read_text().split()[:2]))
    return total / 1e9


def restless_s(read: Callable[[], Seconds | None], sleep: Callable[[Seconds], None] = time.sleep) -> Seconds | None:
    """None once a window passes in which next to nothing is used; else the least that any window used.

    What cannot be read is held against nobody.
    """
    least = WINDOW_S
    before = read()
    for _ in range(WINDOWS):
        sleep(WINDOW_S)
        after = read()
        if before is None or after is None or after - before < BUSY_SHARE * WINDOW_S:
            return None
        least = min(least, after - before)
        before = after
    return least
