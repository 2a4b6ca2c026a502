"""From timed segments of planted arms to trials of the judge, and from trials to what they show. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from e2e import stats, wording
from e2e.arm_names import AS_SHIPPED, ArmName
from e2e.judge import judge
from e2e.measure.audit import Fingerprint, Replay, Tolerance, agreement, conclude
from e2e.schema.evidence import Allocations, ArmRecord, Audit, CleanTime, Evidence, Segment, Steadiness
from e2e.schema.policy import Policy
from e2e.schema.selftest import Catch, Effect, FalseAlarm, NoiseFloor, Resolvable, Trial
from e2e.schema.words import Mode, Outcome, ReasonKind, Role, kind_of
from e2e.units import Ratio, Seconds
from e2e.weighing import weigh

SIZES = (0.01, 0.02, 0.05)
"""Planted effects, as shares of the step. Source: METHOD.md B8.7, and the margin itself."""
SHAM, CANDIDATE = str(ArmName(Role.SHAM, Mode.EAGER)), str(ArmName(Role.CANDIDATE, Mode.EAGER))
TWIN = str(ArmName(Role.PLANTED, Mode.EAGER, "twin"))
"""Identical code as the candidate."""
VERDICT_ARMS = 4
"""Arms of a usual verdict: baseline, candidate, identical code, eager as shipped."""
_OfArm = TypeVar("_OfArm", Allocations, Segment, Steadiness)
MINUTES = (2.0, 5.0, 10.0, 15.0, 30.0, 60.0)
COVERAGE, SURELY = 0.9, 0.01
"""Intervals must contain the truth in so many runs; fewer is a fault where chance gives it more rarely than this."""
POWER = 0.8
"""Share of runs in which the largest planted gain has to be found."""


@dataclass(frozen=True)
class Scene:
    """Which arms play baseline, candidate and identical code."""

    planted: Ratio
    baseline: str
    candidate: str
    sham: str

    def parts(self) -> dict[str, str]:
        """The name that each arm has for the judge."""
        return {self.baseline: AS_SHIPPED, self.candidate: CANDIDATE, self.sham: SHAM}


@dataclass
class Timed:
    """What the workers of one run left; an unfinished run is no run."""

    number: int
    segments: list[Segment] = field(default_factory=list)
    steadiness: list[Steadiness] = field(default_factory=list)
    allocations: list[Allocations] = field(default_factory=list)
    pauses: dict[int, dict[str, Seconds]] = field(default_factory=dict)
    """By worker and arm: what one pause really took there."""
    digests: dict[tuple[str, int], Fingerprint] = field(default_factory=dict)
    replays: list[Replay] = field(default_factory=list)
    steps_run: int = 0
    steps_committed: int = 0


def slowed(size: Ratio, twin: str) -> str:
    """Name of an arm that is slower by that share of the step; `twin` is `a` or `b`."""
    return str(ArmName(Role.PLANTED, Mode.EAGER, f"{size:.0%}{twin}"))


def pauses_for(step_s: Seconds, sizes: Sequence[Ratio] = SIZES) -> dict[str, Seconds]:
    """Every planted arm and what its steps wait for; each size twice, so that a slow baseline has identical code."""
    return {TWIN: 0.0, **{slowed(size, twin): size * step_s for size in sizes for twin in "ab"}}


def scenes() -> list[Scene]:
    """Identical code, then every size as a gain (the baseline is slowed) and as a loss (the candidate is)."""
    gains = [Scene(size, slowed(size, "a"), AS_SHIPPED, slowed(size, "b")) for size in SIZES]
    losses = [Scene(-size, AS_SHIPPED, slowed(size, "a"), SHAM) for size in SIZES]
    return [Scene(0.0, AS_SHIPPED, TWIN, SHAM), *gains, *losses]


def trials_of(timed: Timed, base: Evidence, policy: Policy, *, dtype: str) -> list[Trial]:
    """What the judge says of every scene whose arms were timed; `base` is what a check of an honest kernel found."""
    arms = {segment.arm for segment in timed.segments}
    return [_trial(timed, scene, base, policy, dtype) for scene in scenes() if arms >= set(scene.parts())]


def _trial(timed: Timed, scene: Scene, base: Evidence, policy: Policy, dtype: str) -> Trial:
    evidence = staged(timed, scene, base, dtype=dtype)
    verdict = judge(evidence, policy)
    row = weigh(evidence, policy).deciding  # the verdict shows none beside wrong outputs
    return Trial(
        run=timed.number,
        planted=scene.planted,
        true_speedup=true_speedup(timed, scene),
        speedup=row.speedup if row else None,
        sham=verdict.latency.sham,
        outcome=verdict.outcome,
        codes=[reason.code for reason in verdict.reasons],
    )


def staged(timed: Timed, scene: Scene, base: Evidence, *, dtype: str) -> Evidence:
    """The scene's arms under the names that they have in a validation, as its evidence."""
    parts = scene.parts()
    segments = [_renamed(segment, parts) for segment in timed.segments if segment.arm in parts]
    calls = base.engagement.calls if base.engagement else None
    names = [ArmName.parse(name) for name in parts.values()]
    return base.model_copy(
        update={
            "arms": [
                ArmRecord(
                    name=str(name),
                    role=name.role,
                    mode=name.mode,
                    status="ok",
                    kernel_calls=calls if name.role is Role.CANDIDATE else None,
                )
                for name in names
            ],
            "baseline": AS_SHIPPED,
            "candidate": CANDIDATE,
            "segments": segments,
            "steadiness": [_renamed(item, parts) for item in timed.steadiness if item.arm in parts],
            "allocations": [_renamed(item, parts) for item in timed.allocations if item.arm in parts],
            "workers_finished": len(timed.pauses),
            "clean_times": _clean_times(segments),
            "audit": _audit(timed, parts, base, dtype),
        }
    )


