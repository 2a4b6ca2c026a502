"""Files that a process of the candidate's, or of a user's own program, was asked to write: there may be anything."""

from __future__ import annotations

import os
import stat
from pathlib import Path


class UnreadableFile(ValueError):
    """It is no plain file, or too large."""


def content_of(path: Path, *, limit: int) -> bytes:
    """What a plain file holds; a pipe would block for ever, and a link lead anywhere.

    Raises:
        OSError: it is not there, is a link, or cannot be read.
        UnreadableFile: it is no plain file, or holds more than `limit` bytes.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise UnreadableFile("it is no plain file")
        content = file.read(limit + 1)
    if len(content) > limit:
        raise UnreadableFile(f"it is larger than the limit of {limit:,} bytes")
    return content


def need_plain(path: Path) -> None:
    """For readers that take a path only.

    Raises:
        OSError: it is not there.
        UnreadableFile: it is no plain file.
    """
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise UnreadableFile("it is no plain file")
