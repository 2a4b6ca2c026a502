"""What an op costs the step, and the most that a kernel for it could win: from timed segments of one process. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import chain
from statistics import median

from e2e import stats
from e2e.arm_names import AS_SHIPPED, ArmName
from e2e.measure.schedule import pick_strongest
from e2e.schema.evidence import Evidence
from e2e.schema.policy import Policy
from e2e.schema.profile import Alternative, Worth
from e2e.schema.verdict import Estimate
from e2e.schema.words import Mode, Role
from e2e.units import Ratio, Seconds
from e2e.weighing import ceiling_of

TIE_OF_MARGIN = 0.2
"""Arms this share of the margin apart are a tie, and the simpler one is called the strongest."""


@dataclass(frozen=True)
class Winnings:
    """Intervals are of this process alone; another one may differ by as much as processes do here."""

    share: Estimate | None
    """Of the eager step."""
    strongest: str | None
    strongest_s: Seconds | None
    ceiling: Estimate | None
    ceiling_reason: str | None
    twice_as_fast: Ratio | None
    worth: Worth | None
    alternatives: list[Alternative]


def relative_times(evidence: Evidence) -> dict[str, Ratio]:
    """Every timed arm's step over that of the model as shipped: the median over mirrored blocks.

    Not a quotient of medians over segments: what else runs on the machine hits all arms of a block alike, and comes
    and goes between blocks.
    """
    found = {}
    for arm in evidence.arms:
        contrasts = stats.block_contrasts(evidence.segments, arm=arm.name, other=AS_SHIPPED)
        if contrasts:
            found[arm.name] = math.exp(-median(chain.from_iterable(contrasts.values())))
    return {**found, AS_SHIPPED: 1.0} if evidence.segments else {}


def strongest_of(evidence: Evidence, policy: Policy) -> str | None:
    """The fastest of PyTorch's own arms; a tie goes to the simpler mode without an alternative.

    All blocks choose it, also those that its ceiling comes from: that makes it look faster than it is, if anything,
    and the ceiling lower.
    """
    times = relative_times(evidence)
    own = [arm for arm in evidence.arms if arm.role is Role.BASELINE and arm.name in times]
    own.sort(key=lambda arm: (arm.mode.rank, arm.alternative is not None))
    names = [arm.name for arm in own]
    chosen = {name: times[name] for name in names}
    return pick_strongest(chosen, names, tie=TIE_OF_MARGIN * policy.margin) if chosen else None


def winnings_of(evidence: Evidence, policy: Policy) -> Winnings:
    """From one op's arms and segments."""
    level, strongest = policy.ceiling_level, strongest_of(evidence, policy)
    ceiling = ceiling_of(evidence, strongest, level=level)
    saved = _faster(evidence, str(ArmName(Role.HEADROOM, Mode.EAGER)), AS_SHIPPED, level=level)
    return Winnings(
        share=_share(saved) if saved else None,
        strongest=strongest,
        strongest_s=stats.step_seconds(evidence.segments, strongest) if strongest else None,
        ceiling=ceiling,
        ceiling_reason=None if ceiling else _why_not(evidence, strongest),
        twice_as_fast=_twice_as_fast(ceiling) if ceiling else None,
        worth=_worth(ceiling, 1 + policy.margin) if ceiling else None,
        alternatives=[
            Alternative(
                name=arm.alternative,
                arm=arm.name,
                speedup=_faster(evidence, arm.name, str(ArmName(Role.BASELINE, arm.mode)), level=level),
                reason=arm.reason if arm.status != "ok" else None,
            )
            for arm in evidence.arms
            if arm.alternative is not None
        ],
    )


def _faster(evidence: Evidence, arm: str, other: str, *, level: float) -> Estimate | None:
    """Time of the other over that of the arm."""
    if {arm, other} & set(evidence.recompiles):
        return None
    return stats.ceiling_estimate(stats.block_contrasts(evidence.segments, arm=arm, other=other), level=level)


def _share(saved: Estimate) -> Estimate:
    """What is saved of the step, from how many times as fast it is without the op."""
    return saved.model_copy(
        update={name: 1 - 1 / getattr(saved, name) for name in ("point_estimate", "lower_bound", "upper_bound")}
    )


def _twice_as_fast(ceiling: Estimate) -> Ratio:
    """Source: METHOD.md B4: predicted step gain f x (1 - 1/s), with f from the op replaced by nothing."""
    share = 1 - 1 / max(1.0, ceiling.point_estimate)
    return 1 / (1 - share / 2)


def _worth(ceiling: Estimate, bar: Ratio) -> Worth:
    if ceiling.lower_bound > bar:
        return "yes"
    return "maybe" if ceiling.upper_bound > bar else "no"


def _why_not(evidence: Evidence, strongest: str | None) -> str:
    """The first thing that stands in the way of a ceiling."""
    if strongest is None:
        return "no arm was timed"
    mode = ArmName.parse(strongest).mode
    headroom = next((arm for arm in evidence.arms if arm.role is Role.HEADROOM and arm.mode is mode), None)
    if headroom is not None and headroom.reason:
        return f"the op replaced by nothing, in mode {mode}: {headroom.reason}"
    again = [arm for arm in evidence.recompiles if arm in (strongest, getattr(headroom, "name", None))]
    return f"{again[0]} compiled while it was timed" if again else "there was no time for enough blocks"
