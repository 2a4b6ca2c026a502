"""Whether machine and arms were in the state that a measurement takes for granted.

Only two of these flags bar a verdict: memory that does not hold the cell, and a device that slowed down under one arm.
The others are advice, until `e2e selftest` shows on real machines that they seldom cry wolf.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from e2e import stats, wording
from e2e.rules._words import some
from e2e.schema.evidence import Segment
from e2e.schema.verdict import Reason
from e2e.schema.words import Outcome, ReasonCode
from e2e.weighing import Case, interval_rule

THROTTLED = 0.10
"""Difference between two arms' shares of slowed segments. Source: METHOD.md B7."""
DRIFTS = 0.02
"""Relative change of an arm's step through a worker's blocks that is worth a word."""
DISAGREES = 0.02
"""Relative difference of two clocks' ratio between arms. Source: METHOD.md B7."""
CPU_PRESSURE, STEAL = 0.10, 0.02
"""Shares of time above which others used the machine. Source: METHOD.md B5.3."""


def has_no_room(case: Case) -> Iterator[Reason]:
    """The cell cannot be run here by anybody, so that it says nothing of the kernel."""
    if case.evidence.no_room is not None:
        yield Reason(code=ReasonCode.NO_ROOM, message=case.evidence.no_room)


def throttled(case: Case) -> Iterator[Reason]:
    """The device slowed itself down in one arm more than in its opponent: the two met different hardware."""
    shares = {arm: _share_slowed(segments) for arm, segments in _deciding_segments(case).items()}
    seen = {arm: share for arm, share in shares.items() if share is not None}
    if len(seen) == 2 and max(seen.values()) - min(seen.values()) > THROTTLED:
        parts = [f"{wording.percent(share)} of the segments of {wording.arm(arm)}" for arm, share in seen.items()]
        yield Reason(code=ReasonCode.THROTTLED, message=f"the device slowed itself down in {' and '.join(parts)}")


def _share_slowed(segments: Sequence[Segment]) -> float | None:
    known = [segment.throttled for segment in segments if segment.throttled is not None]
    return sum(known) / len(known) if known else None


def not_steady(case: Case) -> Iterator[Reason]:
    """An arm of the verdict was still changing when its warm-up was given up."""
    arms = _deciding_segments(case)
    moving = [item for item in case.evidence.steadiness if not item.is_steady and item.arm in arms]
    if moving:
        what = some([f"{wording.arm(item.arm)} in worker {item.worker}" for item in moving])
        yield Reason(code=ReasonCode.NOT_STEADY, message=f"warm-up ended before step times had settled: {what}")


def drifts(case: Case) -> Iterator[Reason]:
    """Steps that climb or fall through every worker's blocks had not settled, whatever the warm-up saw.

    Mirrored blocks cancel a drift from the contrasts, so it is advice: the times by themselves are what it spoils.
    """
    for arm, segments in _deciding_segments(case).items():
        changes = [stats.drift(own) for own in _by_worker(segments)]
        is_one_way = len(changes) >= case.policy.looks[0] and (min(changes) > 0 or max(changes) < 0)
        typical = median(changes) if changes else 0.0
        if is_one_way and abs(typical) > DRIFTS:
            which = f"{wording.arm(arm)} {'slower' if typical > 0 else 'faster'} by {wording.percent(abs(typical))}"
            message = f"from the first half of its blocks to the second, every worker found {which}"
            yield Reason(code=ReasonCode.NOT_STEADY, message=message)


def _by_worker(segments: Sequence[Segment]) -> list[list[Segment]]:
    workers: dict[int, list[Segment]] = {}
    for segment in segments:
        workers.setdefault(segment.worker, []).append(segment)
    return [own for own in workers.values() if len({segment.block for segment in own}) > 1]


def clock_confound(case: Case) -> Iterator[Reason]:
    """Seconds and clock cycles give different answers: the arms met different clocks."""
    row, cycles = case.deciding, case.cycles
    if row is None or cycles is None or row.outcome is Outcome.INCONCLUSIVE:
        return
    if interval_rule(cycles, case.sham, case.policy, bar=case.bar) is not row.outcome:
        message = (
            f"in clock cycles the reading is {wording.estimate(cycles)}, in seconds {wording.estimate(row.speedup)}"
        )
        yield Reason(code=ReasonCode.CLOCK_CONFOUND, message=message)


def carries_over(case: Case) -> Iterator[Reason]:
    """An arm's time depends on its predecessor by more than half the margin."""
    seen = case.carry_over
    if seen is None:
        return
    excludes_one = seen.lower_bound > 1 or seen.upper_bound < 1
    if excludes_one and abs(seen.point_estimate - 1) > case.policy.margin / 2:
        message = f"from a block's first half to its second the candidate changes by {wording.estimate(seen)} more"
        yield Reason(code=ReasonCode.CARRY_OVER, message=message)


def timers_disagree(case: Case) -> Iterator[Reason]:
    """Host time that the device does not see, in one arm more than in the other."""
    ratios = {}
    for arm, segments in _deciding_segments(case).items():
        known = [segment.seconds / segment.device_s for segment in segments if segment.device_s]
        if known:
            ratios[arm] = median(known)
    if len(ratios) == 2 and max(ratios.values()) > (1 + DISAGREES) * min(ratios.values()):
        parts = [f"{wording.arm(arm)} {ratio:.3f}" for arm, ratio in ratios.items()]
        yield Reason(code=ReasonCode.TIMER_DISAGREES, message=f"parent's seconds over device's: {', '.join(parts)}")


def allocator_churns(case: Case) -> Iterator[Reason]:
    """Device memory came from the driver while a clock ran, in one arm only."""
    arms = _deciding_segments(case)
    counts = {item.arm: item.count for item in case.evidence.allocations if item.arm in arms}
    if len(counts) == 1:
        ((arm, number),) = counts.items()
        message = (
            f"{wording.count(number, 'call')} of the driver's allocator in timed segments of {wording.arm(arm)} only"
        )
        yield Reason(code=ReasonCode.ALLOCATOR_CHURN, message=message)


def environment_changed(case: Case) -> Iterator[Reason]:
    """Power limit, clocks, affinity or governor were not at the end what they were at the start."""
    if case.evidence.telemetry.changed:
        yield Reason(code=ReasonCode.ENVIRONMENT_CHANGED, message="; ".join(case.evidence.telemetry.changed))


def contention(case: Case) -> Iterator[Reason]:
    """Signs of others on the machine; what cannot be seen is no sign."""
    seen = case.evidence.telemetry
    found = []
    if seen.cpu_pressure_ratio is not None and seen.cpu_pressure_ratio > CPU_PRESSURE:
        found.append(f"processes waited for a CPU {wording.percent(seen.cpu_pressure_ratio)} of the time")
    if seen.steal_ratio is not None and seen.steal_ratio > STEAL:
        found.append(f"the hypervisor took {wording.percent(seen.steal_ratio)} of CPU time")
    if seen.foreign_processes is not None and seen.foreign_processes > 0:
        found.append(f"{seen.foreign_processes} other processes on the device")
    if found:
        yield Reason(code=ReasonCode.CONTENTION, message="; ".join(found))


def _deciding_segments(case: Case) -> dict[str, list[Segment]]:
    """Verdict segments of the candidate and of the opponent that decides."""
    row = case.deciding
    if row is None or case.evidence.candidate is None:
        return {}
    found: dict[str, list[Segment]] = {row.arm: [], case.evidence.candidate: []}
    for segment in case.evidence.segments:
        if segment.phase == "verdict" and segment.arm in found:
            found[segment.arm].append(segment)
    return found
