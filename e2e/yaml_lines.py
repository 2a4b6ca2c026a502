"""YAML that remembers its lines, so that every mistake is reported as `file:line: field: what to do`.

A strict subset, the same for workloads, policies and kernel blocks: scalars as in YAML 1.2 (`1e-5` is a
number, `yes` is refused), no anchors or aliases (a small file must not grow into a large one), no tags, no
duplicate keys.
"""

from __future__ import annotations

import difflib
import math
import re
import types
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from e2e.errors import UsageError

Path = tuple[str | int, ...]

MAX_BYTES = 256 * 1024
"""Far beyond any file people write by hand, and read within about a second."""
MAX_DEPTH = 32
_DIGITS = 100

_CORE = "tag:yaml.org,2002:"
_AMBIGUOUS = frozenset({"yes", "no", "on", "off"})
"""Booleans in YAML 1.1, words in 1.2: whichever the author meant, half of the readers are surprised."""
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS = {text: text.lower() == "true" for text in ("true", "True", "TRUE", "false", "False", "FALSE")}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_PREFIXED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_PYDANTIC_NOISE = re.compile(r" or instance of \w+| after validation|, (unable to|got a) .*")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


class Parsed(NamedTuple):
    """What was read, and the line of every part of it."""

    data: Any
    lines: dict[Path, int]
    """Line by path: of the key for a mapping's entries, of the item for a list's; `()` is the whole."""


def parse(text: str, *, file: str, first_line: int = 1) -> Parsed:
    """Data and line numbers of one YAML document; `first_line` is the line of `file` on which `text` starts.

    Raises:
        UsageError: too large, not YAML, or outside the subset; one line per mistake.
    """
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise UsageError(f"{file}:{first_line}: too large: at most {MAX_BYTES // 1024} KiB of YAML are read")
    try:
        node = _Loader(text).get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = first_line + (mark.line if mark else 0)
        reason = printable(str(error.problem or error.context))
        raise UsageError(f"{file}:{line}: not readable as YAML: {reason}") from error
    except yaml.reader.ReaderError as error:
        line = first_line + text.count("\n", 0, error.position)
        raise UsageError(f"{file}:{line}: not readable as YAML: a control character") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = printable(str(error)) or type(error).__name__
        raise UsageError(f"{file}:{first_line}: not readable as YAML: {reason}") from error
    reader = _Reader(file, first_line)
    data = reader.read(node, ()) if node is not None else None
    reader.lines.setdefault((), first_line)
    if reader.mistakes:
        raise UsageError("\n".join(reader.mistakes))
    return Parsed(data, reader.lines)


def explain(error: ValidationError, lines: Mapping[Path, int], file: str, model: type[BaseModel]) -> list[str]:
    """`file:line: field: message; did you mean 'x'?` for every mistake in `error`, in file order."""
    items = error.errors(include_url=False)
    paths = [_data_path(item["loc"], lines, missing=item["type"] == "missing") for item in items]
    merged: dict[Path, list[str]] = {}
    for item, path in zip(items, paths, strict=True):
        # A union reports once per member. Members that fail deeper inside are the ones that were meant.
        of_union = len(item["loc"]) > len(path)
        if of_union and any(len(other) > len(path) and other[: len(path)] == path for other in paths):
            continue
        message = _message(item, path, model)
        if message not in merged.setdefault(path, []):
            merged[path].append(message)
    found = [(_line_of(path, lines), dotted(path), messages) for path, messages in merged.items()]
    return [
        f"{file}:{line}: {f'{field}: ' if field else ''}{'; or '.join(messages)}"
        for line, field, messages in sorted(found, key=lambda entry: entry[0])
    ]


def nearest(name: str, known: Iterable[str]) -> str:
    """`did you mean 'x'?`, or the known names when nothing is near."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names)}"


class _Loader(yaml.SafeLoader):
    """Composes nodes; refuses what would let a small text become large or deep."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            problem = "anchors and aliases are not allowed"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        if self.depth >= MAX_DEPTH:
            problem = f"nested more than {MAX_DEPTH} levels deep"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


_Loader.yaml_implicit_resolvers = {}  # scalars are resolved below, by YAML 1.2's core schema


