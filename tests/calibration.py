"""METHOD.md B8, items 1 to 5: an invented clock drives the real decision code, seeded, against stated bounds.

    python -m tests.calibration [--runs N] [--seed N] [--write FILE]

Prints its tables; exit code 1 when a bound is missed. `--write` replaces what stands below the marker line of FILE.
"""

from __future__ import annotations

import argparse
import datetime
import math
import multiprocessing
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from e2e.configuration import load_policy
from e2e.judge import decided, judge
from e2e.schema.evidence import Evidence, Segment
from e2e.schema.policy import Policy
from e2e.schema.verdict import Estimate, Verdict
from e2e.schema.words import Label, Outcome, ReasonCode, Stage
from e2e.stats import block_contrasts, block_sd, blocks_for
from tests.fakes import CANDIDATE, EAGER, HEADROOM, SHAM, STEP_S, SyntheticClock, Throttle, evidence

PROCESSES = 2
MARKER = "<!-- Below: written by `python -m tests.calibration --write`. -->"


@dataclass(frozen=True)
class Noise:
    """A machine: standard deviations of a block's and of a worker's contrast, as log ratios, and what else disturbs."""

    name: str
    block_sd: float
    worker_sd: float
    drift: float = 0.0
    spikes: float = 0.05
    segment_spikes: float = 0.0
    autocorrelation: float = 0.3
    clock_swing: float = 0.0

    def clock(self, seed: str, throttle: Throttle | None = None) -> SyntheticClock:
        return SyntheticClock(
            seed,
            block_sd=self.block_sd,
            worker_sd=self.worker_sd,
            drift=self.drift,
            spikes=self.spikes,
            segment_spikes=self.segment_spikes,
            autocorrelation=self.autocorrelation,
            clock_swing=self.clock_swing,
            throttle=throttle,
        )


MEASURED = Noise("as on an H200", 0.003, 0.001)
QUIET = Noise("quiet", 0.005, 0.002)
TYPICAL = Noise("typical", 0.01, 0.003)
NOISY = Noise("noisy", 0.02, 0.005)
VERY_NOISY = Noise("very noisy", 0.03, 0.003)
DRIFT = Noise("2 % drift", 0.01, 0.003, drift=0.02)
SPIKES = Noise("5 % spikes", 0.01, 0.003, segment_spikes=0.05)
BIMODAL = Noise("clocks +-4 %", 0.01, 0.003, clock_swing=0.04)
CORRELATED = Noise("AR(1) 0.5", 0.01, 0.003, autocorrelation=0.5)
HOST_BOUND = Noise("host-bound 7 %", 0.07, 0.01)
VERY_HOST_BOUND = Noise("host-bound 16 %", 0.16, 0.02)
DEVICE_BOUND = (MEASURED, QUIET, TYPICAL, NOISY, VERY_NOISY, DRIFT, SPIKES, BIMODAL, CORRELATED)
PROFILES = (*DEVICE_BOUND, HOST_BOUND, VERY_HOST_BOUND)


@dataclass(frozen=True)
class Truth:
    """What is planted; ratios as in reports, above 1 is faster."""

    gain: float = 1.0
    """Of the candidate."""
    bias: float = 1.0
    """Of the harness: it hits identical code and candidate alike."""
    ceiling: float = 1.25
    """Of the step without the op."""
    throttle: Throttle | None = None


class Bound(NamedTuple):
    """What must hold for a share of runs (or for a mean)."""

    what: Literal["confirmed", "refuted", "no_headroom", "covered", "workers"]
    side: Literal["<=", ">="]
    limit: float

    def holds(self, tally: Tally) -> bool:
        value = tally.mean_workers if self.what == "workers" else tally.share(self.what)
        return value <= self.limit if self.side == "<=" else value >= self.limit

    def __str__(self) -> str:
        limit = f"{self.limit:g}" if self.what == "workers" else f"{100 * self.limit:g} %"
        return f"{self.what.replace('_', ' ')} {self.side} {limit}"


@dataclass(frozen=True)
class Row:
    """One cell of the benchmark: a machine, a truth, and its bounds."""

    noise: Noise
    truth: Truth
    bounds: tuple[Bound, ...]
    weight: int = 1
    """Times as many runs: rates near a bound need more."""


@dataclass(frozen=True)
class Section:
    """Rows of one question, under one policy."""

    title: str
    policy: Policy
    rows: tuple[Row, ...]


