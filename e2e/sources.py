"""The files that a kernel consists of, and the hash that stands for them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path


def digest(path: str | Path, others: Sequence[str] = ()) -> str:
    """SHA-256 of one source, or of several with their names relative to the first one's folder.

    Raises:
        OSError: one of them cannot be read.
    """
    own = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    if not others:
        return own
    names = {relative_name(path, other): hashlib.sha256(Path(other).read_bytes()).hexdigest() for other in others}
    return hashlib.sha256(json.dumps([[Path(path).name, own], *sorted(names.items())]).encode()).hexdigest()


def relative_name(path: str | Path, other: str) -> str:
    """Name of a further source as the first one's folder sees it."""
    return Path(other).relative_to(Path(path).parent).as_posix()
