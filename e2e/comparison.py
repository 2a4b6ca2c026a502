"""Two runs side by side: what moved between them, or why they cannot be compared. Pure.

Comparable is one workload in the same cells: with one kernel, then the environment may differ and the question is what
it changed; or in one environment, then the kernels may differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from e2e import stats
from e2e.errors import UsageError
from e2e.schema.evidence import Evidence
from e2e.schema.result import CellResult, Result
from e2e.schema.verdict import Against, Estimate
from e2e.story import Story, headline, tell
from e2e.story_sections import Section, Table
from e2e.wording import ABSENT, arm, clean, duration, estimate, opponent, percent, size

_ENVIRONMENT = ("device", "driver", "threads")
_PACKAGES = ("torch", "transformers", "triton")
_WORDS = {"name", "description", "policy"}
"""Fields of a workload that change nothing of what runs."""
_LEVEL = 0.95
"""Two-sided confidence with which a difference between the runs is called one."""


@dataclass(frozen=True)
class _Change:
    """Time of A over time of B, or ratio of B over ratio of A: above 1 B is better."""

    factor: float
    lower: float | None
    upper: float | None

    @property
    def is_shown(self) -> bool:
        """Whether the workers of the two runs differ by more than they differ among themselves."""
        return self.lower is not None and self.upper is not None and not self.lower <= 1 <= self.upper


def compare(first: Result, second: Result) -> Story:
    """The story of two runs.

    Raises:
        UsageError: they cannot be compared; the message has what differs.
    """
    barriers, environment, kernels = (
        _barriers(first, second),
        _moved_environment(first, second),
        _kernels(first, second),
    )
    if environment and kernels:
        barriers.append(f"both kernel and environment differ ({'; '.join([*kernels, *environment])})")
    if barriers:
        raise UsageError(f"{first.run_id} and {second.run_id} cannot be compared: {'; '.join(barriers)}")
    differs = [*environment, *kernels, *_choices(first, second)]
    pairs = list(zip(first.cells, second.cells, strict=True))
    told = [line for a, b in pairs for line in _findings(a, b, is_many=len(pairs) > 1, one_kernel=not kernels)]
    sections = [_section(a, b, many=len(pairs) > 1) for a, b in pairs]
    return Story(
        tone="open",
        outcome=f"COMPARED: {_question(environment, kernels)}",
        subject=clean(tell(second).subject),
        asked="tested",
        sentence=None,
        marks=tuple(clean(f"differs: {line}") for line in differs),
        reasons=tuple(map(clean, told)),
        sections=(_runs(first, second), *sections),
        footer=(
            "A difference is shown where it exceeds what the workers of both runs differ among themselves.",
            "Two runs are two occasions: whatever else changed between them is in it.",
        ),
    )


def _question(environment: Sequence[str], kernels: Sequence[str]) -> str:
    if environment:
        return "one kernel in two environments"
    return "two kernels in one environment" if kernels else "one kernel in one environment, twice"


# ---- What differs

_FIELDS_TOLD = 5
"""Differing fields that a refusal names: two workloads of other models differ in dozens."""


def _barriers(first: Result, second: Result) -> list[str]:
    found = []
    is_again = second.again == first.run_id or first.again == second.run_id
    for run in (first, second):
        if run.error is not None:
            found.append(f"{run.run_id} ended early")
        elif not is_again and not any(cell.verdict.latency.against for cell in run.cells):
            found.append(f"{run.run_id} has no timed verdict")
    if first.method != second.method:
        found.append(f"measured by method {first.method} and {second.method}")
    if fields := list(_fields(first, second)):
        more = [f"and {len(fields) - _FIELDS_TOLD} more"] if len(fields) > _FIELDS_TOLD else []
        found.append(f"other workloads ({', '.join([*fields[:_FIELDS_TOLD], *more])})")
    elif [cell.cell for cell in first.cells] != [cell.cell for cell in second.cells]:
        found.append("not the same cells were finished")
    return found


def _fields(first: Result, second: Result) -> Iterator[str]:
    """What differs of the question itself: `cells.batch [8] and [2]`."""
    whole = [run.workload.model_dump(mode="json", exclude=_WORDS) if run.workload else {} for run in (first, second)]
    flat = [dict(_flat(fields)) for fields in whole]
    for name in dict.fromkeys([*flat[0], *flat[1]]):
        if flat[0].get(name) != flat[1].get(name):
            yield f"{name} {flat[0].get(name)} and {flat[1].get(name)}"


def _flat(fields: dict[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _moved_environment(first: Result, second: Result) -> list[str]:
    """What decides how a step runs, as far as both runs recorded it."""
    then, now = _surroundings(first), _surroundings(second)
    both = [name for name in then if None not in (then[name], now.get(name))]
    return [f"{name} {then[name]} -> {now[name]}" for name in both if then[name] != now[name]]


def _surroundings(run: Result) -> dict[str, object]:
    packages = run.environment.get("packages")
    packages = packages if isinstance(packages, dict) else {}
    return {name: packages.get(name) for name in _PACKAGES} | {name: run.environment.get(name) for name in _ENVIRONMENT}


def _kernels(first: Result, second: Result) -> list[str]:
    then, now = ([f"{kernel.spec} ({kernel.sha256[:12]})" for kernel in run.kernels] for run in (first, second))
    hashes = [[kernel.sha256 for kernel in run.kernels] for run in (first, second)]
    return [] if hashes[0] == hashes[1] else [f"kernel {', '.join(then)} -> {', '.join(now)}"]


def _choices(first: Result, second: Result) -> list[str]:
    """What was asked of the same workload, and does not bar a comparison."""
    names = [run.policy.name if run.policy else "none" for run in (first, second)]
    if first.policy == second.policy:
        return []
    return [f"policy {names[0]} -> {names[1]}" if names[0] != names[1] else f"fields of policy {names[0]}"]


# ---- What moved


def _findings(a: CellResult, b: CellResult, *, is_many: bool, one_kernel: bool) -> Iterator[str]:
    """In sentences, as people ask: PyTorch, the kernel, and what that does to the ratio."""
    prefix = f"{a.cell.title}: " if is_many else ""
    rows = _opponents(a, b)
    for name, first, second in _opposing_arms(a, b)[:1]:
        yield f"{prefix}{opponent(name)} ({_arms(first, second)}) {_said(_step_change(a, b, first, second))}"
    if a.evidence.candidate is not None and b.evidence.candidate is not None:
        change = _step_change(a, b, a.evidence.candidate, b.evidence.candidate)
        what = "the step with the kernel" if one_kernel else "the step with B's kernel instead of A's"
        yield f"{prefix}{what} ({_arms(a.evidence.candidate, b.evidence.candidate)}) {_said(change)}"
    for mine, theirs in rows[:1]:
        word = _shown(_ratio_change(mine.speedup, theirs.speedup))
        yield f"{prefix}the ratio went from {estimate(mine.speedup)} to {estimate(theirs.speedup)}: {word}"


def _opposing_arms(a: CellResult, b: CellResult) -> list[tuple[str, str, str]]:
    """Opponent, and its arm in both runs; where one run ended before a verdict the arms that its pilot chose."""
    rows = [(mine.opponent, mine.arm, theirs.arm) for mine, theirs in _opponents(a, b)]
    first, second = a.evidence.baseline, b.evidence.baseline
    return rows or ([("best_pytorch", first, second)] if first is not None and second is not None else [])


def _said(change: _Change | None) -> str:
    """`got 6.1 % faster (5.8 to 6.4)`; `shows no difference, and none above 0.4 %`."""
    if change is None:
        return "has no times in both runs"
    if change.lower is None or change.upper is None:
        return f"got {_faster(change)}, from too few workers to say whether that is a difference"
    if not change.is_shown:
        widest = max(change.upper - 1, 1 - change.lower)
        return f"shows no difference, and none above {percent(widest, digits=2)}"
    ends = sorted(abs(end - 1) * 100 for end in (change.lower, change.upper))
    return f"got {_faster(change)} ({' to '.join(f'{end:.2g}' for end in ends)})"


def _faster(change: _Change) -> str:
    """By the change of speed: twice as fast is 100 % faster."""
    return f"{percent(abs(change.factor - 1), digits=2)} {'faster' if change.factor > 1 else 'slower'}"


def _shown(change: _Change) -> str:
    return "a difference is shown" if change.is_shown else "no difference shown"


def _arms(first: str, second: str) -> str:
    return arm(first) if first == second else f"{arm(first)} -> {arm(second)}"


def _opponents(a: CellResult, b: CellResult) -> list[tuple[Against, Against]]:
    """Rows of the same opponent, in the first run's order: `best_pytorch` may be another arm in each."""
    others = {row.opponent: row for row in b.verdict.latency.against}
    return [(row, others[row.opponent]) for row in a.verdict.latency.against if row.opponent in others]


