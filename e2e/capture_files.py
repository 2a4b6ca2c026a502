"""Files of captured op inputs: found and looked into without torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from e2e.errors import StoredRunError, UsageError
from e2e.store import find
from e2e.yaml_lines import printable

FOLDER, SUFFIX = "captures", ".safetensors"
MAX_HEADER_BYTES = 64 * 2**20
"""Far beyond what a header needs; the file comes from elsewhere and must not exhaust memory."""


@dataclass(frozen=True)
class Captures:
    """A file of calls of one op."""

    path: Path
    dtype: str


def file_name(op: str) -> str:
    """The file of an op's inputs; `module:LlamaMLP` is in `module.LlamaMLP.safetensors`."""
    safe = "".join(char if char.isalnum() or char in "_-" else "." for char in op).strip(".")
    return f"{safe}{SUFFIX}"


def find_captures(given: str, *, op: str) -> Captures:
    """The op's captured inputs in a file, or in the folder of a profile.

    Raises:
        UsageError: there are none, or they are another op's.
    """
    path = _path(given, op)
    about = _about(path)
    if about.get("op") != op:
        of = printable(str(about.get("op") or "no op that it names"))
        raise UsageError(f"--captures {path}: inputs of {of}, and the kernel is for {printable(op)}")
    return Captures(path, str(about.get("dtype")))


def _path(given: str, op: str) -> Path:
    if given.endswith(SUFFIX):
        return Path(given)
    try:
        folder = find(given)
    except StoredRunError as error:
        raise UsageError(f"--captures {given}: no {SUFFIX} file, and no run of `e2e profile`") from error
    path = folder / FOLDER / file_name(op)
    if not path.is_file():
        held = sorted(item.stem for item in (folder / FOLDER).glob(f"*{SUFFIX}"))
        there = f"it has: {', '.join(held)}" if held else "it has none: `e2e profile WORKLOAD` makes them"
        raise UsageError(f"--captures {folder}: no inputs of {printable(op)}; {there}")
    return path


def _about(path: Path) -> dict[str, str]:
    """What the file says of itself: a safetensors file begins with the length of its header, which is JSON."""
    try:
        if path.exists() and not path.is_file():  # a pipe could block for ever
            raise UsageError(f"--captures {path}: not a regular file")
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(length)) if 0 < length <= MAX_HEADER_BYTES else None
    except OSError as error:
        raise UsageError(f"--captures {path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError):
        header = None
    about = header.get("__metadata__") if isinstance(header, dict) else None
    if not isinstance(about, dict) or "calls" not in about:
        raise UsageError(f"--captures {path}: not a file of captured inputs; `e2e profile WORKLOAD` makes them")
    return about
