"""`attempts.jsonl` in the results folder: one line per finished run asked for a verdict, to tell luck from merit.

A ledger beside the runs and not the runs themselves: reading 200 results takes seconds, 200 lines a millisecond,
and who deletes the losers' folders has still tried them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from e2e.schema.result import Attempts, PreviousAttempt, Result
from e2e.schema.words import Outcome, Stage
from e2e.units import Ratio

LEDGER = "attempts.jsonl"


def enter(result: Result, folder: Path) -> Attempts | None:
    """Append a run to the folder's ledger, and say which attempt it is; None when that cannot be known.

    Only what could have ended CONFIRMED is an attempt: not a run up to an earlier stage, and not one that ended by
    codes 2, 6, 70 or 130.
    """
    if result.error is not None or result.workload is None or not result.kernels:
        return None
    if any(cell.evidence.stage_asked is not Stage.VERDICT for cell in result.cells):
        return None
    entry = {
        "run": result.run_id,
        "workload": result.workload.name,
        "op": ops_of(result),
        "outcome": result.outcome,
        "ratio": _ratio(result),
    }
    try:
        with (folder / LEDGER).open("a+", encoding="utf-8", errors="replace") as ledger:
            ledger.seek(0)
            text = ledger.read()
            torn = "\n" if text and not text.endswith("\n") else ""  # a run was killed while it wrote
            ledger.write(f"{torn}{json.dumps(entry)}\n")
    except OSError:
        return None  # a full or forbidden folder is said by what writes the result itself
    same = [line for line in _entries(text) if all(line.get(key) == entry[key] for key in ("workload", "op"))]
    confirmed = [line for line in [*same, entry] if line.get("outcome") == Outcome.CONFIRMED]
    return Attempts(number=len(same) + 1, confirmed=len(confirmed), previous=_previous(same[-1]) if same else None)


def _ratio(result: Result) -> Ratio | None:
    """Against the opponent that decides."""
    rows = result.latency.against if result.latency is not None else []
    decides = result.policy.decides if result.policy is not None else None
    return next((row.speedup.point_estimate for row in rows if row.opponent == decides), None)


def _previous(entry: dict[str, Any]) -> PreviousAttempt | None:
    """None where its line is not what this version writes."""
    try:
        return PreviousAttempt.model_validate({name: entry.get(name) for name in PreviousAttempt.model_fields})
    except ValidationError:
        return None


def ops_of(result: Result) -> str:
    """What was replaced: one op's name, or several in one order whatever the command line's."""
    return " + ".join(sorted(kernel.manifest.op for kernel in result.kernels))


def _entries(text: str) -> Iterator[dict[str, Any]]:
    """Every line that is one; damaged ones are skipped."""
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict):
            yield entry