@dataclass
class Tally:
    """What many runs of one row gave."""

    runs: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    workers: int = 0
    """Of the runs that went on to verdict workers."""
    timed: int = 0

    def add(self, verdict: Verdict, truth: Truth) -> None:
        """Count one run."""
        self.runs += 1
        self.counts[str(verdict.outcome)] += 1
        self.counts.update({reason.code.value for reason in verdict.reasons})
        if verdict.latency.against:
            interval = verdict.latency.against[0].speedup
            self.timed += 1
            self.workers += verdict.latency.processes
            self.counts["covered"] += interval.lower_bound <= truth.gain <= interval.upper_bound

    def merge(self, other: Tally) -> None:
        """Take in another's runs."""
        self.runs, self.timed = self.runs + other.runs, self.timed + other.timed
        self.workers, self.counts = self.workers + other.workers, self.counts + other.counts

    def share(self, what: str) -> float:
        """Of the runs; of the timed ones for `covered`."""
        return self.counts[what] / max(1, self.timed if what == "covered" else self.runs)

    @property
    def mean_workers(self) -> float:
        """Verdict workers of a timed run."""
        return self.workers / max(1, self.timed)


# ---- One run


def run(noise: Noise, truth: Truth, policy: Policy, *, seed: str) -> Verdict:
    """Ceiling blocks, then worker after worker until a look decides: the order of `e2e.stages`, times invented."""
    clock = noise.clock(seed, truth.throttle)
    segments = _screen(clock, truth, policy)
    verdict = judge(_evidence(segments, stage_finished=Stage.SCREEN, audit=None), policy)
    if verdict.label is Label.NO_HEADROOM:
        return verdict
    spread = block_sd(block_contrasts(segments, arm=HEADROOM, other=EAGER))
    blocks = policy.blocks if spread is None else blocks_for(spread, policy)
    steps = {EAGER: STEP_S, CANDIDATE: STEP_S / truth.gain / truth.bias, SHAM: STEP_S / truth.bias}
    for place in range(policy.looks[-1]):
        headroom = {HEADROOM: STEP_S / truth.ceiling} if place < policy.ceiling_workers else {}
        segments += clock.worker({**steps, **headroom}, worker=2 + place, blocks=blocks)
        if place + 1 in policy.looks and decided(_evidence(segments), policy):
            break
    return judge(_evidence(segments), policy)


def _screen(clock: SyntheticClock, truth: Truth, policy: Policy) -> list[Segment]:
    """Ceiling blocks of the pilot; of a second process if after the first the ceiling may lie below the margin."""
    segments = _ceiling_blocks(clock, truth, policy, worker=0)
    seen = _ceiling(segments, policy)
    if seen is not None and seen.upper_bound < 1 + policy.margin:
        segments += _ceiling_blocks(clock, truth, policy, worker=1, before=segments)
    return segments


def _ceiling_blocks(
    clock: SyntheticClock, truth: Truth, policy: Policy, *, worker: int, before: Sequence[Segment] = ()
) -> list[Segment]:
    """The policy's blocks; short ones go on for `ceiling_s` where the ceiling is near the margin."""
    steps = {EAGER: STEP_S, HEADROOM: STEP_S / truth.ceiling}
    most = max(policy.blocks, math.ceil(policy.ceiling_s / (2 * len(steps) * policy.segment_s)))
    segments = clock.worker(steps, worker=worker, blocks=most, phase="ceiling")
    first = [segment for segment in segments if segment.block < policy.blocks]
    seen = _ceiling([*before, *first], policy)
    return segments if seen is None or seen.point_estimate < 1 + 2 * policy.margin else first


def _ceiling(segments: Sequence[Segment], policy: Policy) -> Estimate | None:
    return judge(_evidence(segments, stage_finished=Stage.SCREEN, audit=None), policy).latency.ceiling


def _evidence(segments: Sequence[Segment], **changes: object) -> Evidence:
    return evidence(segments, baseline=EAGER, **changes)


def measured(row: Row, policy: Policy, *, runs: range, seed: int) -> Tally:
    """Those runs of a row; a run's seed depends on its row and number, so that no order or division changes it."""
    tally = Tally()
    for number in runs:
        name = f"{seed}/{policy.name}/{row.noise.name}/{row.truth}/{number}"
        tally.add(run(row.noise, row.truth, policy, seed=name), row.truth)
    return tally


# ---- What must hold

FALSE_CONFIRM = Bound("confirmed", "<=", 0.005)
COVERED = Bound("covered", ">=", 0.93)
AT_MARGIN = (Bound("confirmed", "<=", 0.035), Bound("refuted", "<=", 0.035), COVERED)
THROTTLES = (
    Throttle((EAGER,), 0.05, 1.0),
    Throttle((EAGER,), 0.05, 0.5),
    Throttle((EAGER,), 0.20, 0.2),
    Throttle((EAGER, SHAM), 0.05, 1.0),  # here identical code is no control: only the device's own word is
)
"""In the opponent's segments, so that the candidate seems to win."""


