"""PARENT: sanitizers over a kernel's calls, in a process of its own: which tools, how they run, and what they said."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.builders._toolchain import host_compiler
from e2e.errors import EnvironmentFault, UsageError
from e2e.protocols import Built
from e2e.schema.evidence import Fault, SanitizerFinding, SanitizerRun, Where
from e2e.schema.kernel import OF_MODELS, Kernel
from e2e.schema.words import ReasonCode, Stage
from e2e.units import Seconds

ASAN = "asan+ubsan"
COMPUTE = ("memcheck", "racecheck", "initcheck", "synccheck")
"""Tools of compute-sanitizer, one run each."""
SLOWER = 10.0
"""How much longer than without a tool a kernel may take. Chosen, not measured."""
_MOST_FINDINGS = 20
_MOST_LOG_BYTES = 4 * 2**20
_MODULE = "e2e.sanitized"
_LOG = "<log>"
"""Stand-in for the beginning of the names of files that a tool writes to."""


@dataclass(frozen=True)
class Tool:
    """One sanitizer, as it is run here."""

    name: str
    version: str
    prefix: tuple[str, ...]
    """What stands before the command."""
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Surroundings:
    """How a further process for the candidate is started."""

    prefix: Sequence[str]
    environment: Mapping[str, str]
    folder: Path
    """Where it can write."""
    timeout_s: Seconds


class Sanitizers:
    """The tools for one kernel on one device.

    Raises:
        UsageError: nothing in the kernel is compiled, so that no sanitizer could see into it.
        EnvironmentFault: a tool is not installed; says which, and how to get it.
    """

    def __init__(self, kernel: Kernel, *, device: str) -> None:
        if kernel.manifest.op.partition(":")[0] in OF_MODELS:
            raise UsageError(
                f"--sanitize runs an op outside of its model, and {kernel.manifest.op} is known in one only"
            )
        self._kernel, self._device = kernel, device
        self._tools = _tools_for(kernel, device)

    def look(self, built: Built, *, dtype: str, calls: Path, around: Surroundings) -> Iterator[SanitizerRun | Fault]:
        """The kernel on a file of calls under each tool; a Fault where it did not get through them.

        `built` for sanitizers; `calls` as `captures.save_calls` writes it.
        """
        for tool in self._tools:
            folder = Path(tempfile.mkdtemp(prefix=f"{tool.name}-", dir=around.folder))
            request, done = folder / "request.json", folder / "done.json"
            fields = {"built": built.model_dump(mode="json"), "dtype": dtype, "device": self._device}
            request.write_text(json.dumps({**fields, "calls": str(calls), "done": str(done)}), encoding="utf-8")
            code, said = _ran(tool, request, folder, around)
            found = list(_findings(tool, said, self._kernel))
            counted = _counted(done)
            if counted is None and not found:
                yield _fault(tool, code, said, self._kernel, around.timeout_s)
                continue
            calls_made, declined = counted or (0, 0)
            yield SanitizerRun(
                tool=tool.name,
                version=tool.version,
                dtype=dtype,
                calls=calls_made,
                declined=declined,
                finished=counted is not None,
                findings=found[:_MOST_FINDINGS],
            )


def _tools_for(kernel: Kernel, device: str) -> list[Tool]:
    if device != "cpu":
        return _compute_sanitizer()
    if kernel.manifest.is_python:
        raise UsageError(
            f"--sanitize looks into compiled code, and {kernel.spec} is Python; on a GPU it sees what it launches"
        )
    return [_address_sanitizer()]


def _address_sanitizer() -> Tool:
    compiler = host_compiler()
    is_clang = "clang" in compiler.identity
    names = ("libclang_rt.asan-x86_64.so", "libclang_rt.asan.so") if is_clang else ("libasan.so",)
    # the C++ library comes with it: what throws before that is loaded, the sanitizer cannot pass on
    standard = _library(compiler.argv, "libstdc++.so.6")
    for name in names:
        if library := _library(compiler.argv, name):
            options = f"log_path={_LOG}:halt_on_error=0:print_stacktrace=1:symbolize=1"
            # Python and torch never free everything, and free some things their own way: that is not the kernel's.
            quiet = "detect_leaks=0:alloc_dealloc_mismatch=0:detect_odr_violation=0:verify_asan_link_order=0"
            return Tool(
                ASAN,
                compiler.identity.partition(";")[0],
                (),
                {
                    "LD_PRELOAD": " ".join(filter(None, (library, standard))),
                    "ASAN_OPTIONS": f"{options}:{quiet}:exitcode=0",
                    "UBSAN_OPTIONS": options,
                },
            )
    raise EnvironmentFault(
        f"--sanitize needs AddressSanitizer, and {compiler.argv[-1]} has no {names[0]}: install it "
        "(Debian, Ubuntu: apt install libasan8, or the libclang-rt package of your clang)"
    )


def _library(compiler: Sequence[str], name: str) -> str | None:
    """Where the compiler has a library."""
    asked = subprocess.run(
        [*compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=False, timeout=60
    )
    found = asked.stdout.strip()
    return os.path.realpath(found) if os.path.isabs(found) and os.path.exists(found) else None


def _compute_sanitizer() -> list[Tool]:
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    places = [*(f"{home}/bin/compute-sanitizer" for home in homes if home), shutil.which("compute-sanitizer") or ""]
    usual = "/usr/local/cuda/bin/compute-sanitizer"
    found = next((place for place in (*places, usual) if os.access(place, os.X_OK)), None)
    if found is None:
        raise EnvironmentFault(
            "--sanitize needs compute-sanitizer: it is in no CUDA_HOME/bin and not on PATH; it comes with the CUDA "
            "toolkit (Debian, Ubuntu: apt install cuda-sanitizer-13-0, or the one of your CUDA)"
        )
    asked = subprocess.run([found, "--version"], capture_output=True, text=True, check=False, timeout=60)
    version = next((row for row in asked.stdout.splitlines() if "ersion" in row), "compute-sanitizer").strip()
    return [
        Tool(
            tool,
            version,
            (found, "--tool", tool, "--log-file", f"{_LOG}.{tool}", "--print-limit", str(_MOST_FINDINGS)),
            # else tensors lie side by side in one allocation, and none of them has an end
            {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        )
        for tool in COMPUTE
    ]


def _ran(tool: Tool, request: Path, folder: Path, around: Surroundings) -> tuple[int | None, str]:
    """Exit status, None where time ran out, and everything that tool and process said."""
    log = folder / "said"
    own = {name: value.replace(_LOG, str(log)) for name, value in tool.environment.items()}
    command = [
        *around.prefix,
        *("env", *(f"{name}={value}" for name, value in own.items())),
        *(word.replace(_LOG, str(log)) for word in tool.prefix),
        *(sys.executable, "-P", "-m", _MODULE, str(request)),
    ]
    with (folder / "printed").open("wb") as printed:
        process = subprocess.Popen(
            command,
            env={**around.environment, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(timeout=around.timeout_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also what it left behind
            process.wait()
    return code, "".join(map(_read, [*sorted(folder.glob(f"{log.name}*")), folder / "printed"]))


def faults_of(ran: SanitizerRun, *, stage: Stage) -> list[Fault]:
    """Findings as faults, the first of each place."""
    return [
        Fault(
            code=ReasonCode.UNDEFINED_BEHAVIOUR,
            message=f"{ran.tool}: {finding.message}",
            stage=stage,
            where=Where(file=finding.file, line=finding.line, dtype=ran.dtype),
        )
        for finding in ran.findings
    ]


def _read(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return stream.read(_MOST_LOG_BYTES).decode("utf-8", "replace") + "\n"
    except OSError:
        return ""


def _counted(done: Path) -> tuple[int, int] | None:
    """Calls made and declined; None where the process did not get to its end."""
    try:
        said = json.loads(_read(done))
        return int(said["calls"]), int(said["declined"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _fault(tool: Tool, code: int | None, said: str, kernel: Kernel, timeout_s: Seconds) -> Fault:
    last = next((row.strip() for row in reversed(said.splitlines()) if row.strip()), "nothing")
    short = "".join(char if char.isprintable() else " " for char in last)[:300]
    if code is None:
        named, what = ReasonCode.TIMED_OUT, f"under {tool.name} it did not finish within {timeout_s:.0f} s"
    else:
        how = f"signal {-code}" if code < 0 else f"status {code}"
        named, what = ReasonCode.CANDIDATE_CRASHED, f"under {tool.name} its process ended with {how}"
    return Fault(code=named, message=f"{what}; it said: {short}", stage=Stage.CHECK, where=Where(file=kernel.shown))


# ---- What the tools say

_ASAN = re.compile(
    r"==\d+==ERROR: AddressSanitizer: (?P<kind>[\w-]+)[^\n]*\n(?P<rest>.*?)(?=\n==\d+==(?:ERROR|ABORTING)|\Z)",
    re.DOTALL,
)
_ACCESS = re.compile(r"^(READ|WRITE) of size (\d+)", re.MULTILINE)
_FRAME = re.compile(r"^\s*#\d+ 0x[0-9a-f]+ in (?P<function>.*) (?P<file>/[^:\n]+):(?P<line>\d+)", re.MULTILINE)
_UBSAN = re.compile(r"^(?P<file>/[^:\n]+):(?P<line>\d+):\d+: runtime error: (?P<message>[^\n]+)", re.MULTILINE)
_COMPUTE = re.compile(
    r"^========= (?P<message>(?!COMPUTE-SANITIZER|\w+ SUMMARY| |$)[^\n]+)\n(?:=========  [^\n]*\n)*",
    re.MULTILINE,
)
_AT = re.compile(r"\bat (?P<function>.*?)(?:\+0x[0-9a-f]+)? in (?P<file>[^\s:]+):(?P<line>\d+)")


def _findings(tool: Tool, said: str, kernel: Kernel) -> Iterator[SanitizerFinding]:
    """What is about the kernel's own sources, once for each message and line."""
    sources = {os.path.realpath(path): path for path in (kernel.path or "", *kernel.others)}
    parse = _of_asan if tool.name == ASAN else _of_compute_sanitizer
    seen = set()
    for file, line, message in parse(said, sources):
        if (file, line, message) not in seen:
            seen.add((file, line, message))
            is_first = kernel.path is not None and os.path.realpath(file) == os.path.realpath(kernel.path)
            yield SanitizerFinding(file=kernel.shown if is_first else file, line=line, message=message)


