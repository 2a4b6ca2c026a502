"""Parent side of `task: command`: one process of a program of the user's own, and what it handed back.

What it hands back is read with nothing that could run it: JSON, and a table of numbers.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import resource
import secrets
import signal
import struct
import subprocess
import sys
import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from e2e.errors import E2EError
from e2e.handed import content_of
from e2e.integrity.isolation import die_with_parent, without_secrets
from e2e.schema.command import REPORT, CommandReport
from e2e.schema.words import ReasonCode
from e2e.schema.workload import Cell, CommandSpec
from e2e.units import Ratio, Seconds

FOLDER = "command-"
"""What the name of every process's own folder begins with."""
MOST_NUMBERS = 2**22
"""In the outputs of one run: they are compared one by one, in plain Python."""
MOST_BYTES = 64 * 2**20
"""Of a report, and of the file beside it."""
MOST_LOG_BYTES = 2**20
"""Of what one process printed that are kept."""
MOST_FILE_BYTES = 8 * 2**30
"""No file that a command writes comes near; one that prints for ever is stopped here."""
_TAIL = 600
_TYPES = {"F64": ("d", 8), "F32": ("f", 4), "I64": ("q", 8), "I32": ("i", 4), "F16": ("e", 2), "BF16": ("H", 2)}
"""Of a safetensors file's dtypes, format and bytes of a number; bfloat16 is the upper half of a float32."""
_INIT = ("sh", "-c", '"$@"; exit $?', "sh")
"""First process of a namespace, which no signal of its own can end: the command is its child."""
_SIGNALLED = 128
"""What a shell adds to the number of the signal that ended its child."""

Outputs = Mapping[str, Sequence[float] | str]
"""By name: numbers, or a digest."""


class CommandFault(E2EError):
    """A process of the command did not do what it was asked."""

    def __init__(self, message: str, *, kind: Literal["crashed", "exited", "timed_out", "implausible"]) -> None:
        super().__init__(message, code=kind)
        self.kind = kind


@dataclass(frozen=True)
class Ran:
    """A process of the command that ended well."""

    report: CommandReport
    outputs: Outputs
    wall_s: Seconds
    has_receipt: bool
    """Whether it knows the token that only who reads the built kernel can know."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """How a process of it is started."""

    spec: CommandSpec
    cell: Cell
    root: Path
    """The workload file's folder, where it runs."""
    device: str
    scratch: Path
    """Where every process gets a folder of its own."""
    logs: Path
    """Where what they print is kept."""
    prefix: Sequence[str]
    """Words that put a process into a PID namespace of its own; none where that is refused."""
    timeout_s: Seconds

    def run(self, arm: str, *, seed: int, number: int, kernel: Mapping[str, Any] | None) -> Ran:
        """One process from start to end. `kernel`: what `E2E_KERNEL` says of it, in the runs that have one.

        Raises:
            CommandFault: it crashed, failed, hung, or handed back nothing that could be read or believed.
        """
        folder = self.scratch / f"{FOLDER}{number}"
        folder.mkdir()
        asked = None if kernel is None else {**kernel, "nonce": secrets.token_hex(16)}
        log = self.logs / f"{number:03d}-{arm}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        start = time.monotonic()
        try:
            status = self._ended(self._environment(arm, seed, folder, asked), log)
        finally:
            _cut(log)
        wall_s = time.monotonic() - start
        if status != 0:
            raise CommandFault(f"{_died(status)}{_printed(log)}", kind="crashed" if status < 0 else "exited")
        report = _report(folder, log)
        self._believe(report, wall_s)
        expected = None if asked is None else token(asked)
        has_receipt = report.receipt is not None and report.receipt.token == expected and report.receipt.calls > 0
        return Ran(report, _outputs(folder, report), wall_s, has_receipt)

    def _ended(self, environment: Mapping[str, str], log: Path) -> int:
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [*self.prefix, *(_INIT if self.prefix else ()), *self.spec.argv],
                cwd=self.root,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
                preexec_fn=_bounded,
            )
        try:
            status = process.wait(self.timeout_s)
            return _SIGNALLED - status if self.prefix and status > _SIGNALLED else status
        except subprocess.TimeoutExpired as error:
            message = f"it did not end within {self.timeout_s:.0f} s{_printed(log)}"
            raise CommandFault(message, kind="timed_out") from error
        finally:
            _end(process)

    def _environment(self, arm: str, seed: int, folder: Path, asked: Mapping[str, Any] | None) -> dict[str, str]:
        own = {name: value for name, value in without_secrets(os.environ).items() if not name.startswith("E2E_")}
        told = {
            "E2E_ARM": arm,
            "E2E_SEED": str(seed),
            "E2E_OUT": str(folder),
            "E2E_BATCH": str(self.cell.batch),
            "E2E_SEQUENCE": str(self.cell.sequence),
            "E2E_DTYPE": self.cell.dtype,
            "E2E_STEP": self.cell.step,
            "E2E_DEVICE": self.device,
        }
        if asked is not None:
            told["E2E_KERNEL"] = str(folder / "kernel.json")
            Path(told["E2E_KERNEL"]).write_text(json.dumps(asked), encoding="utf-8")
        return {**own, **told, "PATH": search_path()}

    def _believe(self, report: CommandReport, wall_s: Seconds) -> None:
        """A process cannot have spent more time in its steps than it lived."""
        if self.spec.metric == "seconds" and (claimed := report.metric * (report.steps or 1)) > wall_s:
            message = f"it reports {claimed:.3g} s of steps, and its process lived {wall_s:.3g} s"
            raise CommandFault(message, kind="implausible")