def sections(standard: Policy, demo: Policy) -> Iterator[Section]:
    """Every question, in METHOD.md B8's order."""
    yield Section("1. Equal code", standard, tuple(_equal(PROFILES, {QUIET: 0.95, TYPICAL: 0.95})))
    yield Section("2. A true gain of exactly the margin", standard, tuple(_at_margin(PROFILES, standard)))
    yield Section("3. True gains", standard, tuple(_gains()))
    yield Section("4a. The harness favours candidate and identical code", standard, tuple(_biased()))
    yield Section("4b. The device throttles while the opponent runs", standard, tuple(_throttled()))
    workers = Row(TYPICAL, Truth(gain=1.03), (Bound("workers", "<=", 6),))
    yield Section("5. Workers used", standard, (workers,))
    exactly, found = 0.01, {MEASURED: 0.95}
    yield Section("6. The ceiling", standard, tuple(_ceilings(standard, exactly=exactly, found=found)))
    few = (QUIET, TYPICAL, NOISY, SPIKES, HOST_BOUND)
    # One look at 95 %: as few false alarms, less power.
    yield Section("7a. `demo`: equal code", demo, tuple(_equal(few, {QUIET: 0.95})))
    yield Section("7b. `demo`: a true gain of exactly the margin", demo, tuple(_at_margin(few, demo)))
    power = tuple(Row(noise, Truth(gain=1.05), _found(0.95)) for noise in (QUIET, TYPICAL, NOISY))
    yield Section("7c. `demo`: a true gain of 5 %", demo, power)
    # Its many short blocks leave only the variation between processes, which two of them cannot show. Nothing is
    # lost at a ceiling of exactly the margin, where no kernel can win more than the margin.
    exactly, found = 0.10, {MEASURED: 0.95, QUIET: 0.95}
    yield Section("7d. `demo`: the ceiling", demo, tuple(_ceilings(demo, exactly=exactly, found=found)))


def _equal(profiles: Sequence[Noise], refuted: dict[Noise, float]) -> Iterator[Row]:
    for noise in profiles:
        also = (Bound("refuted", ">=", refuted[noise]),) if noise in refuted else ()
        yield Row(noise, Truth(), (FALSE_CONFIRM, COVERED, *also))


def _at_margin(profiles: Sequence[Noise], policy: Policy) -> Iterator[Row]:
    for noise in profiles:
        yield Row(noise, Truth(gain=1 + policy.margin), AT_MARGIN, weight=2)


def _gains() -> Iterator[Row]:
    yield Row(TYPICAL, Truth(gain=1.02), (*_found(0.95), COVERED))
    yield Row(VERY_NOISY, Truth(gain=1.03), (*_found(0.95), COVERED))
    for noise in DEVICE_BOUND:
        yield Row(noise, Truth(gain=1.05), (*_found(0.99), COVERED))
    # Twelve workers cannot resolve 5 % here: shown without a bound on power.
    for gain in (1.05, 1.20):
        yield from (Row(noise, Truth(gain=gain), (COVERED,)) for noise in (HOST_BOUND, VERY_HOST_BOUND))


def _found(share: float) -> tuple[Bound]:
    return (Bound("confirmed", ">=", share),)


def _biased() -> Iterator[Row]:
    for noise in (QUIET, TYPICAL, NOISY, HOST_BOUND):
        yield Row(noise, Truth(bias=1.015), (Bound("confirmed", "<=", 0.01),))


def _throttled() -> Iterator[Row]:
    for throttle in THROTTLES:
        yield from (Row(noise, Truth(throttle=throttle), (Bound("confirmed", "<=", 0),)) for noise in (QUIET, TYPICAL))


def _ceilings(policy: Policy, *, exactly: float, found: dict[Noise, float]) -> Iterator[Row]:
    """A perfect kernel, which wins all there is, must not be told that there is nothing to win."""
    for above, most in ((0, exactly), (policy.margin, 0.01)):
        ceiling = 1 + policy.margin + above
        for noise in (MEASURED, QUIET, TYPICAL, SPIKES):
            yield Row(noise, Truth(gain=ceiling, ceiling=ceiling), (Bound("no_headroom", "<=", most),))
    for noise in (MEASURED, QUIET, TYPICAL, SPIKES):
        bounds = (Bound("no_headroom", ">=", found[noise]),) if noise in found else ()
        yield Row(noise, Truth(ceiling=1.0), (FALSE_CONFIRM, *bounds))


# ---- The benchmark


