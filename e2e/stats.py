"""Segments to intervals: block contrasts, worker medians, t-intervals, and what more time would buy.

Everything is a log ratio until the last line, so that a ratio and its inverse are treated alike. Plain
Python: `e2e gate` must answer at once, and the numbers are few.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from statistics import median
from typing import NamedTuple

from e2e.schema.evidence import Segment
from e2e.schema.policy import MOST_WORKERS, Policy
from e2e.schema.verdict import Estimate
from e2e.units import MAD_TO_SD, MEDIAN_COST, Ratio, Seconds

FEW_WORKERS = 5
"""Fewer workers than this give no useful t-interval over workers. Source: METHOD.md B5.6 and B8."""


class Interval(NamedTuple):
    """A mean log ratio with its bounds."""

    mean: float
    lower: float
    upper: float


def step_seconds(segments: Iterable[Segment], arm: str) -> Seconds | None:
    """Median step of one arm over its segments; None without segments.

    Units:
        Seconds per step.
    """
    steps = [segment.seconds / segment.steps for segment in segments if segment.arm == arm]
    return median(steps) if steps else None


def drift(segments: Sequence[Segment]) -> Ratio:
    """Relative change of one arm's median step from the first half of one worker's blocks to the second.

    Raises:
        ValueError: all segments are of one block.
    """
    middle = median(segment.block for segment in segments)
    halves = [[s.seconds / s.steps for s in segments if (s.block > middle) is later] for later in (False, True)]
    first, second = map(median, halves)
    return second / first - 1


def block_contrasts(segments: Iterable[Segment], *, arm: str, other: str) -> dict[int, list[float]]:
    """Per worker, one log ratio other / arm for every mirrored block of both; above 0 `arm` is faster.

    A half-finished block is left out: without its mirror image, clock drift would count as a difference.

    Units:
        Natural logarithm of a ratio of seconds per step.

    Raises:
        ValueError: a segment without steps or without time.

    Source:
        METHOD.md B5.11; against drift, METHOD.md B8 (ABBA 4.7 %, AAAA...BBBB 100 % false differences).
    """
    blocks: dict[tuple[int, str, int], tuple[list[Segment], list[Segment]]] = {}
    for segment in segments:
        is_mine = segment.arm == arm
        if is_mine or segment.arm == other:
            both = blocks.setdefault((segment.worker, segment.phase, segment.block), ([], []))
            both[0 if is_mine else 1].append(segment)
    contrasts: dict[int, list[float]] = {}
    for (worker, _, _), (mine, others) in sorted(blocks.items(), key=lambda item: item[0]):
        if _is_mirrored(mine, others):
            contrasts.setdefault(worker, []).append(_mean_log_step(others) - _mean_log_step(mine))
    return contrasts


def half_contrasts(segments: Iterable[Segment], *, arm: str, other: str) -> dict[int, list[float]]:
    """Per worker, one log ratio for every mirrored block: how much more `arm` gained from its first half to its
    second than `other` did.

    In the two halves each arm has other predecessors, so that what an arm inherits from them shows here.

    Units:
        Natural logarithm of a ratio of ratios of seconds per step.

    Source:
        METHOD.md B5.14.
    """
    blocks: dict[tuple[int, int], list[Segment]] = {}
    for segment in segments:
        if segment.arm in (arm, other):
            blocks.setdefault((segment.worker, segment.block), []).append(segment)
    contrasts: dict[int, list[float]] = {}
    for (worker, _), members in sorted(blocks.items(), key=lambda item: item[0]):
        ordered = sorted(members, key=lambda segment: segment.position)
        mine, others = ([s for s in ordered if s.arm == name] for name in (arm, other))
        if len(mine) == len(others) == 2:
            gains = [_mean_log_step(pair[:1]) - _mean_log_step(pair[1:]) for pair in (mine, others)]
            contrasts.setdefault(worker, []).append(gains[0] - gains[1])
    return contrasts


def _is_mirrored(mine: Sequence[Segment], others: Sequence[Segment]) -> bool:
    """Whether both arms have as many segments around the same centre, so that a linear drift cancels."""
    same_number = len(mine) == len(others) > 0
    return same_number and sum(s.position for s in mine) == sum(s.position for s in others)


def _mean_log_step(segments: Sequence[Segment]) -> float:
    logs = []
    for segment in segments:
        if segment.seconds <= 0 or segment.steps <= 0:
            raise ValueError(f"segment {segment.position} of block {segment.block} has no steps or no time")
        logs.append(math.log(segment.seconds / segment.steps))
    return math.fsum(logs) / len(logs)


def worker_estimate(contrasts: Sequence[float]) -> float:
    """One worker's log ratio: the median over its blocks, so that a spike in one block does not move it.

    Raises:
        ValueError: no blocks.

    Source:
        METHOD.md B5.11 and B2.15 (no value is dropped; medians absorb outliers).
    """
    return median(contrasts)


def worker_estimates(contrasts: Mapping[int, Sequence[float]]) -> list[float]:
    """Every worker's estimate, in worker order."""
    return [worker_estimate(values) for _, values in sorted(contrasts.items())]


