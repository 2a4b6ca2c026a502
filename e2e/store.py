"""`results/<run-id>/`: one folder per run, written piece by piece so that a killed run can still be shown.

* `unfinished.jsonl`: all that is known so far, while something is left to do (`unfinished.py`).
* `result.json`: everything but the segments; written last, so its presence means that the run ended.
* `result.sha256`: its digest, so that an edited result is noticed.
* `samples.csv`: every timed segment; its digest is inside `result.json`.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import fcntl
import hashlib
import io
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pydantic_core
from pydantic import ValidationError

from e2e.errors import EnvironmentFault, StoredRunError, UsageError
from e2e.schema.evidence import Segment
from e2e.schema.result import SCHEMA, CellResult, Result

RESULT, DIGEST, SAMPLES = "result.json", "result.sha256", "samples.csv"
UNFINISHED = "unfinished.jsonl"
PROFILE = "profile.json"
"""What a profile stores in the place of a result."""
COLUMNS = (
    *("cell", "phase", "worker", "block", "position", "arm", "steps", "seconds", "seed"),
    *("clock_hz", "throttled", "device_s"),
)
_FIRST_COLUMNS = COLUMNS[:9]
"""Method 1 had these; what its runs did not see stays None."""
MAX_RESULT_BYTES = 64 * 2**20
MAX_SAMPLES_BYTES = 256 * 2**20
"""Both far beyond what a run writes; a stored run comes from elsewhere and must not exhaust memory."""


class Run:
    """A run's folder while it is being written."""

    def __init__(self, folder: Path, *, place: str | None = None) -> None:
        self.folder = folder
        self._place = place or str(folder)
        """As messages name it when nothing can be written there."""

    @property
    def run_id(self) -> str:
        """The folder's name: UTC time, workload, and a random part."""
        return self.folder.name

    @classmethod
    def create(cls, out: Path, name: str) -> Run:
        """A new, empty folder under `out` that no other run can have.

        Raises:
            UsageError: the folder cannot be made.
            EnvironmentFault: the disk is full.
        """
        safe = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-.") or "run"
        while True:
            stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
            folder = out / f"{stamp}-{safe[:60]}-{secrets.token_hex(3)}"
            try:
                out.mkdir(parents=True, exist_ok=True)
                folder.mkdir()
            except FileExistsError as error:
                if out.is_dir():
                    continue  # another run took the name
                raise UsageError(f"--out {out}: is a file; results need a folder") from error
            except OSError as error:
                fault = _cannot_write(f"--out {out}", error)
                raise fault if error.errno in _FULL else UsageError(fault.message) from error
            return cls(folder, place=f"--out {out}")

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep every other process from going on with this run.

        Raises:
            UsageError: one does already.
        """
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if _is_taken(descriptor):
                raise UsageError(f"run {self.run_id} is still going, in another process: wait for it, or end that one")
            yield
        finally:
            os.close(descriptor)

    def write_text(self, name: str, text: str) -> Path:
        """Write one file of the run; `name` may have folders in it."""
        return self.write_bytes(name, text.encode("utf-8", "backslashreplace"))

    def write_bytes(self, name: str, content: bytes) -> Path:
        """Write one file of the run, whole or not at all.

        Raises:
            ValueError: the name leads out of the folder.
            EnvironmentFault: it cannot be written; the disk is full, say.
        """
        self._write({name: content})
        return self.folder / name

    def _write(self, contents: Mapping[str, bytes]) -> None:
        """Every byte of a run goes through here; of several files all are written, in this order, or none."""
        for name in contents:
            if not (self.folder / name).resolve().is_relative_to(self.folder.resolve()):
                raise ValueError(f"{name!r} leads out of the run's folder")
        try:
            _write_atomically({self.folder / name: content for name, content in contents.items()})
        except OSError as error:
            raise _cannot_write(self._place, error) from error

    def finish(self, result: Result) -> Result:
        """Write samples, digest and result together; returns the result with the samples' digest.

        One file after the other takes its place: until all have, the digest of a result that is already there stays
        beside the new one's, so that whoever reads between the two, or after a kill there, is not told of an edit.

        Raises:
            EnvironmentFault: they cannot be written; those of an earlier call stay as they were.
        """
        samples = _samples_bytes([cell.evidence.segments for cell in result.cells])
        result = result.model_copy(update={"samples_sha256": hashlib.sha256(samples).hexdigest()})
        text = to_json(result).encode()
        earlier = [(self.folder / RESULT).read_bytes()] if (self.folder / RESULT).exists() else []
        digests = [f"{hashlib.sha256(content).hexdigest()}  {RESULT}\n" for content in (text, *earlier)]
        self._write({SAMPLES: samples, DIGEST: "".join(digests).encode(), RESULT: text})
        if earlier:
            self._write({DIGEST: digests[0].encode()})
        return result

    def clear(self) -> None:
        """The run goes on: what an early end left as its result, or half written, is taken away."""
        for path in (self.folder / RESULT, self.folder / DIGEST, self.folder / SAMPLES, *self.folder.rglob(_TEMPORARY)):
            path.unlink(missing_ok=True)

    def end(self) -> None:
        """Nothing is left to do in it."""
        (self.folder / UNFINISHED).unlink(missing_ok=True)


def to_json(result: Result) -> str:
    """The result as it is stored: strict JSON without the segments, which live in samples.csv."""
    bare = [_with_segments(cell, []) for cell in result.cells]
    return result.model_copy(update={"cells": bare}).model_dump_json(indent=1) + "\n"


def find(run: str | Path) -> Path:
    """The folder of a stored run, given the folder, its result.json, or a bare run id under `results/`.

    Raises:
        StoredRunError: there is no such folder.
    """
    path = Path(run)
    try:
        if path.name in (RESULT, PROFILE) and path.is_file():
            return path.parent
        for folder in (path, Path("results") / path):
            if folder.is_dir():
                return folder
        exists = path.exists()
    except (OSError, ValueError) as error:
        raise StoredRunError(f"{str(run)!r} cannot be looked for: {error}") from error
    if exists:
        raise StoredRunError(f"{path} is not a run: give a run's folder or its {RESULT}")
    raise StoredRunError(f"no run {str(run)!r} here or under results/")


def load(run: str | Path) -> Result:
    """A stored run with its segments, both checked against their digests.

    Raises:
        StoredRunError: not a run, not finished, truncated, edited, or of another schema version.
    """
    folder = find(run)
    result = load_bare(folder)
    samples = read_limited(folder / SAMPLES, MAX_SAMPLES_BYTES)
    if result.samples_sha256 != hashlib.sha256(samples).hexdigest():
        raise StoredRunError(f"{folder / SAMPLES} does not match {RESULT}: it was edited or cut short")
    segments = _parse_samples(samples, len(result.cells), folder / SAMPLES)
    cells = [_with_segments(cell, segments[index]) for index, cell in enumerate(result.cells)]
    return result.model_copy(update={"cells": cells})


def load_bare(folder: Path) -> Result:
    """The run in that folder without its segments, for whoever reads many.

    Raises:
        StoredRunError: not a run, not finished, truncated, edited, or of another schema version.
    """
    if (folder / PROFILE).exists():
        raise StoredRunError(f"{folder} is a profile, without a kernel to judge: `e2e report` shows it")
    if not (folder / RESULT).exists():
        raise StoredRunError(why_none(folder))
    text = read_limited(folder / RESULT, MAX_RESULT_BYTES)
    result = _parse_result(text, folder)
    digests = read_limited(folder / DIGEST, 4096).decode("ascii", "replace").split()
    if hashlib.sha256(text).hexdigest() not in digests:
        raise StoredRunError(f"{folder / RESULT} does not match {DIGEST}: it was edited after the run")
    return result


def why_none(folder: Path) -> str:
    """What a folder without a result is, and what to do about it."""
    if not (folder / UNFINISHED).exists():
        return f"{folder} has no {RESULT}: not a run, or one that was stopped before it began"
    state = "is still going" if is_held(folder) else "was stopped before it ended"
    return (
        f"run {folder.name} {state}: it has no outcome yet; `e2e report {folder}` shows what it has, and "
        f"`e2e validate --resume {folder}` finishes it"
    )


def is_held(folder: Path) -> bool:
    """Whether a process works on that run now."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return _is_taken(descriptor)
    finally:
        os.close(descriptor)


