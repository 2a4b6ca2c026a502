"""Segments of one cell to the intervals that the rules read: speed-ups, identical code, ceiling. Pure.

What was not observed (None) counts neither against a kernel nor for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from statistics import median

from e2e import stats
from e2e.arm_names import AS_SHIPPED, ArmName, is_adopted, places_of
from e2e.schema.evidence import ArmRecord, Evidence, Segment
from e2e.schema.policy import Opponent, Policy
from e2e.schema.verdict import Against, Estimate
from e2e.schema.words import Outcome, Role, Stage
from e2e.units import Ratio, Seconds

_Workers = Mapping[int, Sequence[float]]
"""Block contrasts by worker."""


@dataclass(frozen=True)
class Case:
    """Evidence, policy, and the intervals between them."""

    evidence: Evidence
    policy: Policy
    against: list[Against]
    sham: Estimate | None
    ceiling: Estimate | None
    blocks: int
    workers: int
    """Workers whose verdict blocks count."""
    cycles: Estimate | None = None
    """The deciding speed-up counted in clock cycles instead of seconds; None where clocks were not seen."""
    carry_over: Estimate | None = None
    """How much more the candidate gains from the first half of a block to the second than its opponent does."""
    alone: Mapping[str, list[Against]] = field(default_factory=dict)
    """Of several kernels each without the others, by its spec."""
    interaction: Estimate | None = None
    """What several kernels win together over the product of what each wins alone; against the opponent that decides."""

    @property
    def bar(self) -> float:
        """Speed-up a candidate must clear."""
        return 1 + self.policy.margin

    @property
    def deciding(self) -> Against | None:
        """The candidate against the opponent that decides; None before two workers finished."""
        return next((row for row in self.against if row.opponent == self.policy.decides), None)

    @property
    def timing(self) -> Outcome:
        """What the deciding interval says of what the objective asks: a gain, or for less memory no loss."""
        row = self.deciding
        if row is None or self.policy.objective == "latency":
            return row.outcome if row else Outcome.INCONCLUSIVE
        return interval_rule(row.speedup, self.sham, self.policy, bar=1 - self.policy.memory.noninferiority)

    @property
    def half_width(self) -> float | None:
        """Of the deciding interval."""
        row = self.deciding
        return None if row is None else (row.speedup.upper_bound - row.speedup.lower_bound) / 2

    @property
    def detectable(self) -> Ratio | None:
        """Smallest gain that as many workers, as spread as these, would find in nine runs of ten."""
        row = self.deciding
        if row is None:
            return None
        workers, level = row.speedup.look or 0, row.speedup.confidence_level
        return stats.detectable(stats.worker_sd_of(row.speedup), workers=workers, level=level)

    @property
    def known_ceiling(self) -> Estimate | None:
        """The ceiling, if enough workers stand behind it to decide anything."""
        known = self.ceiling is not None and (self.ceiling.look or 0) >= self.policy.ceiling_workers
        return self.ceiling if known else None

    @property
    def exceeds_ceiling(self) -> bool:
        """Whether the candidate wins more than the whole op costs."""
        row, ceiling = self.deciding, self.known_ceiling
        return row is not None and ceiling is not None and row.speedup.lower_bound > ceiling.upper_bound

    @property
    def has_no_headroom(self) -> bool:
        """Whether no kernel can win the margin; a measured win above the ceiling contradicts it instead.

        A ceiling bounds time alone: a saving of memory needs none.
        """
        ceiling = self.known_ceiling
        if ceiling is None or self.policy.objective == "memory":
            return False
        return ceiling.upper_bound < self.bar and not self.exceeds_ceiling

    @property
    def is_unfinished(self) -> bool:
        """Whether the run ended before the stage that was asked for."""
        finished = self.evidence.stage_finished
        return finished is None or finished.rank < self.evidence.stage_asked.rank

    @property
    def is_at_verdict(self) -> bool:
        """Whether the long run was needed, asked for, and at least begun."""
        asked = self.evidence.stage_asked is Stage.VERDICT and not self.has_no_headroom
        begun = self.evidence.stage_finished is Stage.VERDICT or self.evidence.workers_finished > 0
        return asked and (begun or bool(_of_verdict(self.evidence)))

    @property
    def is_timed(self) -> bool:
        """Whether the candidate was timed at all, in a pilot or later."""
        finished = self.evidence.stage_finished
        is_screened = finished is not None and finished.rank >= Stage.SCREEN.rank
        return is_screened or self.is_at_verdict


def weigh(evidence: Evidence, policy: Policy) -> Case:
    """Every interval the rules need, from segments of the phases that may speak for it.

    Raises:
        ValueError: a segment without steps or without time.
    """
    if evidence.command_runs:  # every block of theirs is a group of processes of its own
        policy = policy.model_copy(update={"blocks": 1})
    timed = _of_verdict(evidence)
    sham = _speedup(_blocks(timed, policy, arm=_sham_arm(evidence), other=evidence.baseline), policy)
    deciding = opponent_arm(evidence, policy.decides)
    workers = _blocks(timed, policy, arm=evidence.candidate, other=deciding)
    parts = _parts(evidence)
    singles = [_blocks(timed, policy, arm=arm, other=deciding) for arm in parts.values()]
    return Case(
        evidence=evidence,
        policy=policy,
        against=_against(evidence, policy, timed, mine=evidence.candidate, sham=sham),
        cycles=_in_cycles(timed, policy, arm=evidence.candidate, other=deciding),
        carry_over=_carry_over(timed, policy, arm=evidence.candidate, other=deciding),
        alone={kernel: _against(evidence, policy, timed, mine=arm, sham=sham) for kernel, arm in parts.items()},
        interaction=_interaction(workers, singles, policy) if len(singles) == len(evidence.kernels) else None,
        sham=sham,
        ceiling=ceiling_of(evidence, deciding, level=policy.ceiling_level),
        blocks=sum(map(len, workers.values())),
        workers=len(workers),
    )


def opponent_arm(evidence: Evidence, opponent: Opponent) -> str | None:
    """Name of the arm that stands for an opponent; None when it was never chosen or made."""
    if opponent == "best_pytorch":
        return evidence.baseline
    if is_adopted(opponent):
        return evidence.adopted.get(opponent)
    return AS_SHIPPED if find_arm(evidence, AS_SHIPPED) else None


def find_arm(evidence: Evidence, name: str | None) -> ArmRecord | None:
    """The arm of that name, if it was tried."""
    return next((arm for arm in evidence.arms if arm.name == name), None)


@dataclass(frozen=True)
class FedSteps:
    """What a step takes with its data pipeline beside it, and without."""

    made_s: Seconds
    """The pipeline alone, per batch."""
    prepared_s: Seconds
    """The strongest baseline's pilot step, from prepared batches."""
    baseline_s: Seconds
    candidate_s: Seconds
    spread_ratio: Ratio
    """Largest difference between two times of one of them: what is nearer than that is the same."""

    @property
    def waits(self) -> Ratio:
        """Share of the baseline's fed step that is not the step itself."""
        return max(0.0, 1 - self.prepared_s / self.baseline_s)

    @property
    def speedup(self) -> Ratio:
        """End to end; a pilot's, without an interval."""
        return self.baseline_s / self.candidate_s