def t_interval(estimates: Sequence[float], level: float) -> Interval:
    """Student's t-interval of the mean of independent estimates, on their own (log) scale.

    The process is what varies independently; blocks of one process do not (METHOD.md B8: pooling them gives
    11-28 % false confirms).

    Raises:
        ValueError: fewer than two estimates, or a level outside (0, 1).
    """
    mean, error = _mean_and_error(estimates)
    half = t_quantile((1 + level) / 2, len(estimates) - 1) * error
    return Interval(mean, mean - half, mean + half)


def _mean_and_error(estimates: Sequence[float]) -> tuple[float, float]:
    """Mean and its standard error."""
    count = len(estimates)
    if count < 2:
        raise ValueError("an interval needs at least two estimates")
    mean = math.fsum(estimates) / count
    variance = math.fsum((value - mean) ** 2 for value in estimates) / (count - 1)
    return mean, math.sqrt(variance / count)


def as_estimate(interval: Interval, *, level: float, look: int | None) -> Estimate:
    """The interval as ratios; `look` is the number of worker processes behind it."""
    return Estimate(
        point_estimate=math.exp(interval.mean),
        lower_bound=math.exp(interval.lower),
        upper_bound=math.exp(interval.upper),
        confidence_level=level,
        look=look,
    )


def ceiling_estimate(contrasts: Mapping[int, Sequence[float]], *, level: float) -> Estimate | None:
    """The most a kernel can win, from contrasts of headroom against opponent; None without two blocks.

    Fewer than five workers: the envelope of every worker's own interval of the median, at `level`, over its blocks. A
    t-interval over two workers has one degree of freedom (its quantile is 64) and says nothing; one worker's
    interval leaves the variation between processes out (METHOD.md B8: 1.9-6.6 % wrong instead of 0.6 %). The
    envelope is wrong on one side only if every worker is. Five or more: a t-interval over worker medians.
    """
    usable = {worker: values for worker, values in contrasts.items() if len(values) >= 2}
    estimates = worker_estimates(usable)
    if not estimates:
        return None
    if len(estimates) >= FEW_WORKERS:
        return as_estimate(t_interval(estimates, level), level=level, look=len(estimates))
    point = math.fsum(estimates) / len(estimates)
    intervals = [median_interval(values, level) for values in usable.values()]
    lower = min(point, *(interval.lower for interval in intervals))
    upper = max(point, *(interval.upper for interval in intervals))
    return as_estimate(Interval(point, lower, upper), level=level, look=len(estimates))


def mixture(speedups: Sequence[Estimate], shares: Sequence[float]) -> Estimate:
    """Time of several steps together over their time with the kernel; each one has that share of the time without it.

    The interval has the level of the least sure of them: what is measured in one cell is independent of the others, so
    the half widths of the logarithms add in quadrature, by what each contributes.

    Units:
        shares: of the time without the kernel; they add up to 1.

    Raises:
        ValueError: none, or not one share for each.
    """
    if not speedups:
        raise ValueError("a mixture has at least one part")
    left = [share / item.point_estimate for share, item in zip(shares, speedups, strict=True)]
    whole = math.fsum(left)
    halves = [math.log(item.upper_bound / item.lower_bound) / 2 for item in speedups]
    half = math.sqrt(math.fsum((part / whole * own) ** 2 for part, own in zip(left, halves, strict=True)))
    point = -math.log(whole)
    return as_estimate(
        Interval(point, point - half, point + half),
        level=min(item.confidence_level for item in speedups),
        look=min((item.look for item in speedups if item.look is not None), default=None),
    )


def median_interval(values: Sequence[float], level: float) -> Interval:
    """Interval of the median from order statistics: no assumption on the noise, and spikes cost nothing.

    With fewer blocks than such an interval needs at this level (8 at 99 %), a t-interval.

    Source:
        David and Nagaraja 2003, Order Statistics, 7.1: coverage from the binomial distribution.
    """
    ordered, count = sorted(values), len(values)
    tail, rank = 0.0, 0
    while rank < count // 2:
        tail += math.comb(count, rank) / 2**count
        if 2 * tail > 1 - level:
            break
        rank += 1
    if rank == 0:
        return t_interval(values, level)
    return Interval(median(ordered), ordered[rank - 1], ordered[count - rank])