def _clean_times(segments: Sequence[Segment]) -> list[CleanTime]:
    """As in the workers themselves: nothing planted slows its company down, and no process without it is timed."""
    step_s = stats.step_seconds(segments, AS_SHIPPED)
    return [] if step_s is None else [CleanTime(arm=AS_SHIPPED, step_s=step_s)]


def _renamed(record: _OfArm, parts: Mapping[str, str]) -> _OfArm:
    return record.model_copy(update={"arm": parts[record.arm]})


def _audit(timed: Timed, parts: Mapping[str, str], base: Evidence, dtype: str) -> Audit:
    replays = [
        Replay(parts[replay.arm], replay.committed, replay.replayed) for replay in timed.replays if replay.arm in parts
    ]
    found = conclude(
        replays,
        run=timed.steps_run,
        committed=timed.steps_committed,
        baseline=AS_SHIPPED,
        tolerance=Tolerance(),
    )
    digests = {(parts[arm], seed): digest for (arm, seed), digest in timed.digests.items() if arm in parts}
    return found.model_copy(update=compared(digests, base, dtype=dtype))


def compared(digests: Mapping[tuple[str, int], Fingerprint], base: Evidence, *, dtype: str) -> dict[str, object]:
    """Fields of an audit: the candidate's timed outputs against the baseline's on the same input."""
    rounding = base.model_check.error_baseline if base.model_check else None
    return agreement(digests, candidate=CANDIDATE, baseline=AS_SHIPPED, rounding=rounding, dtype=dtype)


def true_speedup(timed: Timed, scene: Scene) -> Ratio:
    """What the pauses make of the step, on the judge's scale: a mean of logarithms over workers."""
    logs = []
    for worker, pauses in timed.pauses.items():
        mine = [segment for segment in timed.segments if segment.worker == worker]
        step_s = stats.step_seconds(mine, AS_SHIPPED)
        assert step_s is not None
        slow, fast = (1 + pauses.get(arm, 0.0) / step_s for arm in (scene.baseline, scene.candidate))
        logs.append(math.log(slow / fast))
    return math.exp(math.fsum(logs) / len(logs))


# ---- What the trials show


def effects_of(trials: Iterable[Trial]) -> list[Effect]:
    """One row per planted effect, in the order of the scenes."""
    found: dict[Ratio, list[Trial]] = {}
    for trial in trials:
        found.setdefault(trial.planted, []).append(trial)
    return [_effect(planted, rows) for planted, rows in found.items()]


def _effect(planted: Ratio, rows: Sequence[Trial]) -> Effect:
    outcomes = Counter(row.outcome for row in rows)
    known = {Outcome.CONFIRMED, Outcome.REFUTED, Outcome.INCONCLUSIVE}
    return Effect(
        planted=planted,
        runs=len(rows),
        true_speedup=_geometric_mean([row.true_speedup for row in rows]),
        mean_estimate=_geometric_mean([row.speedup.point_estimate for row in rows if row.speedup]),
        covered=sum(row.is_covered for row in rows),
        quiet_runs=sum(row.is_quiet for row in rows),
        quiet_covered=sum(row.is_covered for row in rows if row.is_quiet),
        confirmed=outcomes[Outcome.CONFIRMED],
        refuted=outcomes[Outcome.REFUTED],
        inconclusive=outcomes[Outcome.INCONCLUSIVE],
        other=sum(number for outcome, number in outcomes.items() if outcome not in known),
    )


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def alarms_of(trials: Iterable[Trial]) -> list[FalseAlarm]:
    """Flags over identical code, most frequent first; what an interval says is no flag."""
    codes = Counter(
        code
        for trial in trials
        if trial.planted == 0
        for code in trial.codes
        if kind_of(code) is not ReasonKind.INTERVAL
    )
    return [FalseAlarm(code=code, runs=runs) for code, runs in codes.most_common()]