def fed_of(evidence: Evidence) -> FedSteps | None:
    """None where the workload does not include its data, or not all of it was measured."""
    times = {item.arm: item.batch_s for item in evidence.fed}
    prepared = find_arm(evidence, evidence.baseline)
    made_s, baseline_s, candidate_s = map(times.get, (None, evidence.baseline, evidence.candidate))
    if prepared is None or made_s is None or prepared.step_s is None or baseline_s is None or candidate_s is None:
        return None
    spread_ratio = max(item.spread_ratio for item in evidence.fed)
    return FedSteps(made_s, prepared.step_s, baseline_s, candidate_s, spread_ratio)


def is_look(estimate: Estimate, policy: Policy) -> bool:
    """Whether as many workers stand behind it as the first look needs."""
    return (estimate.look or 0) >= policy.looks[0]


def is_drowned(speedup: Estimate, sham: Estimate | None, policy: Policy) -> bool:
    """Whether identical code differs so much (or was never timed) that this reading means nothing.

    A gain must clear the identical-code control. Where that control differs from 1 significantly and by more
    than half the margin, any reading must lie apart from it, and a loss must not be what hides a gain.

    Source:
        METHOD.md B5.12 (L > U_S) and B7 (AA_BIAS).
    """
    bar = 1 + policy.margin
    if sham is None or not is_look(sham, policy):
        return speedup.lower_bound > bar
    is_above = speedup.lower_bound > sham.upper_bound
    if speedup.lower_bound > bar:
        return not is_above
    excludes_one = sham.lower_bound > 1 or sham.upper_bound < 1
    is_biased = excludes_one and abs(sham.point_estimate - 1) > policy.margin / 2
    is_below = speedup.upper_bound < sham.lower_bound
    hides_a_gain = speedup.upper_bound < bar <= speedup.upper_bound / sham.lower_bound
    return is_biased and not is_below and (hides_a_gain or not is_above)