def block_sd(contrasts: Mapping[int, Sequence[float]]) -> float | None:
    """Standard deviation of one block's contrast within a worker; None with fewer than three blocks.

    From the median absolute deviation, because the worker's estimate is a median too: a rare spike costs
    neither.

    Units:
        Log ratio; 0.005 is half a per cent.
    """
    many = [values for values in contrasts.values() if len(values) >= 2]
    residuals = [abs(value - median(values)) for values in many for value in values]
    if len(residuals) < 3:
        return None
    # Each worker's own median was fitted to its blocks.
    correction = math.sqrt(len(residuals) / (len(residuals) - len(many)))
    return MAD_TO_SD * correction * median(residuals)


def blocks_for(block_sd: float, policy: Policy) -> int:
    """Blocks per worker with which block noise alone keeps the first look's half width in half the margin.

    Raises:
        ValueError: a negative or infinite standard deviation.

    Source:
        METHOD.md, correction 3: GPU-bound cells (0.3 to 0.6 %) need 8.
    """
    if not 0 <= block_sd < math.inf:
        raise ValueError("a standard deviation is finite and not negative")
    look = policy.looks[0]
    target = math.log1p(policy.margin) / 2 * math.sqrt(look) / t_quantile((1 + policy.level) / 2, look - 1)
    needed = math.ceil((MEDIAN_COST * block_sd / target) ** 2)
    return min(max(needed, policy.blocks), policy.max_blocks)


def detectable(worker_sd: float, *, workers: int, level: float, power: float = 0.9) -> Ratio:
    """Smallest effect that so many workers would resolve with the given power; 0.01 is one per cent.

    Units:
        worker_sd: standard deviation of worker estimates, as a log ratio.

    Source:
        METHOD.md B2.14: (t((1 + level) / 2) + t(power)) x sd / sqrt(workers).
    """
    quantiles = t_quantile((1 + level) / 2, workers - 1) + t_quantile(power, workers - 1)
    return math.expm1(quantiles * worker_sd / math.sqrt(workers))


def worker_sd_of(estimate: Estimate) -> float:
    """Standard deviation of the worker estimates behind a t-interval, as a log ratio.

    Raises:
        ValueError: fewer than two workers are behind it.
    """
    workers = estimate.look or 0
    if workers < 2:
        raise ValueError("an interval comes from at least two workers")
    half = math.log(estimate.upper_bound / estimate.lower_bound) / 2
    return half * math.sqrt(workers) / t_quantile((1 + estimate.confidence_level) / 2, workers - 1)


def workers_for(target: float, *, half_width: float, workers: int, level: float) -> int | None:
    """Workers with which a half width of `half_width` from `workers` shrinks to `target`; None beyond `MOST_WORKERS`.

    Units:
        Both half widths on one scale. `target = half_width / 2` asks what would halve it.

    Raises:
        ValueError: fewer than two workers.
    """
    if workers < 2:
        raise ValueError("a half width comes from at least two workers")
    probability = (1 + level) / 2
    spread = half_width * math.sqrt(workers) / t_quantile(probability, workers - 1)
    for count in range(workers, MOST_WORKERS + 1):
        if t_quantile(probability, count - 1) * spread <= target * math.sqrt(count):
            return count
    return None


@cache
def t_quantile(probability: float, df: int) -> float:
    """Quantile of Student's t for a whole number of degrees of freedom.

    Raises:
        ValueError: a probability outside [0.5, 1), or no degree of freedom.

    Source:
        Abramowitz and Stegun 26.7.3 and 26.7.4, inverted by bisection: finite sums, so that no numerical
        library is loaded.
    """
    if not 0.5 <= probability < 1 or df < 1:
        raise ValueError("the probability lies in [0.5, 1), and there is at least one degree of freedom")
    low, high = 0.0, math.pi / 2
    for _ in range(64):
        angle = (low + high) / 2
        if _central_probability(angle, df) < 2 * probability - 1:
            low = angle
        else:
            high = angle
    return math.tan(low) * math.sqrt(df)


def _central_probability(angle: float, df: int) -> float:
    """P(|t| < tan(angle) x sqrt(df))."""
    sine, cosine = math.sin(angle), math.cos(angle)
    is_odd = df % 2 == 1
    term = cosine if is_odd else 1.0
    total = 0.0 if df == 1 else term
    for step in range(3 if is_odd else 2, df - 1, 2):
        term *= cosine * cosine * (step - 1) / step
        total += term
    return 2 / math.pi * (angle + sine * total) if is_odd else sine * total
