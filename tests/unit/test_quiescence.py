"""A worker that rests, and one that does not: by an invented process table, and by real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import accumulate

import pytest

from e2e.integrity.quiescence import WINDOWS, Process, processes, restless_s, used_s

ZYGOTE, WORKER, OTHER = 1, 10, 20
TABLE = {
    ZYGOTE: Process(parent=0, session=1, used_s=100.0),
    WORKER: Process(parent=ZYGOTE, session=WORKER, used_s=1.0),
    OTHER: Process(parent=ZYGOTE, session=OTHER, used_s=50.0),
}


def used(**more: Process) -> float:
    table = TABLE | {int(name.removeprefix("p")): process for name, process in more.items()}
    return used_s(table, WORKER, others={WORKER, OTHER}, zygote=ZYGOTE)


def test_a_workers_own_time_is_its_own_and_not_the_zygotes_or_anothers() -> None:
    assert used() == 1.0


def test_children_and_their_children_count() -> None:
    assert used(p11=Process(WORKER, WORKER, 2.0), p12=Process(11, WORKER, 4.0)) == 7.0


def test_an_orphan_in_the_workers_session_counts() -> None:
    assert used(p11=Process(ZYGOTE, WORKER, 2.0)) == 3.0


def test_one_that_let_go_of_everything_counts() -> None:
    assert used(p11=Process(ZYGOTE, 11, 2.0)) == 3.0


def test_what_another_worker_started_does_not() -> None:
    assert used(p21=Process(OTHER, OTHER, 2.0), p22=Process(21, 22, 2.0)) == 1.0


def test_strangers_do_not() -> None:
    assert used(p99=Process(98, 98, 2.0), p98=Process(0, 98, 2.0)) == 1.0


def test_a_table_that_changed_under_the_reader_ends() -> None:
    assert used(p31=Process(32, 31, 2.0), p32=Process(31, 32, 2.0)) == 1.0


def read(*windows: float) -> Iterator[float]:
    return accumulate((0.0, *windows))


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        ((0.0,), None),
        ((0.1, 0.1, 0.01), None),
        ((0.1,) * WINDOWS, 0.1),
        ((0.2, 0.05, *(0.1,) * (WINDOWS - 2)), 0.05),
    ],
)
def test_one_quiet_window_is_rest_and_none_is_not(windows: tuple[float, ...], expected: float | None) -> None:
    found = restless_s(read(*windows).__next__, sleep=lambda _: None)
    assert found == (expected if expected is None else pytest.approx(expected))


def test_what_cannot_be_read_is_held_against_nobody() -> None:
    assert restless_s(lambda: None, sleep=lambda _: None) is None


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="no process table")
def test_a_busy_process_is_seen_from_outside() -> None:
    busy = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"], start_new_session=True)
    try:
        before = used_s(processes(), busy.pid, others=(), zygote=0)
        end = time.monotonic() + 20
        while used_s(processes(), busy.pid, others=(), zygote=0) < before + 0.05:
            assert time.monotonic() < end
            time.sleep(0.05)
    finally:
        busy.kill()
        busy.wait()
