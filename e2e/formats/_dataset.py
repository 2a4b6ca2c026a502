"""Where the parts of a FlashInfer-Bench data set lie relative to a solution: its definition, its traces."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

from e2e.errors import UsageError
from e2e.formats._files import decode, read_bytes
from e2e.formats._solution import Definition, Solution, checked, parsed_json
from e2e.schema.kernel import Claim

_LEVELS = 6
"""How far above a solution the data set's root may be: solutions/AUTHOR/OP_TYPE/DEFINITION/NAME.json."""


def definition_of(solution: Solution, path: Path, shown: str) -> Definition:
    """The definition that a solution names.

    Raises:
        UsageError: it is nowhere, or damaged.
    """
    name = solution.definition
    for place in _places(name, path):
        if place.is_file():
            content = read_bytes(place, str(place)) or b""
            found = checked(Definition, parsed_json(decode(content, str(place)), str(place)), str(place))
            if found.name == name:
                return found
    raise UsageError(
        f"{shown}: definition: {name!r} is not beside it; put it there as definition.json or {name}.json, "
        f"or keep the data set's folders (definitions/OP_TYPE/{name}.json above)"
    )


def claim_of(solution: Solution, path: Path) -> Claim | None:
    """The geometric mean of the speed-ups that the data set's traces hold for a solution; None without traces."""
    ratios = []
    for root in _roots(path):
        for place in sorted((root / "traces").glob(f"**/{solution.definition}.jsonl")):
            ratios += list(_ratios(place, solution.name))
    if not ratios:
        return None
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    return Claim(speedup=mean, against="its definition's reference", shapes=f"{len(ratios)} traced workloads")


def _places(name: str, path: Path) -> Iterator[Path]:
    yield from (path.parent / "definition.json", path.parent / f"{name}.json")
    for root in _roots(path):
        yield from sorted((root / "definitions").glob(f"**/{name}.json"))


def _roots(path: Path) -> Iterator[Path]:
    yield from list(path.absolute().parents)[:_LEVELS]


def _ratios(place: Path, name: str) -> Iterator[float]:
    """Speed-ups of passed evaluations; a line that is something else says nothing."""
    for row in place.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            trace = json.loads(row)
            evaluation = trace["evaluation"]
            ratio = float(evaluation["performance"]["speedup_factor"])
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        if trace.get("solution") == name and evaluation.get("status") == "PASSED" and 0 < ratio < math.inf:
            yield ratio
