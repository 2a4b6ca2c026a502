"""Ops and tasks from outside the package: `path/to/file.py:Name`. The parent reads such files; workers run them."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from e2e.errors import UsageError


class Kind(NamedTuple):
    """What such a file may hold."""

    word: str
    members: tuple[str, ...]
    """What it has to have."""
    docs: str


OP = Kind(
    "op",
    (
        *("name", "tensor_names", "scalar_names", "schema", "alternatives", "find_sites", "own", "forward_with"),
        *("reference", "allocate", "dims", "example", "edge_calls", "mutants"),
    ),
    "docs/ops.md",
)
"""`protocols.Op`."""
TASK = Kind("task", ("steps", "open"), "docs/workloads.md")
"""`protocols.Task`."""


class Place(NamedTuple):
    """Where one is."""

    file: Path
    attribute: str
    """A class that is made without arguments, or an object."""
    kind: Kind


def place_of(name: str, kind: Kind = OP, *, root: Path = Path()) -> Place | None:
    """File and attribute in a name; None where it is no name of such a file. Paths are relative to `root`."""
    file, colon, attribute = name.rpartition(":")
    return Place(root / file, attribute, kind) if colon and file.endswith(".py") else None


def sha256_of(place: Place) -> str:
    """Hash of the file, which is not run.

    Raises:
        UsageError: it cannot be read, or the attribute cannot be the name of one.
    """
    if not place.attribute.isidentifier():
        raise UsageError(f"{place.kind.word} {place.file}: {place.attribute!r} is not the name of a class in it")
    return hashlib.sha256(_content(place)).hexdigest()


def load(place: Place, sha256: str | None) -> Any:
    """The op or task. Runs the file.

    Raises:
        UsageError: the file is not the one with that hash, cannot be run, or holds nothing of that name and kind.
    """
    word, members, docs = place.kind
    found = hashlib.sha256(_content(place)).hexdigest()
    if sha256 not in (None, found):
        raise UsageError(f"{word} {place.file}: the file changed during the run; run again")
    try:
        module = _module(place, f"e2e_{word}_{found[:16]}")
        made = getattr(module, place.attribute, None)
        item = made() if isinstance(made, type) else made
    except (Exception, SystemExit) as error:  # re-raised as the caller's: it is their code, which may raise anything
        raise UsageError(f"{word} {_where(place, error)}: {type(error).__name__}: {error}") from error
    if item is None:
        classes = [name for name, other in vars(module).items() if getattr(other, "__module__", "") == module.__name__]
        raise UsageError(
            f"{word} {place.file}: there is no {place.attribute!r} in it; it has: {', '.join(classes) or 'nothing'}"
        )
    missing = [member for member in members if not hasattr(item, member)]
    if missing:
        what = f"is no {word}" if len(missing) == len(members) else f"lacks {', '.join(missing)}"
        raise UsageError(f"{word} {place.file}: {place.attribute} {what} (see {docs})")
    return item


def _content(place: Place) -> bytes:
    try:
        return place.file.read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{place.kind.word} {place.file} cannot be read: {reason}") from error


def _module(place: Place, name: str) -> ModuleType:
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, place.file)
    assert spec is not None and spec.loader is not None  # the file's name ends with .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:  # re-raised: a half-imported module must not stay
        del sys.modules[name]
        raise
    return module


def _where(place: Place, error: BaseException) -> str:
    """The file, with the last of its own lines on the way to the error."""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f"{place.file}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(place.file)]
    return f"{place.file}:{frames[-1].lineno}" if frames else str(place.file)