def _step_change(a: CellResult, b: CellResult, first: str, second: str) -> _Change | None:
    """By medians of worker processes, with Welch's interval between the runs."""
    then, now = _log_steps(a.evidence, first), _log_steps(b.evidence, second)
    if not then or not now:
        return None
    difference = math.fsum(then) / len(then) - math.fsum(now) / len(now)
    return _change(difference, [_squared_error(values) for values in (then, now)], min(len(then), len(now)))


def _log_steps(evidence: Evidence, name: str) -> list[float]:
    """Of every worker process: of the verdict's, or, where there was none, of those that found the ceiling."""
    workers: dict[str, dict[int, list[float]]] = {"verdict": {}, "ceiling": {}, "pilot": {}}
    for segment in evidence.segments:
        if segment.arm == name and segment.seconds > 0 and segment.steps > 0:
            workers[segment.phase].setdefault(segment.worker, []).append(segment.seconds / segment.steps)
    return [math.log(median(values)) for values in (workers["verdict"] or workers["ceiling"]).values()]


def _squared_error(values: Sequence[float]) -> float | None:
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values)


def _ratio_change(then: Estimate, now: Estimate) -> _Change:
    looks = [item.look or 0 for item in (then, now)]
    errors = [
        (stats.worker_sd_of(item) ** 2 / look) if look >= 2 else None
        for item, look in zip((then, now), looks, strict=True)
    ]
    return _change(math.log(now.point_estimate / then.point_estimate), errors, min(looks))


