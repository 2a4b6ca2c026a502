"""`python -m tests.kills`: short runs are killed at random moments; what stays, what can be read, and how they go on.

Every run is `e2e validate` on a tiny Llama, killed with SIGKILL: in turn its parent alone, and everything it started.
Nothing may stay alive, every file has to be whole, `e2e report` and `e2e gate` have to say what happened, and
`--resume` has to finish the run: with the same arms in the same order as a run that nobody killed, and with every
finished worker's segments as they were. Ends with 0 only if all of it was so.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from e2e import store, unfinished
from e2e.cli import run as e2e
from e2e.errors import StoredRunError
from e2e.schema.evidence import Segment
from e2e.schema.result import Result
from tests import tiny
from tests.started import REPOSITORY, Ended, Started

KERNEL = REPOSITORY / "tests" / "kernels" / "plain_norm.py"
OUTCOMES = (0, 10, 11)
SEED = 7
LIMIT_S = 280
_QUICK = {"segment_s: 0.02": "segment_s: 0.005", "ceiling_s: 1": "ceiling_s: 0.2"}


def quick_policy(file: Path) -> Path:
    """The policy of the tiny workload, with little time for everything."""
    text = tiny.write_policy(file).read_text()
    for usual, quick in _QUICK.items():
        text = text.replace(usual, quick)
    file.write_text(f"{text}warm_steps: 3\nmin_steps: 2\n")
    return file


@dataclass
class Killed:
    """One run, and what was found wrong with it."""

    at_s: float
    whom: str
    had: str = "no folder"
    """What was complete."""
    went_on: str = "-"
    problems: list[str] = field(default_factory=list)


class Killing:
    """Runs of one workload in one folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        policy = quick_policy(folder / "policy.yaml")
        command = ["validate", str(tiny.write_workload(folder)), "--kernel", str(KERNEL), "--policy", str(policy)]
        self._command = [*command, "--seed", str(SEED)]
        self._count = 0

    def whole(self) -> Ended:
        """A run that nobody kills."""
        return self._start().end(LIMIT_S)

    def killed(self, at_s: float, whom: str, *, goes_on: bool, whole: Result) -> Killed:
        """One that is killed so many seconds after its start, looked at, and finished where that is asked for."""
        found = Killed(at_s, whom)
        started = self._start()
        try:
            time.sleep(at_s)
            _kill(started, whom)
            found.problems += [f"still alive: {command}" for command in started.left_behind().values()]
            for folder in started.out.glob("*/"):
                _look(folder, found)
                if goes_on and (folder / store.UNFINISHED).exists():
                    self._finish(started, folder, found, whole)
        finally:
            started.clean_up()
        return found

    def _start(self) -> Started:
        self._count += 1
        folder = self._folder / str(self._count)
        folder.mkdir()
        return Started(folder, *self._command, E2E_CACHE_DIR=str(self._folder / "cache"))

    def _finish(self, killed: Started, folder: Path, found: Killed, whole: Result) -> None:
        before = unfinished.load(folder).result
        place = killed.out.parent
        again = Started(place, "validate", "--resume", str(folder), E2E_CACHE_DIR=str(self._folder / "cache"))
        try:
            ended = again.end(LIMIT_S)
            found.problems += [f"resumed, and still alive: {command}" for command in again.left_behind().values()]
        finally:
            again.clean_up()
        if ended.code not in OUTCOMES:
            found.went_on = f"code {ended.code}"
            found.problems.append(f"resumed, it ended with code {ended.code}: {' '.join(ended.out.split())[:400]}")
            found.problems += ended.err.strip().splitlines()[-1:]
            return
        result = ended.result
        found.went_on = str(result.outcome)
        found.problems += differences(before, result, whole)


def _kill(started: Started, whom: str) -> None:
    targets = [started.process.pid] if whom == "parent" else [started.process.pid, *started.processes()]
    for pid in targets:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    started.process.wait()


