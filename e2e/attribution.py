"""Why the step changed by what it did: microseconds per step, line by line, with what is left unexplained. Pure.

First what the op alone promises, where both arms run the op's own code alike: a compiler fuses the op into its
neighbours, and another mode saves time of its own. Then what the two traces show, cause by cause.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from e2e import wording
from e2e.arm_names import ArmName, alternative_for
from e2e.schema.evidence import Cause, Evidence, Isolated, Segment, TraceDifference
from e2e.schema.result import AttributedTo, AttributionLine
from e2e.schema.verdict import Against
from e2e.schema.words import Mode
from e2e.units import Ratio, Seconds

_MICRO = 1e6
_SMALLEST_S = 5e-8
"""A line of less is not worth reading; it is part of what is unexplained."""
_IDLE = 0.2
"""A device that rests for more of the step in both arms waits for the host: saving device time saves little. Chosen,
not measured."""
_CLOCK = 0.002
"""Mean clocks of two arms that differ by less are alike. Chosen, not measured."""
_WHAT: dict[Cause, str] = {
    "op": "the op in the step",
    "neighbours": "the same work beside the op takes longer or shorter",
    "calls": "the same work beside the op happens more or less often",
    "copies": "copies and casts",
    "fusion": "code that a compiler makes otherwise",
    "algorithm": "other kernels elsewhere",
    "overlap": "what runs at the same time on the device",
    "syncs": "the device rests until the host has waited for it",
    "allocator": "the device rests while the driver allocates",
    "host_per_call": "the device rests while the host calls the op",
    "idle": "the device rests while the host is elsewhere",
    "host": "the host outside all operators",
}


@dataclass(frozen=True)
class _Part:
    what: str
    seconds: Seconds
    cause: AttributedTo
    note: str = ""


def attribution(evidence: Evidence, row: Against | None) -> list[AttributionLine]:
    """Lines whose sum is the change of the step against that opponent; none where nothing explains any of it.

    Source:
        METHOD.md B4.
    """
    if evidence.candidate is None or row is None:
        return []
    promised = _promised(evidence, row)
    seen = next((item for item in evidence.trace_differences if item.arm == row.arm), None)
    parts = [*promised, *(_shown(seen, promised, evidence) if seen else ()), *_clocks(evidence, row)]
    if not parts:
        return []
    parts = [part for part in parts if abs(part.seconds) >= _SMALLEST_S or part.cause == "promised"]
    observed = row.candidate_step_s - row.arm_step_s
    left = observed - math.fsum(part.seconds for part in parts)
    parts.append(_Part("unexplained", left, "unexplained"))
    return [
        AttributionLine(what=part.what, microseconds_per_step=_MICRO * part.seconds, cause=part.cause, note=part.note)
        for part in parts
    ]


# ---- What the op alone promises


def _promised(evidence: Evidence, row: Against) -> list[_Part]:
    name = evidence.candidate
    assert name is not None
    arm, mine = ArmName.parse(row.arm), ArmName.parse(name)
    if evidence.isolated is None or arm.mode is not mine.mode or mine.mode.is_compiled:
        return []
    is_on_host = evidence.device is not None and evidence.device.kind == "cpu"  # a busy device hides the host's work
    found: list[_Part] = []
    for alone in (evidence.isolated, *evidence.isolated_others):
        theirs = _op_seconds(alone, arm)
        if theirs is None:
            return []
        found += _of_kernel(evidence, alone, alone.candidate_s - theirs)
        if is_on_host and arm.alternative is None and mine.mode is Mode.EAGER and alone.plumbing_s is not None:
            what = f"e2e's own work around each call{_whose(alone)}"
            found.append(_Part(what, alone.calls_per_step * max(0.0, alone.plumbing_s), "plumbing"))
    return found


def _of_kernel(evidence: Evidence, alone: Isolated, saved_s: Seconds) -> Iterator[_Part]:
    """At every site; then, where there are some, less at those that the kernel does not stand at."""
    sites = [site for site in evidence.engagement.sites if site.kernel == alone.kernel] if evidence.engagement else []
    called = sum(site.calls > 0 for site in sites)
    calls = alone.calls_per_step
    everywhere = round(calls * len(sites) / called) if called else calls
    yield _Part(f"the op, alone and warm, {everywhere} times{_whose(alone)}", everywhere * saved_s, "promised")
    if everywhere > calls:
        what = f"the kernel is not at {wording.count(len(sites) - called, 'site')} of {len(sites)}{_whose(alone)}"
        yield _Part(what, (calls - everywhere) * saved_s, "unplaced")


def _whose(alone: Isolated) -> str:
    return f" ({alone.kernel})" if alone.kernel is not None else ""


def _op_seconds(alone: Isolated, arm: ArmName) -> Seconds | None:
    """One call of what that arm has in the op's place; of several ops an alternative may be another one's."""
    if arm.alternative is None or (alone.kernel is not None and alone.alternative is None):
        return alone.eager_s
    offered = [] if alone.alternative is None else [alone.alternative]
    return alone.alternative_s if alternative_for(offered, arm.alternative) is not None else None


# ---- What the traces show


def _shown(seen: TraceDifference, promised: list[_Part], evidence: Evidence) -> Iterator[_Part]:
    """Every change of the traces once; of the op's what goes beyond the promise, and of the host's beyond e2e's own."""
    known = {
        "op": math.fsum(part.seconds for part in promised if part.cause in ("promised", "unplaced")),
        "host": math.fsum(part.seconds for part in promised if part.cause == "plumbing"),
    }
    for change in seen.changes:
        what, notes = _WHAT[change.cause], [change.note]
        if change.cause == "op" and promised:
            what, notes = "the op in the step beside the op alone (caches, launches)", [_cold(evidence)]
        if change.cause == "idle" and (shares := _launch_bound(seen)):
            what, notes = f"launch-bound: {what}", [shares, *notes]
        if change.cause == "fusion":
            notes = [_regions(evidence, seen.arm), *notes]
        note = "; ".join(filter(None, notes))
        yield _Part(what, change.seconds - known.get(change.cause, 0.0), change.cause, note)


