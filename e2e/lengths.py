"""Cells from what was really asked: a table of prompt and output lengths, as a server logs them."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median_high

from e2e.errors import UsageError
from e2e.schema.workload import Cell, Workload, cells_of
from e2e.yaml_lines import printable

PROMPT, OUTPUT = "prompt_tokens", "output_tokens"
_DIGITS = 12
"""No text is that long."""


def with_lengths(workload: Workload, root: Path) -> Workload:
    """The workload with `cells.lengths` turned into lengths of cells; as it is where it has none.

    Requests are ordered by their prompts and cut into groups of one size, each of which becomes a cell of its median
    length: so that every cell stands for as many requests, but where two groups have one length. How many steps of each
    cell serve them becomes its weight, and `new_tokens` the median output, where there is one.

    Raises:
        UsageError: no such file, or it holds no lengths.
    """
    cells = workload.cells
    if cells.lengths is None:
        return workload
    if "sequence" in cells.model_fields_set:
        raise UsageError("cells: give `sequence` or `lengths`, not both")
    if cells.weights:
        raise UsageError("cells: `lengths` has its own weights: leave `weights` out")
    prompts, outputs = _read(root / cells.lengths)
    groups = min(cells.groups, len(prompts))
    bounds = [place * len(prompts) // groups for place in range(groups + 1)]
    written: Sequence[int | None] = outputs or [None] * len(prompts)
    ordered = sorted(zip(prompts, written, strict=True), key=lambda request: request[0])
    served: dict[int, list[int | None]] = {}
    for low, high in pairwise(bounds):
        length = median_high(prompt for prompt, _ in ordered[low:high])
        served.setdefault(length, []).extend(output for _, output in ordered[low:high])
    changed: dict[str, object] = {"cells": cells.model_copy(update={"sequence": list(served)})}
    if outputs:
        changed["new_tokens"] = median_high(sorted(outputs))
    found = workload.model_copy(update=changed)
    weights = [_steps(cell, served[cell.sequence]) for cell in cells_of(found)]
    return found.model_copy(update={"cells": found.cells.model_copy(update={"weights": weights})})


def _steps(cell: Cell, outputs: Sequence[int | None]) -> float:
    """How many steps of that kind serve these requests: one each; but of a decode one for every token after the first.

    `outputs`: tokens written for each of them, None where that is not known.
    """
    decoded = [output - 1 for output in outputs if output is not None] if cell.step == "decode" else []
    return (sum(decoded) if decoded else len(outputs)) / cell.batch


def _read(path: Path) -> tuple[list[int], list[int]]:
    shown = printable(str(path), 500)
    try:
        if path.exists() and not path.is_file():  # a pipe could block for ever
            raise UsageError(f"cells.lengths: {shown} is not a regular file")
        table = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
        named, rows = table.fieldnames or [], list(table)
    except (OSError, ValueError, csv.Error) as error:
        raise UsageError(f"cells.lengths: {shown} cannot be read: {printable(str(error), 200)}") from error
    if PROMPT not in named:
        there = printable(", ".join(named), 200) or "none"
        raise UsageError(f"cells.lengths: {shown} has no column {PROMPT!r}; it has: {there}")
    prompts = [_length(row, PROMPT, f"{shown}:{number}") for number, row in enumerate(rows, 2)]
    outputs = [_length(row, OUTPUT, f"{shown}:{number}") for number, row in enumerate(rows, 2) if OUTPUT in named]
    if not prompts:
        raise UsageError(f"cells.lengths: {shown} holds no lengths")
    return prompts, outputs


def _length(row: dict[str, str], column: str, where: str) -> int:
    text = row[column] or ""
    if not text.strip().isdecimal() or len(text) > _DIGITS or int(text) < 1:
        raise UsageError(f"cells.lengths: {where}: {column} is {printable(text)!r}, and not a number of tokens")
    return int(text)
