"""Ops and tasks from outside the package: `path/to/file.py:Name`. The parent reads such files; workers run them."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from e2e.errors import UsageError

_LIBRARIES = (*(sysconfig.get_paths()[name] for name in ("purelib", "platlib", "stdlib")), "<frozen")
_MOST_BYTES = 4 * 2**20
"""No source is that long."""


_TEXT, _NAMES, _TABLE, _METHOD = "a text", "a tuple of texts", "a mapping by name", "a method"
_FORMS: Mapping[str, Callable[[Any], bool]] = {
    _TEXT: lambda value: isinstance(value, str) and bool(value),
    _NAMES: lambda value: isinstance(value, tuple) and all(isinstance(item, str) for item in value),
    _TABLE: lambda value: isinstance(value, Mapping) and all(isinstance(key, str) for key in value),
    _METHOD: callable,
}


class Kind(NamedTuple):
    """What such a file may hold."""

    word: str
    members: Mapping[str, str]
    """What it has to have, and in which form."""
    docs: str


OP = Kind(
    "op",
    {
        **{"name": _TEXT, "tensor_names": _NAMES, "scalar_names": _NAMES, "schema": _TEXT, "alternatives": _TABLE},
        **dict.fromkeys(("find_sites", "own", "forward_with", "reference", "allocate", "dims"), _METHOD),
        **dict.fromkeys(("example", "edge_calls", "mutants"), _METHOD),
    },
    "docs/ops.md",
)
"""`protocols.Op`."""
TASK = Kind("task", {"steps": _NAMES, "open": _METHOD}, "docs/workloads.md")
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
    return hashlib.sha256(content_of(place)).hexdigest()


def load(place: Place, sha256: str | None) -> Any:
    """The op or task. Runs the file.

    Raises:
        UsageError: the file is not the one with that hash, cannot be run, or holds nothing of that name and kind.
    """
    word, members, docs = place.kind
    found = hashlib.sha256(content_of(place)).hexdigest()
    if sha256 not in (None, found):
        raise UsageError(f"{word} {place.file}: the file changed during the run; run again")
    try:
        module = _module(place, f"e2e_{word}_{found[:16]}")
        made = getattr(module, place.attribute, None)
        item = made() if isinstance(made, type) else made
        found_there = {name: getattr(item, name) for name in members if hasattr(item, name)}
    except (Exception, SystemExit) as error:  # re-raised as the caller's: it is their code, which may raise anything
        raise UsageError(f"{word} {_where(place, error)}: {_said(error)}") from error
    if item is None:
        classes = [name for name, other in vars(module).items() if getattr(other, "__module__", "") == module.__name__]
        raise UsageError(
            f"{word} {place.file}: there is no {place.attribute!r} in it; it has: {', '.join(classes) or 'nothing'}"
        )
    missing = [member for member in members if member not in found_there]
    if missing:
        what = f"is no {word}" if len(missing) == len(members) else f"lacks {', '.join(missing)}"
        raise UsageError(f"{word} {place.file}: {place.attribute} {what} (see {docs})")
    wrong = [f"{name} is not {form}" for name, form in members.items() if not _FORMS[form](found_there[name])]
    if wrong:
        raise UsageError(f"{word} {place.file}: {place.attribute}: {', '.join(wrong)} (see {docs})")
    _LOADED[str(place.file)] = place
    return item


_LOADED: dict[str, Place] = {}
"""What this process runs, by the file."""


def fault_in(error: BaseException) -> UsageError | None:
    """What was raised, as the caller's mistake, where it was their op or task that raised it.

    That is where no code of the package and none of a kernel stands nearer to the error; libraries do not count.
    """
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if (place := _LOADED.get(frame.filename)) is not None:
            return UsageError(f"{place.kind.word} {place.file}:{frame.lineno}: {_said(error)}")
        if not frame.filename.startswith(_LIBRARIES):
            return None
    return None


def content_of(place: Place) -> bytes:
    """The file, which is not run.

    Raises:
        UsageError: it cannot be read, or is no source.
    """
    try:
        if place.file.exists() and not place.file.is_file():  # a pipe could block for ever
            raise UsageError(f"{place.kind.word} {place.file} is not a regular file")
        with place.file.open("rb") as stream:
            content = stream.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{place.kind.word} {place.file} cannot be read: {reason}") from error
    if len(content) > _MOST_BYTES:
        raise UsageError(f"{place.kind.word} {place.file} is larger than {_MOST_BYTES // 2**20} MiB")
    return content


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


def _said(error: BaseException) -> str:
    """Kind and message, on one line."""
    text = " ".join(traceback.format_exception_only(error)[-1].split())  # also where its message cannot be had
    return "".join(char if char.isprintable() else " " for char in text)[:500]


def _where(place: Place, error: BaseException) -> str:
    """The file, with the last of its own lines on the way to the error."""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f"{place.file}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(place.file)]
    return f"{place.file}:{frames[-1].lineno}" if frames else str(place.file)
