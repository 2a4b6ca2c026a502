"""The exam: inputs of the model-level check, the same for several kernels so that their answers can be kept.

What is timed, and what the op alone is checked on, is fresh in every run. The exam's seed is drawn once and used
`USES` times on the same workload, cell, op and device.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from e2e.schema.record import Record

SEED_SPACE = 2**31
"""Run and exam seeds; step seeds count up from a multiple of it, so that those of two runs never meet."""
USES = 16
"""Runs that share an exam: the more, the better its inputs are known to who writes kernels."""


@dataclass(frozen=True)
class Exam:
    """What is asked, and where the answers may be kept."""

    seed: int
    folder: Path | None = None
    """None: answers are neither taken nor kept."""
    identity: str = ""
    """Hash of what the parent knows of all that the answers depend on."""
    run: int = 1
    """Of the runs that share the seed, which one this is, from 1."""


class _Drawn(Record):
    """An exam's seed, on disk."""

    seed: Annotated[int, Field(ge=0, lt=SEED_SPACE)]
    uses: Annotated[int, Field(ge=1)]


def draw(folder: Path, asked: Sequence[Any]) -> Exam:
    """The exam of whatever `asked` describes (in JSON's terms): the one in use, or after `USES` runs a fresh one.

    What is on disk is a convenience: damaged or out of range, a fresh one is drawn; two runs at once may count one use.
    """
    identity = identity_of(asked)
    path = folder / f"exam-{identity}.json"
    known: _Drawn | None = None
    with contextlib.suppress(OSError, ValidationError):
        known = _Drawn.model_validate_json(path.read_bytes()) if path.is_file() else None
    if known is None or known.uses >= USES:
        known = _Drawn(seed=secrets.randbelow(SEED_SPACE), uses=1)
    else:
        known = known.model_copy(update={"uses": known.uses + 1})
    with contextlib.suppress(OSError):
        _write(path, known.model_dump_json())
    return Exam(known.seed, folder, identity, known.uses)


def identity_of(asked: Sequence[Any]) -> str:
    """Hash of it, and of e2e's own sources, which compute the answers."""
    return hashlib.sha256(json.dumps([*asked, _own_sources()], sort_keys=True).encode()).hexdigest()


@cache
def _own_sources() -> str:
    whole = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        whole.update(path.read_bytes() + b"\0")
    return whole.hexdigest()


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(name, path)
