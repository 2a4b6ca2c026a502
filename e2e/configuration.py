"""Workload and policy files, `--set` overrides, and what to say when they are wrong."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard, TypeVar, get_origin

from pydantic import BaseModel, ValidationError

from e2e import registry
from e2e.errors import UsageError
from e2e.lengths import with_lengths
from e2e.schema.policy import Policy
from e2e.schema.workload import Workload
from e2e.yaml_lines import MAX_BYTES, Parsed, explain, parse, printable

BUILT_IN_POLICIES = Path(__file__).parent / "policies"
SHIPPED_WORKLOADS = Path("workloads")
"""Relative to the working folder: workloads belong to the user's repository, not to the package."""
DEFAULT_POLICY = "standard"
YAML_SUFFIXES = (".yaml", ".yml")
_LISTED = 1000
"""Most files of a folder that are compared with a misspelt name."""

Model = TypeVar("Model", bound=BaseModel)
Location = tuple[str | int, ...]


@dataclass(frozen=True)
class LoadedWorkload:
    """A workload, and where it came from."""

    workload: Workload
    path: Path
    """Absolute; relative paths in the workload are relative to its folder."""
    overrides: dict[str, Any]
    """Dotted field to value, as `--set` gave them."""
    sha256: str
    """Of the file, before overrides."""
    task_sha256: str | None = None
    """Of the file of a task from outside the package."""


def load_workload(path: str, overrides: Sequence[str] = ()) -> LoadedWorkload:
    """The workload in a file, or a shipped one by its bare name, with `key.path=value` laid over it.

    Raises:
        UsageError: no such file, not YAML, or fields that do not fit; one line per mistake.
    """
    file = _find(path, "workload", SHIPPED_WORKLOADS)
    source = _read(file, "workload")
    parsed = _mapping(source.text, file, "workload")
    settings, mistakes = _settings(overrides)
    _lay_over(parsed, settings)
    misplaced = [key for key in parsed.data if key in Policy.model_fields.keys() - Workload.model_fields.keys()]
    if misplaced:
        mistakes.append(f"{file}: thresholds ({', '.join(misplaced)}) belong in a policy file, see --policy")
    workload, found = _validated(Workload, parsed, str(file), settings)
    if workload is None or mistakes:
        raise UsageError("\n".join([*found, *mistakes]))
    values = {".".join(setting.field): setting.value for setting in settings}
    whole = file.resolve()
    try:
        workload = with_lengths(workload, whole.parent)
    except UsageError as error:
        raise UsageError(f"{file}: {error.message}") from error
    return LoadedWorkload(workload, whole, values, source.sha256, registry.task_sha256(workload.task, whole.parent))


def load_policy(
    name_or_path: str | None, *, workload: LoadedWorkload | None = None, heeds_waivers: bool = False
) -> Policy:
    """The policy asked for, else the one that the workload names, else `standard`.

    A path given by the caller is relative to the working folder, one in a workload to the workload's file. Waivers are
    for `gate`, which says who answers for what: everybody else gets the policy without them.

    Raises:
        UsageError: no such policy, or fields that do not fit; one line per mistake.
    """
    folder = Path()
    if name_or_path is None and workload is not None:
        name_or_path, folder = workload.workload.policy, workload.path.parent
    file = _find(name_or_path or DEFAULT_POLICY, "policy", BUILT_IN_POLICIES, relative_to=folder)
    parsed = _mapping(_read(file, "policy").text, file, "policy")
    policy, found = _validated(Policy, parsed, str(file), [])
    if policy is None:
        raise UsageError("\n".join(found))
    return policy if heeds_waivers else policy.model_copy(update={"waivers": []})


# ---- Files


class _Source(NamedTuple):
    text: str
    sha256: str


def _find(given: str, what: str, shipped: Path, *, relative_to: Path = Path()) -> Path:
    """The file meant: a bare name is looked up among the shipped ones first, so that names stay stable."""
    is_name = "/" not in given and not given.endswith(YAML_SUFFIXES) and given not in ("", ".", "..")
    if "\0" in given:
        raise UsageError(f"{printable(given)!r} is not a path")
    if is_name and _exists(named := shipped / f"{given}.yaml"):
        return named
    if _exists(file := relative_to / given):
        return file
    raise UsageError(f"no {what} {printable(str(file))!r}{_near(file, shipped)}")


def _exists(file: Path) -> bool:
    try:
        return file.exists()
    except OSError as error:  # a name too long, or a folder that may not be searched
        raise UsageError(f"cannot look for {printable(str(file))}: {error.strerror}") from error


def _near(file: Path, shipped: Path) -> str:
    """A hint: the existing file or shipped name that is spelt most alike, or where was looked and what is there."""
    beside = {Path(name).stem: str(file.parent / name) for name in _yaml_files(file.parent)}
    names = {Path(name).stem: Path(name).stem for name in _yaml_files(shipped)}
    for known in (beside, names):
        close = difflib.get_close_matches(file.stem, known, n=1)
        if close:
            return f"; did you mean {printable(known[close[0]])!r}?"
    if file.parent == Path():
        there = (
            f" and in {shipped}, which has {_listed(names)}"
            if names
            else f", which has no folder {shipped}; give its path"
        )
        return f"; looked in {printable(str(Path.cwd()), 300)}{there}"
    folder = printable(str(file.parent), 300)
    return f"; {folder} has {_listed(_yaml_files(file.parent))}" if beside else f"; {folder} has no YAML file"


def _listed(names: Iterable[str]) -> str:
    """The names for a message, not more than it can hold."""
    return printable(", ".join(sorted(names)), 300)


def _yaml_files(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry, _ in zip(entries, range(_LISTED), strict=False)]
    except OSError:
        return []  # only a hint is lost
    return sorted(name for name in names if name.endswith(YAML_SUFFIXES))


