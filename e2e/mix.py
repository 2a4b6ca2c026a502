"""Cells of a sweep to what the kernel is worth on the workload's mix: each counts as often as it is run. Pure.

It explains and decides nothing: `sweep` does, from every cell by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from e2e import stats
from e2e.schema.policy import Policy
from e2e.schema.result import CellResult, Mix
from e2e.schema.verdict import Against


def mix_of(cells: Sequence[CellResult], policy: Policy) -> Mix | None:
    """None where the workload does not say how often it runs which cell, or there is only one."""
    weights = [cell.cell.weight for cell in cells]
    if len(cells) < 2 or any(weight is None for weight in weights):
        return None
    found = [_deciding(cell, policy) for cell in cells]
    counted = [(row, weight) for row, weight in zip(found, weights, strict=True) if weight]
    rows = [row for row, _ in counted if row is not None]
    missing = [cell.cell.title for cell, row in zip(cells, found, strict=True) if row is None and cell.cell.weight]
    total = sum(weight for _, weight in counted)
    if missing or not total:
        return Mix(missing=missing)
    shares = [weight / total for _, weight in counted]
    baseline_s = sum(share * row.arm_step_s for share, row in zip(shares, rows, strict=True))
    speedup = stats.mixture(
        [row.speedup for row in rows],
        [share * row.arm_step_s / baseline_s for share, row in zip(shares, rows, strict=True)],
    )
    return Mix(
        speedup=speedup,
        baseline_step_s=baseline_s,
        candidate_step_s=baseline_s / speedup.point_estimate,
        missing=[],
    )


def _deciding(cell: CellResult, policy: Policy) -> Against | None:
    rows = cell.verdict.latency.against
    return next((row for row in rows if row.opponent == policy.decides), None)
