"""Plug-ins by file name: the file's name is the registered name, and there is no central list.

Listing reads file names and docstrings without importing anything; loading imports one file.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import os
from pathlib import Path
from typing import Any

from e2e import outside
from e2e.errors import UsageError

ROOT = Path(__file__).parent


def names(kind: str) -> list[str]:
    """Registered names of one kind of plug-in, sorted; underscores in file names read as dashes for tasks."""
    return sorted(_public(path.stem, kind) for path in (ROOT / kind).glob("*.py") if path.stem[0] != "_")


def summary(kind: str, name: str) -> str:
    """First line of the plug-in's docstring, read without importing it."""
    tree = ast.parse(path_of(kind, name).read_text(encoding="utf-8"))
    return (ast.get_docstring(tree) or "").split("\n", 1)[0]


def load(kind: str, name: str) -> Any:
    """Import one plug-in and return its `PLUGIN`.

    Raises:
        UsageError: no plug-in of that name; the message names the nearest one and all others.
    """
    path = path_of(kind, name)
    return importlib.import_module(f"e2e.{kind}.{path.stem}").PLUGIN


def path_of(kind: str, name: str) -> Path:
    """The plug-in's file.

    Raises:
        UsageError: no plug-in of that name; the message names the nearest one and all others.
    """
    path = ROOT / kind / f"{name.replace('-', '_')}.py"
    if name.startswith("_") or not os.path.isfile(path):  # a name may be no name of a file at all
        known = names(kind)
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise UsageError(f"no {kind[:-1]} called {name!r}; {hint}known: {', '.join(known)}")
    return path


def _public(stem: str, kind: str) -> str:
    return stem.replace("_", "-") if kind in ("tasks", "builders") else stem


def load_op(name: str, sha256: str | None = None) -> Any:
    """The op of that name; `module:CLASS` is the op `module` for that class, `path/to/file.py:Op` one from outside.

    Raises:
        UsageError: no such op, or its file cannot be run, is not the one with that hash, or holds no op.
    """
    if (place := outside.place_of(name)) is not None:
        return outside.load(place, sha256)
    base, _, argument = name.partition(":")
    plugin = load("ops", base)
    return plugin.of(argument) if argument else plugin


def load_task(name: str, root: Path, sha256: str | None = None) -> Any:
    """The task of that name; `path/to/file.py:Task` is one from outside, relative to `root`.

    Raises:
        UsageError: no such task, or its file cannot be run, is not the one with that hash, or holds no task.
    """
    place = outside.place_of(name, outside.TASK, root=root)
    return load("tasks", name) if place is None else outside.load(place, sha256)


def task_sha256(name: str, root: Path) -> str | None:
    """Hash of a task's file from outside; None for one of ours.

    Raises:
        UsageError: the file cannot be read.
    """
    place = outside.place_of(name, outside.TASK, root=root)
    return None if place is None else outside.sha256_of(place)


def steps_of(name: str, root: Path) -> tuple[str, ...] | None:
    """Kinds of step that a task has, read without running its file; None where no class states them as a literal.

    Raises:
        UsageError: no such task, or its file is not Python.
    """
    place = outside.place_of(name, outside.TASK, root=root)
    path = path_of("tasks", name) if place is None else place.file
    try:
        tree = ast.parse(path.read_bytes() if place is None else outside.content_of(place))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"task {path} cannot be read: {error}") from error
    for node in (item for item in tree.body if isinstance(item, ast.ClassDef)):
        for line in node.body:
            if not isinstance(line, ast.Assign) or ast.unparse(line.targets[0]) != "steps":
                continue
            if place is None or node.name == place.attribute:
                return _texts(line.value, path)
    return None


def _texts(value: ast.expr, path: Path) -> tuple[str, ...] | None:
    try:
        found = ast.literal_eval(value)
    except (ValueError, TypeError, MemoryError, RecursionError):
        return None  # worked out when the file runs
    if not isinstance(found, tuple | list) or not all(isinstance(item, str) for item in found):
        raise UsageError(f'task {path}:{value.lineno}: steps: must be a tuple of texts, such as ("forward",)')
    return tuple(found)