def _look(folder: Path, found: Killed) -> None:
    """What the folder holds is whole, and the commands say what it is."""
    try:
        result = unfinished.shown(folder)
    except StoredRunError as error:
        found.had = "an empty folder"
        if (folder / store.UNFINISHED).exists() or (folder / store.RESULT).exists():
            found.problems.append(error.message)
        return
    evidence = result.cells[0].evidence if result.cells else None
    if result.error is None:
        found.had = "a result"
    elif evidence is not None:
        found.had = f"{evidence.stage_finished or 'nothing'}, {evidence.workers_finished} workers"
    code, out, _ = _e2e("report", str(folder))
    expected = "the run was stopped before it ended" if result.error is not None else result.run_id
    if code != 0 or expected not in " ".join(out.split()):
        found.problems.append(f"report ends with {code} and does not say {expected!r}")
    code, _, err = _e2e("gate", str(folder))
    if result.error is not None and (code != 2 or "--resume" not in err):
        found.problems.append(f"gate ends with {code}: {err.strip()}")


def differences(before: Result, after: Result, whole: Result) -> Iterator[str]:
    """How a resumed run is not the one that it would have been."""
    if len(after.resumed) != 1:
        yield f"it says that it was resumed {len(after.resumed)} times"
    known = before.cells[0].evidence.segments if before.cells else []
    evidence = after.cells[0].evidence
    if evidence.segments[: len(known)] != known:
        yield "segments of finished workers are not what they were"
    places = [(s.phase, s.worker, s.block, s.position) for s in evidence.segments]
    if len(places) != len(set(places)):
        yield "a block was measured twice"
    seeds = [(s.arm, s.seed) for s in evidence.segments]
    if len(seeds) != len(set(seeds)):
        yield "an input was timed twice"
    mine, theirs = _orders(evidence.segments), _orders(whole.cells[0].evidence.segments)
    apart = [place for place in mine if place in theirs and mine[place] != theirs[place]]
    apart = [place for place in apart if set(mine[place]) == set(theirs[place])]  # pilots may choose other arms
    if apart:
        yield f"arms take other turns than in a run that nobody killed: {apart[0]}"


def _orders(segments: Sequence[Segment]) -> dict[tuple[int, int], list[str]]:
    found: dict[tuple[int, int], list[str]] = {}
    for segment in segments:
        if segment.phase == "verdict":
            found.setdefault((segment.worker, segment.block), []).append(segment.arm)
    return found


def _e2e(*arguments: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = e2e(list(arguments))
    return code, out.getvalue(), err.getvalue()


def series(count: int, *, every: int, seed: int, folder: Path) -> list[Killed]:
    """Kill so many runs; every so many of them are finished afterwards. Prints a row for each."""
    killing = Killing(folder)
    first = killing.whole()
    assert first.code in OUTCOMES, first.err
    draw, found = random.Random(seed), []
    print(f"a run takes {first.seconds:.1f} s if nobody kills it, and is {first.result.outcome}", flush=True)
    for number in range(count):
        at_s, whom = draw.uniform(0.0, first.seconds), ("parent", "all")[number % 2]
        found.append(killing.killed(at_s, whom, goes_on=number % every == 0, whole=first.result))
        _show(number + 1, found[-1])
    return found


def _show(number: int, run: Killed) -> None:
    state = "bad" if run.problems else "good"
    print(f"{number:3} {run.at_s:6.2f} s {run.whom:7} {run.had:20} {run.went_on:14} {state}", flush=True)
    for problem in run.problems:
        print(f"    {problem}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the series; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.kills", description=__doc__)
    parser.add_argument("--count", type=int, default=50, help="how many runs are killed")
    parser.add_argument("--every", type=int, default=3, help="of how many one is finished with --resume")
    parser.add_argument("--seed", type=int, default=0, help="draws the moments")
    asked = parser.parse_args(arguments)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # threads that wait for each other are slow beside others
    with tempfile.TemporaryDirectory(prefix="e2e-kills-") as place:
        found = series(asked.count, every=asked.every, seed=asked.seed, folder=Path(place))
    bad = sum(bool(run.problems) for run in found)
    resumed = sum(run.went_on != "-" for run in found)
    print(f"\n{len(found)} runs killed, {resumed} of them finished afterwards; {bad} with something wrong")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
