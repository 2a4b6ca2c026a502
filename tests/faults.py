"""`python -m tests.faults`: kernels that break their process, one after the other, and runs that lose what they need.

Each fault has its outcome and its reason; whatever it was, the next kernel goes on, and in the end no process of all
that were started is alive. Ends with 0 only if all of it was so. How runs take it that their parent is killed is in
`python -m tests.kills`.
"""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e import store
from e2e.integrity.sandbox import sandbox
from e2e.judge import exit_code
from e2e.schema.words import Outcome, ReasonCode
from tests import tiny
from tests.cheats.fixtures import Expected, Fixture, Seen
from tests.cheats.running import Range
from tests.started import MARK, REPOSITORY, Started, left_behind

KERNELS = REPOSITORY / "tests" / "kernels"
HONEST = KERNELS / "plain_norm.py"
CALL_S = 10.0
"""Limit of a call: an endless loop takes as long."""
_FAILED = [Outcome.FAILED]


@dataclass(frozen=True)
class Fault:
    """What a kernel does, and what must come of it."""

    what: str
    kernel: str
    codes: tuple[ReasonCode, ...] = ()
    """The reason, by any of which it is FAILED; none: it passes, as its outputs are right."""

    @property
    def fixture(self) -> Fixture:
        """As one of the cheats' range."""
        expected = Expected(row="F", outcome=_FAILED if self.codes else [], codes=list(self.codes))
        return Fixture(KERNELS / "bad" / self.kernel, expected)

    def is_as_expected(self, seen: Seen) -> bool:
        """Whether outcome and first reason are those."""
        if not self.codes:
            return seen.outcome is None
        return seen.outcome is Outcome.FAILED and seen.codes[0] in self.codes


_CRASHED = (ReasonCode.CANDIDATE_CRASHED,)
FAULTS = (
    Fault("null write", "null_pointer.cpp", _CRASHED),
    Fault("write out of bounds", "writes_far.cpp", _CRASHED),
    Fault("read out of bounds", "reads_far.cpp", _CRASHED),
    Fault("freed memory", "frees_twice.cpp", _CRASHED),
    Fault("abort", "aborts.cpp", _CRASHED),
    Fault("exit(0)", "exits.cpp", (ReasonCode.CANDIDATE_EXITED,)),
    Fault("stack overflow", "recurses.cpp", _CRASHED),
    Fault("endless loop", "loops.cpp", (ReasonCode.TIMED_OUT,)),
    Fault("memory exhausted", "allocates.cpp", (ReasonCode.OUT_OF_MEMORY,)),
    Fault("closed pipes", "closes_everything.py", (ReasonCode.CANDIDATE_EXITED,)),
    Fault("fork bomb, bounded", "forks.py"),
    Fault("children left behind", "leaves_a_daemon.py"),
    Fault("a gigabyte of output", "floods_the_log.py"),
)


def in_process(faults: Sequence[Fault]) -> list[str]:
    """Those kernels, and an honest one last; what was not as it has to be."""
    found = []
    with Range("cpu", call_s=CALL_S) as place:
        for fault in faults:
            seen = place.run(fault.fixture)
            found += _show(fault.what, seen, is_good=fault.is_as_expected(seen))
        after = place.run(Fixture(HONEST, Expected(row="F")))
        found += _show("the next kernel, which is right", after, is_good=after.outcome is None)
    return found


def _show(what: str, seen: Seen, *, is_good: bool) -> list[str]:
    """One row of the table."""
    outcome, code = seen.outcome or "passed", seen.codes[0] if seen.outcome else "-"
    print(f"{what:34} {outcome:10} {code:20} {seen.seconds:5.1f} s  {'good' if is_good else 'bad'}", flush=True)
    return [] if is_good else [f"{what}: {seen.said or outcome}"]


def other_cells_go_on(folder: Path) -> list[str]:
    """A whole run whose kernel ends its process in the first of two cells."""
    what, sequences = "a crash in the first of two cells", "cells.sequence=[32, 16]"
    return _whole(folder / "cells", what, "crashes_when_long.py", [Outcome.FAILED, None], "--set", sequences)


def temporaries_deleted(folder: Path) -> list[str]:
    """A whole run whose kernel deletes all around its temporary folder; in a sandbox it cannot reach what matters."""
    inside = folder / "inside"
    inside.mkdir()
    outcome = Outcome.INCORRECT if sandbox([inside], cuda=False) is None else None
    return _whole(folder / "deleted", "temporary files deleted", "deletes_temporaries.py", [outcome])


def _whole(folder: Path, what: str, kernel: str, expected: Sequence[Outcome | None], *more: str) -> list[str]:
    """A run up to the check; `expected`: the outcome of each cell, of which the first is the run's."""
    folder.mkdir()
    policy = tiny.write_policy(folder / "policy.yaml", call_s=CALL_S)
    command = ["validate", str(tiny.write_workload(folder)), "--kernel", str(KERNELS / "bad" / kernel)]
    started = Started(folder, *command, "--policy", str(policy), "--until", "check", *more)
    try:
        ended = started.end()
        left = started.left_behind()
    finally:
        started.clean_up()
    cells = [cell.verdict.outcome for cell in ended.result.cells] if ended.folder is not None else []
    is_good = cells == list(expected) and ended.code == exit_code(expected[0]) and not left
    said = ", ".join(cell or "passed" for cell in cells)
    _say(what, f"{said}; code {ended.code}", is_good=is_good)
    return [] if is_good else [f"{what}: {said}, code {ended.code}, left {left}, {ended.err[-400:]}"]


def full_disk(folder: Path) -> list[str]:
    """Results that do not fit: no file may be larger than a result is."""
    out = folder / "full"
    command = ["validate", "tiny_llama_infer", "--kernel", str(HONEST), "--op", "rms_norm", "--until", "build"]
    done = subprocess.run(
        [sys.executable, "-m", "e2e", *command, "--out", str(out)],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048)),
    )  # fmt: skip
    halves = [str(path) for path in out.rglob("*") if path.is_file() and path.name in (store.RESULT, store.UNFINISHED)]
    is_good = done.returncode == 6 and not halves and "Traceback" not in done.stderr
    _say("results that do not fit the disk", f"code {done.returncode}", is_good=is_good)
    return [] if is_good else [f"a full disk: code {done.returncode}, {halves}, {done.stderr[-300:]}"]


def _say(what: str, found: str, *, is_good: bool) -> None:
    print(f"{what:34} {found:40} {'good' if is_good else 'bad'}", flush=True)


def main() -> int:
    """The whole table; the exit code."""
    os.environ[MARK] = mark = f"faults-{os.getpid()}"
    with tempfile.TemporaryDirectory(prefix="e2e-faults-") as place, contextlib.ExitStack() as stack:
        stack.callback(os.environ.pop, MARK, None)
        os.environ["E2E_CACHE_DIR"] = str(Path(place) / "cache")
        folder = Path(place)
        problems = [*in_process(FAULTS), *other_cells_go_on(folder), *temporaries_deleted(folder), *full_disk(folder)]
        left = {pid: command for pid, command in left_behind(mark).items() if pid != os.getpid()}
    problems += [f"still alive: {command}" for command in left.values()]
    print(f"\n{len(FAULTS) + 4} rows; {len(left)} processes left behind; {len(problems)} with something wrong")
    for problem in problems:
        print(f"    {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
