"""What a process's past costs its allocations, and that it costs nothing once freed blocks are kept."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
ROUNDS = """
import resource, sys
from e2e.measure.heap import keep_freed

def faults(rounds):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        blocks = [bytearray(8 * 2**20) for _ in range(3)]
        blocks.clear()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / rounds

faults(2)
by_itself = faults(10)
assert keep_freed()
faults(2)
print(by_itself, faults(10))
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not glibc")
def test_what_was_freed_is_not_paged_in_again() -> None:
    command = [sys.executable, "-c", ROUNDS]
    found = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.split()
    by_itself, kept = map(float, found)
    assert by_itself > 3000, "24 MB in pages of 4 KB: what this machine does by itself needs no remedy, if it is less"
    assert kept < 100