def _is_taken(descriptor: int) -> bool:
    """Lock the folder for as long as it stays open, or say that another process has; some network disks lock none."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _parse_result(text: bytes, folder: Path) -> Result:
    file = folder / RESULT
    try:
        raw = pydantic_core.from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise StoredRunError(f"{file} is not whole, strict JSON: {error}") from error
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if version is None:
        raise StoredRunError(f"{file} is JSON, but not a result of e2e: it has no schema_version")
    if version != SCHEMA:
        raise StoredRunError(f"{file} has schema {version!r}; this e2e reads {SCHEMA!r} only")
    try:
        return Result.model_validate_json(pydantic_core.to_json(_upgraded(raw)), strict=True)
    except (KeyError, TypeError, AttributeError) as error:  # what a result of method 1 had is not there
        raise StoredRunError(f"{file} is not a valid result of method 1: {type(error).__name__}: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise StoredRunError(f"{file} is not a valid result: {place}: {first['msg']}") from error


def _upgraded(raw: dict[str, Any]) -> dict[str, Any]:
    """A result of method 1 in the fields of today: its memory verdicts were two numbers.

    Such a run can be shown, and called stale; nothing is judged from it.
    """
    if raw.get("method") != "1":
        return raw
    cells = [
        {**cell, "verdict": {**cell["verdict"], "memory": _upgraded_memory(cell["verdict"]["memory"])}}
        for cell in raw.get("cells", [])
    ]
    return {**raw, "memory": _upgraded_memory(raw.get("memory")), "cells": cells}


def _upgraded_memory(memory: dict[str, Any] | None) -> dict[str, Any] | None:
    if memory is None or "baseline_bytes" not in memory:
        return memory
    source = "peak_allocated_bytes" if "torch" in memory["measure"] else "host_high_water_bytes"
    used = {arm: memory[f"{arm}_bytes"] for arm in ("baseline", "candidate")}
    blocks = {arm: None if size is None else {"processes": 1, source: size} for arm, size in used.items()}
    kept = {name: memory[name] for name in ("outcome", "measure")}
    return {**kept, **blocks, "reduction_ratio": None, "range_ratio": None}


def _with_segments(cell: CellResult, segments: list[Segment]) -> CellResult:
    return cell.model_copy(update={"evidence": cell.evidence.model_copy(update={"segments": segments})})


# ---- samples.csv

_READERS: dict[str, Callable[[str], Any]] = {
    "phase": str,
    "arm": str,
    "seconds": float,
    "clock_hz": lambda text: float(text) if text else None,
    "throttled": lambda text: bool(int(text)) if text else None,
    "device_s": lambda text: float(text) if text else None,
}
"""How a column is read; all others are whole numbers. Nothing between two commas means that it was not seen."""


def _samples_bytes(cells: Sequence[Sequence[Segment]]) -> bytes:
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for cell, segments in enumerate(cells):
        for segment in segments:
            row = [getattr(segment, name) for name in COLUMNS[1:]]
            writer.writerow([cell, *map(_written, row)])
    return stream.getvalue().encode()


def _written(value: Any) -> Any:
    """A float by `repr`, which reads back as the same float: `gate` relies on it. None as nothing."""
    if isinstance(value, bool):
        return int(value)
    return repr(value) if isinstance(value, float) else value


def _parse_samples(content: bytes, num_cells: int, file: Path) -> list[list[Segment]]:
    cells: list[list[Segment]] = [[] for _ in range(num_cells)]
    rows = csv.reader(io.StringIO(content.decode("utf-8", "replace"), newline=""), strict=True)
    try:
        columns = tuple(next(rows, ()))
        if columns not in (COLUMNS, _FIRST_COLUMNS):
            raise ValueError(f"the columns must be {','.join(COLUMNS)}")
        for row in rows:
            cell, segment = _segment(columns, row)
            if not 0 <= cell < num_cells:
                raise ValueError(f"the result has no cell {cell}")
            cells[cell].append(segment)
    except (ValueError, csv.Error) as error:  # pydantic's ValidationError is a ValueError
        raise StoredRunError(f"{file}:{rows.line_num}: not a sample: {error}") from error
    return cells


def _segment(columns: Sequence[str], row: Sequence[str]) -> tuple[int, Segment]:
    values = {name: _READERS.get(name, int)(text) for name, text in zip(columns, row, strict=True)}
    return values.pop("cell"), Segment.model_validate(values, strict=True)


# ---- Files


_TEMPORARY = f".*.{'[0-9a-f]' * 12}"
_FULL = (errno.ENOSPC, errno.EDQUOT)


def _cannot_write(place: str, error: OSError) -> EnvironmentFault:
    if error.errno in _FULL:
        return EnvironmentFault(f"no space left in {place}: free some, or choose another folder")
    return EnvironmentFault(f"{place}: cannot write results there: {error.strerror}")


def _write_atomically(files: Mapping[Path, bytes]) -> None:
    """Readers see the old content or the new, also after a power cut; no file is new unless all could be written."""
    temporaries = {path: path.with_name(f".{path.name[:100]}.{secrets.token_hex(6)}") for path in files}
    try:
        for path, content in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporaries[path].open("xb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
        for path, temporary in temporaries.items():
            temporary.replace(path)
    finally:
        for temporary in temporaries.values():
            temporary.unlink(missing_ok=True)
    for parent in {path.parent for path in files}:
        folder = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def read_limited(file: Path, limit: int) -> bytes:
    """A stored file, if it is no larger.

    Raises:
        StoredRunError: it is missing, cannot be read, or is larger.
    """
    try:
        if not stat.S_ISREG(file.stat().st_mode):  # a pipe could block for ever
            raise StoredRunError(f"{file} is not a regular file")
        with file.open("rb") as stream:
            content = stream.read(limit + 1)
    except FileNotFoundError as error:
        raise StoredRunError(f"{file} is missing: the run is not complete") from error
    except OSError as error:
        raise StoredRunError(f"cannot read {file}: {error.strerror}") from error
    if len(content) > limit:
        raise StoredRunError(f"{file} is larger than any result: more than {limit // 2**20} MiB")
    return content