def noise_of(runs: Sequence[Timed], policy: Policy, *, opening_s: Seconds, timed_s: Seconds) -> NoiseFloor | None:
    """Identical code against itself, over the workers of all runs; None with fewer than two workers.

    Units:
        opening_s, timed_s: what one worker took until its arms were ready, and then for its blocks.
    """
    segments = [segment for timed in runs for segment in timed.segments]
    contrasts = stats.block_contrasts(segments, arm=TWIN, other=AS_SHIPPED)
    estimates = stats.worker_estimates(contrasts)
    if len(estimates) < 2:
        return None
    mean = math.fsum(estimates) / len(estimates)
    worker_sd = math.sqrt(math.fsum((value - mean) ** 2 for value in estimates) / (len(estimates) - 1))
    workers = policy.looks[0]
    half = stats.t_quantile((1 + policy.level) / 2, workers - 1) * worker_sd / math.sqrt(workers)
    arms = len({segment.arm for segment in segments})
    return NoiseFloor(
        block_sd=stats.block_sd(contrasts),
        worker_sd=worker_sd,
        half_width=math.expm1(half),
        workers=workers,
        seconds_per_worker=opening_s + timed_s * VERDICT_ARMS / arms,
    )


def resolvable(noise: NoiseFloor, policy: Policy) -> list[Resolvable]:
    """Minutes of timing to the smallest effect; nothing where they do not reach the first look."""
    rows = []
    for minutes in MINUTES:
        workers = int(60 * minutes / noise.seconds_per_worker)
        if workers >= noise.workers:
            effect = stats.detectable(noise.worker_sd, workers=workers, level=policy.level)
            rows.append(Resolvable(minutes=minutes, workers=workers, effect=effect))
    return rows


def faults_of(effects: Sequence[Effect], catches: Sequence[Catch]) -> list[str]:
    """What must not happen, in words."""
    found = []
    for effect in effects:
        name = effect_name(effect.planted)
        if effect.planted <= 0 and effect.confirmed:
            found.append(f"{name} was CONFIRMED as a gain in {effect.confirmed} of {effect.runs} runs")
        if effect.other:
            found.append(f"{name} was called wrong or failed in {effect.other} of {effect.runs} runs")
        if binomial_tail(effect.quiet_covered, effect.quiet_runs, COVERAGE) < SURELY:
            covered = f"{effect.quiet_covered} of {effect.quiet_runs} runs"
            found.append(f"{name}: the interval contained the truth in only {covered}")
    for catch in catches:
        if not catch.is_right:
            what = "was not caught" if catch.kind == "wrong" else "is right, and was accused"
            found.append(f"{catch.op}, planted kernel `{catch.kernel}` {what}")
    return found


def doubts_of(effects: Sequence[Effect], *, interrupted: bool = False) -> list[str]:
    """What was not shown, in words."""
    if not effects:
        return [
            f"no run was finished {'before the interrupt' if interrupted else 'in this time: give a larger --budget'}"
        ]
    largest = max(effects, key=lambda effect: effect.planted)
    found = []
    if largest.planted > 0 and largest.confirmed < POWER * largest.runs:
        number = f"{largest.confirmed} of {largest.runs} runs"
        found.append(f"{effect_name(largest.planted)} was found in only {number}: this machine is too noisy for it")
    missed = [effect for effect in effects if binomial_tail(effect.covered, effect.runs, COVERAGE) < SURELY]
    if any(effect.quiet_runs < effect.runs for effect in missed):
        names = ", ".join(effect_name(effect.planted) for effect in missed)
        found.append(f"other processes used the machine, and the interval often missed the truth of {names}")
    return found


def effect_name(planted: Ratio) -> str:
    """`a gain of 2 %`, `identical code`."""
    if planted == 0:
        return "identical code"
    return f"a {'gain' if planted > 0 else 'loss'} of {wording.percent(abs(planted))}"


def binomial_tail(successes: int, tries: int, probability: float) -> float:
    """Chance of at most so many successes."""
    return math.fsum(
        math.comb(tries, k) * probability**k * (1 - probability) ** (tries - k) for k in range(successes + 1)
    )