def _change(difference: float, squared_errors: Sequence[float | None], workers: int) -> _Change:
    """Degrees of freedom of the smaller run, which errs on the side of calling too little a difference."""
    known = [error for error in squared_errors if error is not None]
    if len(known) < len(squared_errors):
        return _Change(math.exp(difference), None, None)
    half = stats.t_quantile((1 + _LEVEL) / 2, workers - 1) * math.sqrt(math.fsum(known))
    return _Change(math.exp(difference), math.exp(difference - half), math.exp(difference + half))


# ---- Tables


def _runs(first: Result, second: Result) -> Section:
    rows = []
    for letter, run in (("A", first), ("B", second)):
        rows.append((letter, clean(run.created[:16]), clean(run.run_id), headline(run)))
    return Section("Runs", Table(("", "made", "run", "verdict"), tuple(rows)))


def _section(a: CellResult, b: CellResult, *, many: bool) -> Section:
    rows = [*_step_rows(a, b), *_ratio_rows(a, b), *_other_rows(a, b)]
    title = f"{a.cell.title}: what moved" if many else "What moved"
    return Section(title, Table(("", "A", "B", "B against A"), tuple(rows)))


def _step_rows(a: CellResult, b: CellResult) -> Iterator[tuple[str, ...]]:
    """Every opponent that both runs timed, then the two candidates."""
    rows = [(_arms(first, second), first, second) for _, first, second in _opposing_arms(a, b)]
    mine, theirs = a.evidence.candidate, b.evidence.candidate
    rows += [(f"kernel, {_arms(mine, theirs)}", mine, theirs)] if mine is not None and theirs is not None else []
    for title, first, second in rows:
        steps = duration(_step_s(a.evidence, first)), duration(_step_s(b.evidence, second))
        yield f"step: {title}", *steps, _short(_step_change(a, b, first, second))


def _step_s(evidence: Evidence, name: str) -> float | None:
    found = _log_steps(evidence, name)
    return math.exp(math.fsum(found) / len(found)) if found else None


def _short(change: _Change | None) -> str:
    if change is None:
        return ABSENT
    return _faster(change) if change.is_shown else "no difference shown"


def _ratio_rows(a: CellResult, b: CellResult) -> Iterator[tuple[str, ...]]:
    names = {"best_pytorch": "ratio: strongest PyTorch", "as_shipped": "ratio: eager as shipped"}
    for mine, theirs in _opponents(a, b):
        title = names.get(mine.opponent) or clean(f"ratio: {mine.opponent}", 40)
        word = _shown(_ratio_change(mine.speedup, theirs.speedup))
        yield title, _bounds(mine.speedup), _bounds(theirs.speedup), word
    first, second = a.verdict.latency, b.verdict.latency
    yield "ratio: identical code", _bounds(first.sham), _bounds(second.sham), ""
    yield "ratio: any kernel at most", _bounds(first.ceiling), _bounds(second.ceiling), ""


def _bounds(value: Estimate | None) -> str:
    if value is None:
        return ABSENT
    return f"{value.point_estimate:.3f}x ({value.lower_bound:.3f} to {value.upper_bound:.3f})"


def _other_rows(a: CellResult, b: CellResult) -> Iterator[tuple[str, ...]]:
    for title, name in (("PyTorch", "baseline"), ("kernel", "candidate")):
        used = [getattr(cell.verdict.memory, name) for cell in (a, b)]
        peaks = [arms.peak_allocated_bytes if arms else None for arms in used]
        if any(peak is not None for peak in peaks):
            yield f"peak memory: {title}", *map(size, peaks), ""
    errors = [cell.verdict.numerics.model_ratio for cell in (a, b)]
    if any(error is not None for error in errors):
        yield "model's error over PyTorch's", *(ABSENT if error is None else f"{error:.3f}x" for error in errors), ""
