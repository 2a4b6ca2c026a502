"""Texts: plain, JSON lines, Parquet, data sets of the hub."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

from e2e.errors import EnvironmentFault, UsageError
from e2e.schema.workload import HUB, DataSpec

TEXT_FIELD = "text"
MOST_RECORDS = 10_000
"""Of a data set on the hub that are read, in its own order."""


def read_text(data: DataSpec, root: Path) -> str:
    """Everything, in its order; samples of a structured file stand a blank line apart.

    Raises:
        UsageError: the file is missing, damaged or empty, or has no such field.
        EnvironmentFault: nothing here reads such a file.
    """
    path = root / data.path
    has_records = path.suffix in _STRUCTURED or data.path.startswith(HUB)
    return "\n\n".join(read_samples(data, root)) if has_records else _plain(path)


def read_samples(data: DataSpec, root: Path) -> list[str]:
    """One text per line, or per record of a structured file; empty ones are left out.

    Raises:
        UsageError, EnvironmentFault: see `read_text`.
    """
    path, field = root / data.path, data.field or TEXT_FIELD
    reader = _STRUCTURED.get(path.suffix)
    if data.path.startswith(HUB):
        texts = _from_hub(data, field)
    else:
        texts = reader(path, field) if reader else _plain(path).splitlines()
    if found := [text for text in texts if text.strip()]:
        return found
    raise UsageError(f"data.path: {data.path if data.path.startswith(HUB) else path} holds no text")


def _plain(path: Path) -> str:
    if not path.is_file():
        raise UsageError(f"data.path: no file {path}")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"data.path: {path} is not text in UTF-8 (byte {error.start})") from error


def _json_lines(path: Path, field: str) -> list[str]:
    texts = []
    for number, line in enumerate(_plain(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise UsageError(f"data.path: {path}:{number} is not JSON: {error}") from error
        texts.append(_text_in(record, field, f"{path}:{number}"))
    return texts


def _parquet(path: Path, field: str) -> list[str]:
    if not path.is_file():
        raise UsageError(f"data.path: no file {path}")
    if importlib.util.find_spec("pyarrow") is None:
        raise EnvironmentFault(f"reading {path.name} needs the package pyarrow: pip install pyarrow")
    import pandas

    try:
        column = pandas.read_parquet(path, columns=[field])[field]
    except (OSError, ValueError) as error:  # pyarrow's own errors are one of them
        raise UsageError(f"data.path: {path}: {error}") from error
    return [_text_in({field: text}, field, f"{path}, row {number}") for number, text in enumerate(column)]


def _from_hub(data: DataSpec, field: str) -> list[str]:
    """The first records of a split."""
    if importlib.util.find_spec("datasets") is None:
        raise EnvironmentFault(f"reading {data.path} needs the package datasets: pip install datasets")
    import datasets

    datasets.disable_progress_bars()  # a worker's output is quoted where it died
    name = data.path.removeprefix(HUB)
    try:
        records = datasets.load_dataset(name, split=data.split, revision=data.revision)
    except (FileNotFoundError, ValueError) as error:  # no such data set, split or revision
        raise UsageError(f"data.path: {data.path}: {str(error).strip()}") from error
    except OSError as error:
        raise EnvironmentFault(f"the data set {name} cannot be read: {str(error).strip()}") from error
    first = records.select(range(min(MOST_RECORDS, len(records))))
    return [_text_in(record, field, f"{data.path}, record {number}") for number, record in enumerate(first)]


def _text_in(record: Any, field: str, where: str) -> str:
    found = record.get(field) if isinstance(record, dict) else None
    if found is not None and not isinstance(found, str):
        raise UsageError(f"data.field: {where}: {field!r} is no text, but of the type {type(found).__name__}")
    if found is None:
        named = ", ".join(map(str, record)) if isinstance(record, dict) else type(record).__name__
        raise UsageError(f"data.field: {where} has no text {field!r}; it has: {named}")
    return found


_STRUCTURED = {".jsonl": _json_lines, ".parquet": _parquet}
