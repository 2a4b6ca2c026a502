"""What `e2e list` prints: names and first words of files, read without importing or running any of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from e2e import outside, registry
from e2e.schema.words import ReasonCode, kind_of, sentence_of
from e2e.signatures import signature_of

KINDS = ("ops", "workloads", "kernels", "formats", "reasons")
_KERNEL_SUFFIXES = (".cu", ".cpp", ".py")
_HEAD_BYTES = 8192
"""A file's first words are at its start."""
_OP = re.compile(r"^(?://|#)\s*op:\s*(\S+)", re.MULTILINE)
_BLOCK = re.compile(r"^(?://|#) /// e2e$.*?^(?://|#) ///$", re.MULTILINE | re.DOTALL)


class Row(NamedTuple):
    """One thing that exists."""

    name: str
    detail: str


def rows(kind: str) -> list[Row]:
    """Everything of one kind, sorted by name; reasons in order of precedence."""
    if kind == "reasons":
        return [Row(code, f"{kind_of(code)}: {sentence_of(code)}") for code in ReasonCode]
    if kind == "kernels":
        return [Row(str(path), _kernel(path)) for path in _files(Path("kernels"), _KERNEL_SUFFIXES)]
    if kind == "workloads":
        return [Row(path.stem, _workload(path)) for path in _files(Path("workloads"), (".yaml", ".yml"))]
    if kind == "ops":
        return [Row(name, _op(name, registry.summary(kind, name))) for name in registry.names(kind)]
    return [Row(name, registry.summary(kind, name)) for name in registry.names(kind)]


def op_row(op: str) -> Row:
    """One op, also one from outside the package, `path/to/file.py:Op`.

    Raises:
        UsageError: there is no such op, or its file cannot be read.
    """
    place = outside.place_of(op)
    if place is not None:
        outside.sha256_of(place)
        return Row(op, _op(op, ""))
    return Row(op, _op(op, registry.summary("ops", op.partition(":")[0])))


def _op(name: str, summary: str) -> str:
    """Its first words, its signature, and the PyTorch paths that compute it, a line each."""
    signature = signature_of(name)
    if signature is None:
        return summary or "its file states no signature that can be read without running it"
    paths = ", ".join(signature.alternatives)
    lines = [summary, signature.schema, f"PyTorch alternatives: {paths}" if paths else ""]
    return "\n".join(line for line in lines if line)


def aligned(found: Iterable[Row]) -> str:
    """Two columns; further lines of a detail stand under its first."""
    rows = list(found)
    width = max((len(row.name) for row in rows), default=0)
    lines = [
        (row.name if number == 0 else "", line) for row in rows for number, line in enumerate(row.detail.split("\n"))
    ]
    return "".join(f"{name:<{width}}  {line}".rstrip() + "\n" for name, line in lines)


def _files(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.suffix in suffixes and path.name[0] not in "._")


def _head(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return stream.read(_HEAD_BYTES).decode("utf-8", "replace")
    except OSError as error:
        return f"# cannot be read: {error.strerror}"


def _workload(path: Path) -> str:
    """The first comment, else the description."""
    for line in _head(path).splitlines():
        if line.startswith("#"):
            return line.lstrip("# ")
        if line.startswith("description:"):
            return line.partition(":")[2].strip(" \"'")
    return ""


def _kernel(path: Path) -> str:
    """`rms_norm: RMSNorm on the CPU`: the block's op, and the first comment outside the block."""
    head = _head(path)
    block = _BLOCK.search(head)
    op = _OP.search(block.group()) if block else None
    rest = _BLOCK.sub("", head, count=1)
    comment = re.search(r"^(?://|#|\"\"\")\s*(\w.*)", rest, re.MULTILINE)
    words = comment.group(1).removesuffix('"""') if comment else ""
    return ": ".join(part for part in (op.group(1) if op else "no block", words) if part)
