"""What the op alone promises the step, and what of it the step shows: microseconds, line by line. Pure.

Only where both arms run the op's own code alike: a compiler fuses the op into its neighbours, and another mode saves
time of its own, so that nothing measured alone says what the op costs there.
"""

from __future__ import annotations

from e2e.arm_names import ArmName, alternative_for
from e2e.schema.evidence import Evidence, Isolated
from e2e.schema.result import AttributionLine
from e2e.schema.verdict import Against
from e2e.schema.words import Mode
from e2e.units import Seconds

UNEXPLAINED = "unexplained"
_MICRO = 1e6


def attribution(evidence: Evidence, row: Against | None) -> list[AttributionLine]:
    """Lines whose sum is the change of the step against that opponent; none where the op's cost there is not known.

    Source:
        METHOD.md B4.
    """
    name = evidence.candidate
    if evidence.isolated is None or row is None or name is None:
        return []
    arm, mine = ArmName.parse(row.arm), ArmName.parse(name)
    is_on_host = evidence.device is not None and evidence.device.kind == "cpu"  # a busy device hides the host's work
    found = []
    for alone in (evidence.isolated, *evidence.isolated_others):
        theirs = _op_seconds(alone, arm)
        if theirs is None or arm.mode is not mine.mode or mine.mode.is_compiled:
            return []
        calls, whose = alone.calls_per_step, f" ({alone.kernel})" if alone.kernel is not None else ""
        found.append((f"the op, alone and warm, {calls} times{whose}", calls * (alone.candidate_s - theirs)))
        if is_on_host and arm.alternative is None and mine.mode is Mode.EAGER and alone.plumbing_s is not None:
            found.append((f"e2e's own work around each call{whose}", calls * max(0.0, alone.plumbing_s)))
    observed = row.candidate_step_s - row.arm_step_s
    found.append((UNEXPLAINED, observed - sum(seconds for _, seconds in found)))
    return [AttributionLine(what=what, microseconds_per_step=_MICRO * seconds) for what, seconds in found]


def _op_seconds(alone: Isolated, arm: ArmName) -> Seconds | None:
    """One call of what that arm has in the op's place; of several ops an alternative may be another one's."""
    if arm.alternative is None or (alone.kernel is not None and alone.alternative is None):
        return alone.eager_s
    offered = [] if alone.alternative is None else [alone.alternative]
    return alone.alternative_s if alternative_for(offered, arm.alternative) is not None else None