def search_path() -> str:
    """Where programs are looked for: `python` is the one that runs e2e."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def token(asked: Mapping[str, Any]) -> str:
    """SHA-256 of the nonce and of the hash of the built kernel: known to who has read both."""
    artifact = Path(asked["artifact"])
    content = artifact.read_bytes() if artifact.is_file() else str(artifact).encode()
    return hashlib.sha256(f"{asked['nonce']}{hashlib.sha256(content).hexdigest()}".encode()).hexdigest()


def seconds_of(report: CommandReport, spec: CommandSpec) -> Seconds:
    """Seconds per step; of a rate per whatever it counts."""
    return report.metric if spec.metric == "seconds" else 1 / report.metric


def difference(mine: Outputs, base: Outputs) -> tuple[Ratio | None, ReasonCode | None]:
    """Relative root-mean-square difference, of the output where it is largest; None with what is wrong beyond numbers.

    Units:
        0 for what is the same number for number.
    """
    if list(map(_form, sorted(mine.items()))) != list(map(_form, sorted(base.items()))):
        return None, ReasonCode.WRONG_OUTPUT_LAYOUT
    largest = 0.0
    for name, theirs in base.items():
        ours = mine[name]
        if isinstance(theirs, str) or isinstance(ours, str):
            if ours != theirs:
                return None, ReasonCode.MODEL_ERROR_EXCEEDED
            continue
        if not all(map(math.isfinite, ours)):
            return None, ReasonCode.NONFINITE_OUTPUT
        largest = max(largest, _relative(ours, theirs))
    return (largest, None) if math.isfinite(largest) else (None, ReasonCode.MODEL_ERROR_EXCEEDED)


def is_finite(outputs: Outputs) -> bool:
    """Whether every number is one."""
    return all(isinstance(value, str) or all(map(math.isfinite, value)) for value in outputs.values())


def _form(item: tuple[str, Sequence[float] | str]) -> tuple[str, int | None]:
    name, value = item
    return name, None if isinstance(value, str) else len(value)


def _relative(ours: Sequence[float], theirs: Sequence[float]) -> float:
    squares = math.fsum(value * value for value in theirs)
    apart = math.fsum((a - b) * (a - b) for a, b in zip(ours, theirs, strict=True))
    if apart == 0:
        return 0.0
    return math.sqrt(apart / squares) if squares else math.inf


def _bounded() -> None:
    die_with_parent()
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_FILE_BYTES, MOST_FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Whatever it has started and left behind ends with it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _died(status: int) -> str:
    if status >= 0:
        return f"it ended with the exit status {status}"
    known = {item.value: item.name for item in signal.Signals}
    return f"it was killed by {known.get(-status, f'signal {-status}')}"


def _cut(log: Path) -> None:
    """Keep its end: it stays in the run's folder."""
    with log.open("rb+") as file:
        if log.stat().st_size > MOST_LOG_BYTES:
            file.seek(-MOST_LOG_BYTES, os.SEEK_END)
            end = file.read()
            file.seek(0)
            file.write(end)
            file.truncate()