class _Reader:
    """Turns nodes into data, noting lines and mistakes as it goes."""

    def __init__(self, file: str, first_line: int) -> None:
        self.file, self.first_line = file, first_line
        self.lines: dict[Path, int] = {}
        self.mistakes: list[str] = []

    def read(self, node: yaml.Node, path: Path) -> Any:
        self.lines.setdefault(path, self._line(node))
        kinds = {yaml.ScalarNode: "str", yaml.SequenceNode: "seq", yaml.MappingNode: "map"}
        if node.tag != _CORE + kinds[type(node)]:
            self._mistake(node, path, f"tags such as {printable(node.tag)!r} are not allowed")
            return None
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.read(item, (*path, index)) for index, item in enumerate(node.value)]
        if not isinstance(node, yaml.ScalarNode) or node.style is not None:
            return node.value  # quoted or a block: text, whatever it looks like
        try:
            return _scalar(node.value)
        except ValueError as error:
            self._mistake(node, path, str(error))
            return None

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != _CORE + "str":
                self._mistake(key_node, path, "a key must be a plain word")
                continue
            key = key_node.value
            if key in data:
                first = self.lines[(*path, key)]
                self._mistake(key_node, (*path, key), f"given twice (first on line {first}); keep one")
                continue
            self.lines[(*path, key)] = self._line(key_node)
            data[key] = self.read(value_node, (*path, key))
        return data

    def _line(self, node: yaml.Node) -> int:
        return self.first_line + int(node.start_mark.line)

    def _mistake(self, node: yaml.Node, path: Path, problem: str) -> None:
        field = dotted(path)
        self.mistakes.append(f"{self.file}:{self._line(node)}: {f'{field}: ' if field else ''}{problem}")


def _scalar(text: str) -> Any:
    """Value of an unquoted scalar by YAML 1.2's core schema.

    Raises:
        ValueError: no reading that everybody shares, or no finite number.

    Source:
        YAML 1.2.2, section 10.3.2.
    """
    if text in _NULLS:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if text.lower() in _AMBIGUOUS:
        raise ValueError(f"{text!r} is a boolean to some readers; write true or false, or put it in quotes")
    if _NOT_FINITE.fullmatch(text):
        raise ValueError(f"{text!r} is not a finite number")
    if _PREFIXED.fullmatch(text):
        return int(text, 0)
    if not _FLOAT.fullmatch(text):
        return text
    if len(text) > _DIGITS:
        raise ValueError(f"a number has at most {_DIGITS} digits")
    if _INTEGER.fullmatch(text):
        return int(text)
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text!r} is not a finite number")
    return value


def printable(value: str, limit: int = 80) -> str:
    """`value` in at most `limit` characters, controls escaped: a file must not steer the terminal."""
    text = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def dotted(path: Path) -> str:
    """`claim.speedup`, `dtypes[0]`: a path as messages have it."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{printable(part)}"
    return text.removeprefix(".")


def _data_path(loc: tuple[int | str, ...], lines: Mapping[Path, int], *, missing: bool) -> Path:
    """The part of pydantic's location that is in the file: it also names union members and dict keys.

    A missing field is not in the file; it is the last part, after its parent.
    """
    path: Path = ()
    for part in loc:
        if (*path, part) in lines:
            path = (*path, part)
    return (*path, loc[-1]) if missing else path


def _line_of(path: Path, lines: Mapping[Path, int]) -> int:
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)


def _message(item: Mapping[str, Any], path: Path, model: type[BaseModel]) -> str:
    kind, given = item["type"], item.get("input")
    if kind == "missing":
        return "missing; it is required"
    if kind == "extra_forbidden":
        owner = _model_at(model, path[:-1])
        return f"no such field; {nearest(str(path[-1]), owner.model_fields)}" if owner else "no such field"
    text = str(item["msg"]).removeprefix("Value error, ").replace("Input should be", "must be", 1)
    if kind in ("value_error", "assertion_error"):
        return text
    text = _PYDANTIC_NOISE.sub("", text).replace("a valid dictionary", "a mapping of fields")
    if isinstance(given, str | int | float | bool | None):
        text += f", not {'empty' if given is None else printable(repr(given))}"
    if kind == "string_type" and isinstance(given, int | float):
        text += " (put it in quotes)"
    if kind == "literal_error" and isinstance(given, str):
        close = difflib.get_close_matches(given, re.findall(r"'([^']*)'", item["ctx"]["expected"]), n=1)
        text += f"; did you mean {close[0]!r}?" if close else ""
    return text


def _model_at(model: type[BaseModel], path: Path) -> type[BaseModel] | None:
    """The record type at `path`, going through optional, list and dict types."""
    current: type[BaseModel] | None = model
    for part in path:
        if current is None:
            return None
        if isinstance(part, int):
            continue  # the list's item type was already taken
        field = current.model_fields.get(part)
        current = _record_in(field.annotation) if field else None
    return current


def _record_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return annotation if issubclass(annotation, BaseModel) else None
    if get_origin(annotation) in (Union, types.UnionType, list, tuple):
        return next(filter(None, map(_record_in, get_args(annotation))), None)
    return None