def _cold(evidence: Evidence) -> str:
    """What a cold cache makes of one call, where there is one kernel."""
    alone = evidence.isolated
    if alone is None or alone.candidate_cold_s is None or evidence.isolated_others:
        return ""
    warm, cold = (wording.duration(seconds, digits=3) for seconds in (alone.candidate_s, alone.candidate_cold_s))
    return f"a call of the kernel takes {warm} warm, {cold} cold"


def _launch_bound(seen: TraceDifference) -> str:
    theirs, mine = seen.idle_ratio, seen.candidate_idle_ratio
    if theirs is None or mine is None or min(theirs, mine) < _IDLE:
        return ""
    return f"idle {wording.percent(mine, digits=2)} of the step, {wording.percent(theirs, digits=2)} without the kernel"


def _regions(evidence: Evidence, name: str) -> str:
    """Compiled regions, where the two arms have another number of them: each end of one is a graph break."""
    counts = {arm.name: arm.compiled_regions for arm in evidence.arms}
    theirs, mine = counts.get(name), counts.get(str(evidence.candidate))
    if theirs is None or mine is None or theirs == mine:
        return ""
    return f"{wording.count(mine, 'region')}, {theirs} without the kernel"


def _clocks(evidence: Evidence, row: Against) -> Iterator[_Part]:
    """What the device's own clock makes of the candidate's step: at the other arm's it had taken less, or more."""
    theirs, mine = (_mean_clock(evidence.segments, arm) for arm in (row.arm, str(evidence.candidate)))
    if theirs is None or mine is None or evidence.device is None or evidence.device.kind == "cpu":
        return
    change = mine / theirs - 1
    if abs(change) >= _CLOCK:
        busy: Ratio = 1.0 if evidence.device.busy_ratio is None else evidence.device.busy_ratio
        seconds = -change * busy * row.candidate_step_s
        yield _Part("the device's clock", seconds, "clocks", f"{100 * change:+.2f} %")


def _mean_clock(segments: list[Segment], arm: str) -> float | None:
    """In hertz, over the segments that a verdict rests on."""
    clocks = [s.clock_hz for s in segments if s.phase == "verdict" and s.arm == arm and s.clock_hz is not None]
    return math.fsum(clocks) / len(clocks) if clocks else None