def _of_asan(said: str, sources: Mapping[str, str]) -> Iterator[tuple[str, int, str]]:
    for found in _ASAN.finditer(said):
        report = found["rest"].partition("is located")[0]
        frame = next((item for item in _FRAME.finditer(report) if os.path.realpath(item["file"]) in sources), None)
        if frame is None:
            continue  # in a library, which the kernel did not call
        access = _ACCESS.search(found["rest"])
        what = f"{access[1].lower()} of {access[2]} bytes: " if access else ""
        yield frame["file"], int(frame["line"]), f"{what}{found['kind']}{_place(found['rest'])}"
    for found in _UBSAN.finditer(said):
        if os.path.realpath(found["file"]) in sources:
            yield found["file"], int(found["line"]), found["message"].strip()[:200]


def _place(rest: str) -> str:
    """`, 0 bytes after an allocation of 4096`."""
    located = re.search(r"is located (\d+) bytes (to the right of|to the left of|\w+)(?: of)? (?:a )?(\d+)-byte", rest)
    if located is None:
        return ""
    side = {"to the right of": "after", "to the left of": "before"}.get(located[2], located[2])
    return f", {located[1]} bytes {side} an allocation of {located[3]}"


def _of_compute_sanitizer(said: str, sources: Mapping[str, str]) -> Iterator[tuple[str, int, str]]:
    names = {os.path.basename(path) for path in sources}
    for found in _COMPUTE.finditer(said):
        place = next((item for item in _AT.finditer(found[0]) if os.path.basename(item["file"]) in names), None)
        if place is not None:
            message = re.sub(r"\s+at .*", "", found["message"]).strip().removeprefix("Error: ")
            yield place["file"], int(place["line"]), message[:200]
