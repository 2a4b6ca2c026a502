"""Cells from what was really asked: a table of prompt and output lengths, as a server logs them."""

from __future__ import annotations

import csv
from itertools import pairwise
from pathlib import Path
from statistics import median_high

from e2e.errors import UsageError
from e2e.schema.workload import Workload

PROMPT, OUTPUT = "prompt_tokens", "output_tokens"


def with_lengths(workload: Workload, root: Path) -> Workload:
    """The workload with `cells.lengths` turned into lengths of cells; as it is where it has none.

    Requests are ordered by their prompts and cut into groups of one size, each of which becomes a cell of its median
    length: so that every cell stands for as many requests. `new_tokens` becomes the median output, where there is one.

    Raises:
        UsageError: no such file, or it holds no lengths.
    """
    cells = workload.cells
    if cells.lengths is None:
        return workload
    if "sequence" in cells.model_fields_set:
        raise UsageError("cells: give `sequence` or `lengths`, not both")
    prompts, outputs = _read(root / cells.lengths)
    groups = min(cells.groups, len(prompts))
    bounds = [place * len(prompts) // groups for place in range(groups + 1)]
    ordered = sorted(prompts)
    found = [median_high(ordered[low:high]) for low, high in pairwise(bounds)]
    changed: dict[str, object] = {"cells": cells.model_copy(update={"sequence": list(dict.fromkeys(found))})}
    if outputs:
        changed["new_tokens"] = median_high(sorted(outputs))
    return workload.model_copy(update=changed)


def _read(path: Path) -> tuple[list[int], list[int]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cells.lengths: {path} cannot be read: {error}") from error
    table = csv.DictReader(text.splitlines())
    named = table.fieldnames or []
    if PROMPT not in named:
        raise UsageError(f"cells.lengths: {path} has no column {PROMPT!r}; it has: {', '.join(named) or 'none'}")
    rows = list(table)
    prompts = [_length(row, PROMPT, f"{path}:{number}") for number, row in enumerate(rows, 2)]
    outputs = [_length(row, OUTPUT, f"{path}:{number}") for number, row in enumerate(rows, 2) if OUTPUT in named]
    if not prompts:
        raise UsageError(f"cells.lengths: {path} holds no lengths")
    return prompts, outputs


def _length(row: dict[str, str], column: str, where: str) -> int:
    text = row[column] or ""
    if not text.strip().isdecimal() or int(text) < 1:
        raise UsageError(f"cells.lengths: {where}: {column} is {text!r}, and not a number of tokens")
    return int(text)
