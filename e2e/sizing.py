"""How many workers would decide what a run left open, and how long they take. Pure."""

from __future__ import annotations

import math

from e2e import stats
from e2e.schema.evidence import Evidence
from e2e.schema.policy import FEWEST_WORKERS, Policy
from e2e.schema.verdict import Against
from e2e.schema.words import Outcome, Stage
from e2e.units import Seconds

OVERHEAD = 4.0
"""Wall time of a worker over its counted segments, for runs that did not end their last stage. Measured: 2.0 to 3.8
on an H200 under `examples/short_policy.yaml`, 7.2 on two CPU cores under `demo`, whose segments are shortest."""
OVERALL = 0.95
"""Two-sided confidence of a whole run. Source: METHOD.md B5.11."""


def workers_to_decide(row: Against | None, policy: Policy) -> int | None:
    """Workers whose interval would no longer hold what is open, if the point estimate stays; None if too many."""
    if row is None or (row.speedup.look or 0) < 2:
        return None
    speedup = row.speedup
    half = math.log(speedup.upper_bound / speedup.lower_bound) / 2
    # Where a gain is refuted, what a sweep still asks of the cell is whether it loses.
    bound = -policy.margin if row.outcome is Outcome.REFUTED else policy.margin
    distance = abs(math.log(speedup.point_estimate) - math.log1p(bound))
    level = speedup.confidence_level
    needed = stats.workers_for(distance, half_width=half, workers=speedup.look or 0, level=level)
    return None if needed is None else max(needed, FEWEST_WORKERS)


def worker_seconds(evidence: Evidence) -> Seconds | None:
    """Wall time of one more worker, from the stage in which the others ran."""
    ends = {end.stage: end.seconds for end in evidence.stage_ends}
    if Stage.VERDICT in ends and Stage.SCREEN in ends and evidence.workers_finished:
        return (ends[Stage.VERDICT] - ends[Stage.SCREEN]) / evidence.workers_finished
    timed = [segment for segment in evidence.segments if segment.phase == "verdict"]
    workers = {segment.worker for segment in timed}
    return OVERHEAD * math.fsum(s.seconds for s in timed) / len(workers) if workers else None


def repeat_seconds(evidence: Evidence, policy: Policy, *, workers: int) -> Seconds:
    """Budget of a repeat, in whole minutes: what this run was allowed, and the workers beyond those that it ran."""
    done = evidence.workers_finished
    each = worker_seconds(evidence) or policy.budgets.cell_s / FEWEST_WORKERS
    return 60.0 * math.ceil((policy.budgets.cell_s + max(0, workers - done) * each) / 60)


def presized(policy: Policy, *, workers: int, budget_s: Seconds) -> Policy:
    """The same policy with one look, at a number of workers fixed beforehand.

    A single planned look needs no correction for looking more than once, so it is as wide as the run's overall
    level: 95 %, which three looks at Pocock's 97.79 % give together. A stricter policy keeps its strictness, by
    Bonferroni's bound.
    """
    level = max(OVERALL, 1 - len(policy.looks) * (1 - policy.level))
    budgets = policy.budgets.model_copy(update={"cell_s": budget_s})
    return policy.model_copy(update={"looks": [workers], "level": level, "budgets": budgets})
