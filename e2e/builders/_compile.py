"""Runs one compiler within bounds, and turns what it says into one readable error."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from e2e.errors import CandidateError, EnvironmentFault
from e2e.schema.kernel import Kernel
from e2e.yaml_lines import printable

_GIB = 1024**3
_LOG_BYTES = 200_000
"""What is kept of a compiler's output; template errors can print far more."""
_FILE_BYTES = 1 * _GIB

# The shell sets limits for the compiler alone; a limit that this system does not know is left out.
_LIMITED = 'ulimit -v "$1" 2>/dev/null; ulimit -f "$2" 2>/dev/null; ulimit -t "$3" 2>/dev/null; shift 3; exec "$@"'
_SOURCE_ERRORS = (
    re.compile(r"^(?P<file>[^\s:][^:\n]*):(?P<line>\d+):(?:\d+:)? (?:fatal )?error: (?P<text>.+)$"),
    re.compile(r"^(?P<file>[^\n]+?)\((?P<line>\d+)\): (?:catastrophic )?error(?: #[\w-]+)?: (?P<text>.+)$"),
)
_OTHER_ERRORS = (
    re.compile(r"^(?:.*: )?(?P<text>undefined reference to .+)$"),
    re.compile(r"^ptxas .*?(?:error|fatal)\s*: (?P<text>.+)$"),
    re.compile(r"^(?:nvcc (?:error|fatal)\s*|nvrtc: error): (?P<text>.+)$"),
    re.compile(r"^\S*(?:\+\+|gcc|cc1plus|clang\S*|collect2|nvlink|ld)(?:: | )(?:fatal )?error: (?P<text>.+)$"),
    re.compile(r"^\S*ld: (?P<text>cannot find .+)$"),
    re.compile(r"^(?:cc1plus: )?(?P<text>(?:out of memory|virtual memory exhausted).*)$"),
)
_OF_THE_MACHINE = {
    "unsupported GNU version": "this CUDA toolkit does not take the installed g++; install an older g++",
    "unsupported clang version": "this CUDA toolkit does not take the installed clang; install g++",
    "Failed to preprocess host compiler properties": "nvcc finds no host compiler; install g++",
    "gcc: not found": "nvcc finds no host compiler; install g++",
    "Unsupported gpu architecture": "this CUDA toolkit does not know this device; install a newer toolkit",
    "No space left on device": "the disk is full; free some space, or set E2E_CACHE_DIR to another disk",
    "cannot execute 'cc1plus'": "the C++ compiler is incomplete; reinstall it (Debian: apt install g++)",
}


@dataclass(frozen=True)
class Ran:
    """One finished run of a compiler."""

    log: str
    seconds: float


@dataclass(frozen=True)
class Failure:
    """The first error of a build."""

    text: str
    file: str | None = None
    line: int | None = None


def run_compiler(argv: Sequence[str], *, folder: Path, timeout_s: float) -> tuple[int | None, Ran]:
    """Return code (None: out of time) and output of a compiler; its temporary files stay in `folder`.

    The whole process group ends with it, since nvcc and g++ are drivers that start the real compilers.
    """
    environment = {**os.environ, "LC_ALL": "C", "TMPDIR": str(folder)}
    limits = [str(memory_limit() // 1024), str(_FILE_BYTES // 512), str(int(4 * timeout_s) + 1)]
    started = time.monotonic()
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            ["/bin/sh", "-c", _LIMITED, "sh", *limits, *argv],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    with open(folder / "log", "rb") as written:
        text = written.read(_LOG_BYTES).decode("utf-8", errors="replace")
    return code, Ran(text, time.monotonic() - started)


def memory_limit() -> int:
    """Bytes that one compiler process may map: half of the machine, but no less than 4 GiB."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(total // 2, 4 * _GIB)


def raise_timeout(kernel: Kernel, timeout_s: float) -> NoReturn:
    """Report a build that did not end.

    Raises:
        CandidateError: `timed_out`.
    """
    raise CandidateError(f"{kernel.spec}: the compiler did not finish within {timeout_s:g} s", code="timed_out")


def raise_failure(kernel: Kernel, log: str, kept_at: Path) -> NoReturn:
    """Report a failed build by its first error; the whole log lies at `kept_at`.

    Raises:
        EnvironmentFault: the log says that the machine is at fault.
        CandidateError: `build_failed`, with the line in the candidate.
    """
    for sign, remedy in _OF_THE_MACHINE.items():
        if sign in log:
            raise EnvironmentFault(f"{kernel.spec} cannot be built here: {remedy} (see `e2e doctor`; log: {kept_at})")
    source = kernel.path or kernel.spec
    failure = first_error(log)
    line = failure.line if failure.file == source else _line_in(log, source)
    where = kernel.shown if line is None else f"{kernel.shown}:{line}"
    text = printable(failure.text, 300)
    if failure.file not in (None, source):
        text = f"{failure.file}:{failure.line}: {text}"
    raise CandidateError(f"{where}: {text} (log: {kept_at})", code="build_failed", line=line)


def first_error(log: str) -> Failure:
    """The first error in a compiler's output; its last line when none is recognised."""
    other: Failure | None = None
    for row in log.splitlines():
        for form in _SOURCE_ERRORS:
            if found := form.match(row):
                return Failure(found["text"].strip(), found["file"], int(found["line"]))
        for form in _OTHER_ERRORS:
            if other is None and (found := form.match(row)):
                other = Failure(found["text"].strip())
    if other:
        return other
    rows = [row for row in log.splitlines() if row.strip()]
    return Failure(rows[-1].strip() if rows else "the compiler failed without a message")


def resources(log: str) -> list[str]:
    """What ptxas reports for every kernel: `name: 32 registers, 128 bytes smem; no spills`."""
    found: list[str] = []
    for part in re.split(r"^ptxas info\s*: Compiling entry function ", log, flags=re.MULTILINE)[1:]:
        name = re.match(r"'([^']*)'", part)
        used = re.search(r"^ptxas info\s*: Used (.+)$", part, re.MULTILINE)
        spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", part)
        if not name or not used:
            continue
        spilled = int(spills[1]) + int(spills[2]) if spills else 0
        kept = [item for item in used[1].split(", ") if re.search(r"registers|smem", item)]
        kept.append(f"{spilled} bytes spilled" if spilled else "no spills")
        found.append(f"{name[1]}: {', '.join(kept).replace('smem', 'shared memory')}")
    return _demangled(found)


def _line_in(log: str, source: str) -> int | None:
    """The line of the candidate that the compiler names on the way to an error elsewhere."""
    found = re.search(rf"{re.escape(source)}[:(](\d+)", log)
    return int(found[1]) if found else None


def _demangled(rows: list[str]) -> list[str]:
    tool = shutil.which("c++filt")
    if tool is None or not any(row.startswith("_Z") for row in rows):
        return rows
    try:
        ran = subprocess.run([tool, "-p"], input="\n".join(rows), capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return rows
    return ran.stdout.splitlines()