def _printed(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL))
        said = file.read().decode(errors="replace").strip()
    return f"; it printed: {said}" if said else ""


def _report(folder: Path, log: Path) -> CommandReport:
    try:
        return CommandReport.model_validate_json(content_of(folder / REPORT, limit=MOST_BYTES))
    except OSError as error:
        message = f"it ended without a report: no {REPORT} in the folder E2E_OUT (`e2e.external.report` writes it)"
        raise CommandFault(message + _printed(log), kind="exited") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        raise CommandFault(f"its {REPORT} cannot be read: {where}: {first['msg']}", kind="exited") from error
    except ValueError as error:
        raise CommandFault(f"its {REPORT} cannot be read: {error}", kind="exited") from error


def _outputs(folder: Path, report: CommandReport) -> Outputs:
    found: dict[str, Sequence[float] | str] = dict(report.outputs)
    if report.file is not None:
        if Path(report.file).name != report.file:
            raise CommandFault(f"file: {report.file!r} is not the name of a file in E2E_OUT", kind="exited")
        try:
            tensors = _tensors(folder / report.file)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CommandFault(f"its file {report.file} is no safetensors file: {error}", kind="exited") from error
        found |= tensors
    count = sum(len(value) for value in found.values() if not isinstance(value, str))
    if count > MOST_NUMBERS:
        message = f"its outputs have {count:,} numbers; hand over at most {MOST_NUMBERS:,}, or a digest"
        raise CommandFault(message, kind="exited")
    return found


def _tensors(path: Path) -> dict[str, Sequence[float]]:
    """Every tensor of a safetensors file, flat.

    Raises:
        OSError, ValueError, KeyError, TypeError, AttributeError: it is none, or cannot be read.
    """
    whole = content_of(path, limit=MOST_BYTES)
    length = int.from_bytes(whole[:8], "little")
    if not 0 < length <= len(whole) - 8:
        raise ValueError(f"its header is said to have {length:,} bytes, and the file has {len(whole):,}")
    header, data = json.loads(whole[8 : 8 + length]), memoryview(whole)[8 + length :]
    found: dict[str, Sequence[float]] = {}
    for name, item in header.items():
        if name == "__metadata__":
            continue
        start, end = item["data_offsets"]
        shape = (math.prod(item["shape"]), item["dtype"])
        if (
            not 0 <= start <= end <= len(data)
            or shape[1] not in _TYPES
            or shape[0] * _TYPES[shape[1]][1] != end - start
        ):
            raise ValueError(f"{name!r} of the dtype {shape[1]} does not fit its place")
        found[str(name)] = _numbers(data[start:end], str(shape[1]))
    return found


def _numbers(data: memoryview, dtype: str) -> Sequence[float]:
    code, _ = _TYPES[dtype]
    if dtype == "F16":
        return array("f", (value for (value,) in struct.iter_unpack(f"<{code}", data)))
    if dtype == "BF16":
        return _numbers(memoryview(array("I", (half << 16 for half in data.cast("H"))).tobytes()), "F32")
    numbers: array[Any] = array(code)
    numbers.frombytes(data)
    return numbers
