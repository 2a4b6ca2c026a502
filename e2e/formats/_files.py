"""Files that people name as kernels, read within bounds."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from e2e.errors import UsageError
from e2e.formats._names import nearest_file, shown_spec

_MAX_BYTES = 4 * 1024 * 1024
"""No kernel is that long; whatever it is, it was given by mistake."""
_NEARLY = re.compile(r"\s*(//|#)\s*/{2,}\s*e2e\b", re.IGNORECASE)


def read_bytes(path: Path, spec: str) -> bytes | None:
    """The file's bytes; None for a folder, which another format may know."""
    shown = shown_spec(spec)
    try:
        # Opened without blocking, then looked at: a pipe or a device must not hang or fill the memory.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            kind = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(kind):
                raise UsageError(f"{shown} is not a regular file")
            content = file.read(_MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise UsageError(f"no such file: {shown}{nearest_file(path)}") from error
    except IsADirectoryError:
        return None
    except (OSError, ValueError) as error:
        if os.path.isdir(path):
            return None
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"{shown} cannot be read: {reason}") from error
    if len(content) > _MAX_BYTES:
        raise UsageError(f"{shown} is larger than {_MAX_BYTES // 1024**2} MiB; that is no kernel source")
    if not content.strip():
        raise UsageError(f"{shown} is empty")
    return content


def decode(content: bytes, spec: str) -> str:
    """Source text with plain line ends; an error when it is none."""
    if b"\0" in content:
        raise UsageError(f"{shown_spec(spec)} is a binary file, not source text")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{shown_spec(spec)}:{line}: not UTF-8 text") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def opens_block(row: str) -> bool:
    """Whether a line opens a manifest block of ours, or tries to: such a file is no foreign format."""
    return _NEARLY.match(row) is not None