APART, NEAR = 1.10, 1.03
"""Of two medians of one arm, in workers with the candidate and in the clean process: beyond the first the two are not
the same machine; within the second they are (measured: 0.5 % for a captured step, 1 to 5 % for a host-bound one)."""


def apart(evidence: Evidence, policy: Policy, arm: str, speedup: Estimate) -> Ratio | None:
    """Time of an arm beside the candidate over its time without it, where that puts the reading in doubt.

    It does where every worker is far from the clean process, either way, or where the candidate's company slows the
    arm down by as much as would be all of a gain. Each worker is compared with what was timed right after it.
    """
    own = [item for item in evidence.clean_times if item.arm == arm]
    times = by_worker(evidence, arm)
    if not own or len(times) < policy.looks[0]:
        return None
    typical = median(item.step_s for item in own)
    clean = {item.worker: item.step_s for item in own}
    ratios = [step_s / clean.get(worker, typical) for worker, step_s in times.items()]
    slower, faster = min(ratios), max(ratios)
    bar = 1 + policy.margin
    is_all_of_it = slower > NEAR and speedup.lower_bound > bar >= speedup.lower_bound / slower
    if slower > APART or is_all_of_it:
        return slower
    return faster if faster < 1 / APART else None


def by_worker(evidence: Evidence, arm: str) -> dict[int, float]:
    """Median seconds per step of an arm in each verdict worker."""
    times: dict[int, list[float]] = {}
    for segment in evidence.segments:
        if segment.phase == "verdict" and segment.arm == arm:
            times.setdefault(segment.worker, []).append(segment.seconds / segment.steps)
    return {worker: median(values) for worker, values in times.items()}


def _of_verdict(evidence: Evidence) -> list[Segment]:
    """Segments that may stand behind a speed-up: pilots chose the arms, so they would flatter the winner."""
    return [segment for segment in evidence.segments if segment.phase == "verdict"]


def _blocks(timed: Sequence[Segment], policy: Policy, *, arm: str | None, other: str | None) -> _Workers:
    """Block contrasts of every worker with enough of them; a half-done worker does not count."""
    if arm is None or other is None:
        return {}
    workers = stats.block_contrasts(timed, arm=arm, other=other)
    return {worker: values for worker, values in workers.items() if len(values) >= policy.blocks}


def _speedup(workers: _Workers, policy: Policy) -> Estimate | None:
    estimates = stats.worker_estimates(workers)
    if len(estimates) < 2:
        return None
    interval = stats.t_interval(estimates, policy.level)
    return stats.as_estimate(interval, level=policy.level, look=len(estimates))


def _in_cycles(timed: Sequence[Segment], policy: Policy, *, arm: str | None, other: str | None) -> Estimate | None:
    """Time x clock: what a change of clock between the arms would hide or pretend. Source: METHOD.md B5.13."""
    mine = [segment for segment in timed if segment.arm in (arm, other)]
    if not mine or any(segment.clock_hz is None for segment in mine):
        return None
    cycles = [s.model_copy(update={"seconds": s.seconds * s.clock_hz}) for s in mine if s.clock_hz]
    return _speedup(_blocks(cycles, policy, arm=arm, other=other), policy)


def _carry_over(timed: Sequence[Segment], policy: Policy, *, arm: str | None, other: str | None) -> Estimate | None:
    if arm is None or other is None:
        return None
    estimates = stats.worker_estimates(stats.half_contrasts(timed, arm=arm, other=other))
    if len(estimates) < policy.looks[0]:
        return None
    interval = stats.t_interval(estimates, CARRY_OVER_LEVEL)
    return stats.as_estimate(interval, level=CARRY_OVER_LEVEL, look=len(estimates))