def _read(file: Path, what: str) -> _Source:
    shown = printable(str(file))
    try:
        mode = file.stat().st_mode
        if stat.S_ISDIR(mode):
            inside = ", ".join(_yaml_files(file)[:5])
            raise UsageError(f"{shown} is a folder; a {what} is one YAML file{inside and f': {inside}'}")
        if not stat.S_ISREG(mode):  # a pipe could block for ever
            raise UsageError(f"{shown} is not a regular file")
        with file.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read {shown}: {error.strerror}") from error
    if len(raw) > MAX_BYTES:
        raise UsageError(f"{shown} is too large for a {what}: more than {MAX_BYTES // 1024} KiB")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{shown} is not text in UTF-8 (byte {error.start})") from error
    if "\0" in text:
        raise UsageError(f"{shown} is a binary file; a {what} is YAML text")
    return _Source(text, hashlib.sha256(raw).hexdigest())


def _mapping(text: str, file: Path, what: str) -> Parsed:
    parsed = parse(text, file=str(file))
    if parsed.data is None:
        raise UsageError(f"{file}:1: the {what} is empty; it needs at least `name:`")
    if not isinstance(parsed.data, dict):
        kind = "a list" if isinstance(parsed.data, list) else "a single value"
        raise UsageError(f"{file}:{parsed.lines[()]}: a {what} is a mapping of fields, not {kind}")
    return parsed


# ---- Overrides


class _Setting(NamedTuple):
    given: str
    field: tuple[str, ...]
    value: Any


def _settings(overrides: Sequence[str]) -> tuple[list[_Setting], list[str]]:
    """Every override that can be understood, and a message for each that cannot."""
    settings: list[_Setting] = []
    mistakes: list[str] = []
    for given in overrides:
        key, equals, text = given.partition("=")
        field = tuple(key.strip().split("."))
        problem = None if equals else "write key.path=value"
        problem = problem or _unknown(field)
        if any(other.field == field for other in settings):
            problem = "set twice; keep one"
        try:
            value = None if problem else parse(text, file=f"--set {printable(given)}").data
        except UsageError as error:
            mistakes.append(error.message)
            continue
        if problem:
            mistakes.append(f"--set {printable(given)}: {problem}")
        else:
            settings.append(_Setting(given, field, value))
    return settings, mistakes


def _unknown(field: tuple[str, ...]) -> str | None:
    """What is wrong with a dotted field name, or None."""
    current: Any = Workload
    for depth, part in enumerate(field):
        if get_origin(current) is dict:
            return None if part else "an empty name"
        if not _is_record(current):
            return f"{'.'.join(field[:depth])!r} has no fields of its own"
        if part not in current.model_fields:
            return f"no such field; {_nearest_field(field)}"
        current = current.model_fields[part].annotation
    return None


def _nearest_field(field: tuple[str, ...]) -> str:
    """Compares whole paths, then last parts, since people leave out the section (`dtype`)."""
    paths = list(_paths(Workload))
    close = difflib.get_close_matches(".".join(field), paths, n=1)
    last = {path.rpartition(".")[2]: path for path in paths}
    close = close or [last[name] for name in difflib.get_close_matches(field[-1], last, n=1)]
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(paths)}"


def _paths(model: type[BaseModel], prefix: str = "") -> Iterable[str]:
    for name, info in model.model_fields.items():
        yield prefix + name
        if _is_record(info.annotation):
            yield from _paths(info.annotation, f"{prefix}{name}.")


def _is_record(annotation: Any) -> TypeGuard[type[BaseModel]]:
    is_class = isinstance(annotation, type) and get_origin(annotation) is None
    return is_class and issubclass(annotation, BaseModel)


def _lay_over(parsed: Parsed, settings: Sequence[_Setting]) -> None:
    """Put the settings into freshly parsed data, on lines below zero: `-1` is the first setting."""
    for index, setting in enumerate(settings):
        target, line = parsed.data, -1 - index
        for depth, part in enumerate(setting.field[:-1]):
            if not isinstance(target.get(part), dict):
                # Also where the file has something else: the override says that this is a section.
                target[part] = {}
                parsed.lines[setting.field[: depth + 1]] = line
            target = target[part]
        target[setting.field[-1]] = setting.value
        _note_lines(parsed.lines, setting.field, setting.value, line)


def _note_lines(lines: dict[Location, int], path: Location, value: Any, line: int) -> None:
    lines[path] = line
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        _note_lines(lines, (*path, key), item, line)


# ---- Fields


def _validated(
    model: type[Model], parsed: Parsed, file: str, settings: Sequence[_Setting]
) -> tuple[Model | None, list[str]]:
    """The record, or one message per mistake.

    Validated as JSON in strict mode: a name is an enum's value, and `true` is no number and `"8"` neither.
    """
    text = json.dumps(parsed.data, ensure_ascii=False)
    try:
        return model.model_validate_json(text.encode(), strict=True), []
    except UnicodeEncodeError:
        return None, [f"{file}: half of a character pair (such as \\ud800) is not text"]
    except ValidationError as error:
        messages = explain(error, parsed.lines, file, model)
    return None, [_said_of_setting(message, file, settings) for message in messages]


def _said_of_setting(message: str, file: str, settings: Sequence[_Setting]) -> str:
    """The message, attributed to its override where its line is below zero."""
    for index, setting in enumerate(settings):
        line = f"{file}:{-1 - index}: "
        if message.startswith(line):
            is_list = "a valid array" in message and not isinstance(setting.value, dict | list)
            hint = f"; write {'.'.join(setting.field)}=[{printable(str(setting.value))}]" if is_list else ""
            return f"--set {printable(setting.given)}: {message.removeprefix(line)}{hint}"
    return message