Tallies = list[list[Tally]]
"""By section and row."""


class Work(NamedTuple):
    """A part of one row, small enough to share out."""

    section: int
    place: int
    row: Row
    policy: Policy
    runs: range
    seed: int


def _done(work: Work) -> tuple[Work, Tally]:
    return work, measured(work.row, work.policy, runs=work.runs, seed=work.seed)


def benchmark(questions: Sequence[Section], *, runs: int, seed: int, part: int = 250) -> Tallies:
    """A tally of every row."""
    works = [
        Work(number, place, row, section.policy, range(start, min(start + part, runs * row.weight)), seed)
        for number, section in enumerate(questions)
        for place, row in enumerate(section.rows)
        for start in range(0, runs * row.weight, part)
    ]
    tallies = [[Tally() for _ in section.rows] for section in questions]
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        for work, tally in pool.imap_unordered(_done, works):
            tallies[work.section][work.place].merge(tally)
    return tallies


def missed(row: Row, tally: Tally) -> list[Bound]:
    """Bounds that do not hold."""
    return [bound for bound in row.bounds if not bound.holds(tally)]


def table(section: Section, tallies: Sequence[Tally]) -> str:
    """One section in Markdown."""
    head = "| noise | planted | runs | confirmed | refuted | inconclusive | no headroom | covered | workers | bounds |"
    lines = [f"## {section.title}", "", head, "| --- " * head.count(" | ") + "| --- |"]
    for row, tally in zip(section.rows, tallies, strict=True):
        broken = missed(row, tally)
        bounds = ", ".join(f"**MISSED: {bound}**" if bound in broken else str(bound) for bound in row.bounds)
        shares = [Outcome.CONFIRMED, Outcome.REFUTED, Outcome.INCONCLUSIVE, ReasonCode.NO_HEADROOM]
        cells = [row.noise.name, planted(row.truth), str(tally.runs)]
        cells += [_percent(tally.share(share.value)) for share in shares]
        is_fair = row.truth.bias == 1 and row.truth.throttle is None
        cells.append(_percent(tally.share("covered")) if tally.timed and is_fair else "-")
        cells.append(f"{tally.mean_workers:.1f}" if tally.timed else "-")
        lines.append(f"| {' | '.join([*cells, bounds or 'none'])} |")
    return "\n".join(lines)


def planted(truth: Truth) -> str:
    """The truth in a few words."""
    words = "equal" if truth.gain == 1 else f"{100 * (truth.gain - 1):+.0f} %"
    if truth.ceiling != Truth.ceiling:
        words += f", ceiling {truth.ceiling:.2f}"
    if truth.bias != 1:
        words += f", bias {100 * (truth.bias - 1):+.1f} %"
    if truth.throttle is not None:
        both = " (and identical code)" if SHAM in truth.throttle.arms else ""
        words += f", {100 * truth.throttle.share:.0f} % slowed by {100 * truth.throttle.slowdown:.0f} %{both}"
    return words


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def report(questions: Sequence[Section], tallies: Tallies, *, head: str) -> str:
    """All tables in Markdown."""
    parts = [table(section, tallies[number]) for number, section in enumerate(questions)]
    return "\n\n".join([f"{head} Shares in per cent of runs.", *parts])


def written_below(marker: str, text: str, report: str) -> str:
    """A document with the report in the place of the last one.

    Raises:
        ValueError: the document has no such line.
    """
    above, found, _ = text.partition(marker)
    if not found:
        raise ValueError(f"no line {marker!r}")
    return f"{above}{marker}\n\n{report}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 1 when a bound is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.calibration", description="METHOD.md B8, items 1 to 5")
    parser.add_argument("--runs", type=int, default=1000, help="runs of a row; rates near a bound get twice as many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, metavar="FILE", help=f"replace what stands below `{MARKER}`")
    options = parser.parse_args(arguments)
    questions = list(sections(load_policy("standard"), load_policy("demo")))
    tallies = benchmark(questions, runs=options.runs, seed=options.seed)
    rows = [
        (row, tally)
        for number, section in enumerate(questions)
        for row, tally in zip(section.rows, tallies[number], strict=True)
    ]
    misses = sum(len(missed(row, tally)) for row, tally in rows)
    command = f"`python -m tests.calibration --runs {options.runs} --seed {options.seed}`"
    runs = sum(tally.runs for _, tally in rows)
    head = f"{datetime.date.today()}, {command}: {len(rows)} rows, {runs} runs, {misses} bounds missed."
    text = report(questions, tallies, head=head)
    print(text)
    if options.write:
        options.write.write_text(written_below(MARKER, options.write.read_text(), text))
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