CARRY_OVER_LEVEL = 0.99
"""Source: METHOD.md B5.14."""


def _against(
    evidence: Evidence, policy: Policy, timed: Sequence[Segment], *, mine: str | None, sham: Estimate | None
) -> list[Against]:
    """An arm with kernels against every opponent that enough workers timed beside it."""
    rows = []
    for opponent in policy.opponents:
        arm = opponent_arm(evidence, opponent)
        workers = _blocks(timed, policy, arm=mine, other=arm)
        speedup = _speedup(workers, policy)
        if speedup is None or arm is None or mine is None:
            continue
        segments = [segment for segment in timed if segment.worker in workers]
        arm_step_s, candidate_step_s = (stats.step_seconds(segments, name) for name in (arm, mine))
        if arm_step_s is None or candidate_step_s is None:
            continue
        is_apart = apart(evidence, policy, arm, speedup) is not None
        ruled = interval_rule(speedup, sham, policy, bar=1 + policy.margin)
        rows.append(
            Against(
                opponent=opponent,
                arm=arm,
                arm_step_s=arm_step_s,
                candidate_step_s=candidate_step_s,
                speedup=speedup,
                outcome=Outcome.INCONCLUSIVE if is_apart else ruled,
            )
        )
    return rows


def _parts(evidence: Evidence) -> dict[str, str]:
    """Arms with one of several kernels each, by its spec."""
    found: dict[str, str] = {}
    for arm in evidence.arms:
        if arm.role is Role.PART and arm.status == "ok" and arm.name not in evidence.recompiles:
            places = places_of(ArmName.parse(arm.name)) or []
            found |= {evidence.kernels[place]: arm.name for place in places if len(places) == 1}
    return found


def _interaction(together: _Workers, alone: Sequence[_Workers], policy: Policy) -> Estimate | None:
    """What all kernels win over the product of what each wins alone, worker by worker."""
    if not alone:
        return None
    same = [worker for worker in together if all(worker in own for own in alone)]
    gaps = [
        stats.worker_estimate(together[worker]) - sum(stats.worker_estimate(own[worker]) for own in alone)
        for worker in same
    ]
    if len(gaps) < policy.looks[0]:
        return None
    return stats.as_estimate(stats.t_interval(gaps, policy.level), level=policy.level, look=len(gaps))


def interval_rule(speedup: Estimate, sham: Estimate | None, policy: Policy, *, bar: Ratio) -> Outcome:
    """METHOD.md B5.12: confirm above the bar and identical code, refute below the bar, else go on."""
    if not is_look(speedup, policy) or is_drowned(speedup, sham, policy):
        return Outcome.INCONCLUSIVE
    if speedup.lower_bound > bar:
        return Outcome.CONFIRMED
    return Outcome.REFUTED if speedup.upper_bound < bar else Outcome.INCONCLUSIVE


def ceiling_of(evidence: Evidence, opponent: str | None, *, level: float) -> Estimate | None:
    """Opponent's time over the fastest headroom arm of any mode.

    None when the opponent's or the candidate's mode has no headroom arm: a slower mode's ceiling is none.
    """
    if opponent is None or opponent in evidence.recompiles:
        return None
    arms = [arm for arm in evidence.arms if arm.role is Role.HEADROOM and arm.status == "ok"]
    arms = [arm for arm in arms if arm.name not in evidence.recompiles]
    # The pilot chose both arms: what chose them may not bound them.
    timed_apart = [segment for segment in evidence.segments if segment.phase != "pilot"]
    contrasts = {arm: stats.block_contrasts(timed_apart, arm=arm.name, other=opponent) for arm in arms}
    timed = [arm for arm in arms if contrasts[arm]]
    covered = {arm.mode for arm in arms if contrasts[arm] or arm.step_s is not None}
    runs = [find_arm(evidence, name) for name in (opponent, evidence.candidate)]
    if not timed or not {run.mode for run in runs if run is not None} <= covered:
        return None
    fastest = max(timed, key=lambda arm: median(chain.from_iterable(contrasts[arm].values())))
    return stats.ceiling_estimate(contrasts[fastest], level=level)


def _sham_arm(evidence: Evidence) -> str | None:
    return next((arm.name for arm in evidence.arms if arm.role is Role.SHAM and arm.status == "ok"), None)
