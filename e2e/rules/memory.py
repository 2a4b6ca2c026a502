"""What the memory figures say; they decide only under `objective: memory`."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from e2e import wording
from e2e.schema.evidence import Evidence, MemoryRecord
from e2e.schema.verdict import MemoryUse, MemoryVerdict, Reason
from e2e.schema.words import Outcome, ReasonCode, Stage
from e2e.units import Bytes, Ratio
from e2e.weighing import Case

CLEAR_OF_RANGE = 2
"""A saving is seen when it is this many times the range over processes. Source: METHOD.md B5.17."""
DISAGREE_RATIO = 0.05
"""Source: METHOD.md B7 (MEM_DISAGREE)."""
GROWTH_BYTES, GROWTH_RATIO, GROWTH_RATIO_ON_CPU = 2**20, 0.001, 0.01
"""Growth over a process's steps that is more than rounding by an allocator: size and share must be exceeded. The
resident set of a process, all that a CPU shows, wanders by more."""

_ON_DEVICE = {
    "peak_allocated_bytes": "peak of memory allocated by torch",
    "device_used_delta_bytes": "memory taken from the device",
}
"""A saving must show in both: torch does not see what a kernel allocates itself, the device not what torch caches."""
_ON_CPU = {"host_high_water_bytes": "resident high-water mark of the process"}
_FIGURES = [name for name in MemoryUse.model_fields if name != "processes"]


@dataclass(frozen=True)
class _Saving:
    """What one source says, as shares of the baseline's peak."""

    source: str
    ratio: Ratio
    """Above 0 the candidate needs less."""
    range_ratio: Ratio
    processes: int
    """Of the arm that has fewer."""

    def outcome(self, margin: Ratio) -> Outcome:
        """Whether the saving clears margin and range, or could not even with the range on top."""
        if self.ratio >= max(margin, CLEAR_OF_RANGE * self.range_ratio):
            return Outcome.CONFIRMED
        return Outcome.REFUTED if self.ratio + CLEAR_OF_RANGE * self.range_ratio < margin else Outcome.INCONCLUSIVE

    def __str__(self) -> str:
        return f"{self.source}: {_change(self.ratio)}, range {wording.percent(self.range_ratio)}"


def decided_by_memory(case: Case) -> Iterator[Reason]:
    """Less memory by every source, and a step that is not slower; a screen says only whether it is worth timing."""
    evidence, row = case.evidence, case.deciding
    asked = evidence.stage_asked
    if asked.rank < Stage.SCREEN.rank or not case.is_timed:
        return
    found = _outcome(case)
    figures = _figures_say(case)
    if found is Outcome.REFUTED:
        yield Reason(code=ReasonCode.MEMORY_NOT_REDUCED, message=figures)
        return
    if asked is Stage.SCREEN and not case.is_unfinished:
        is_open = found is Outcome.CONFIRMED
        code = ReasonCode.PROMISING if is_open else ReasonCode.MEMORY_UNCERTAIN
        yield Reason(code=code, message=f"{figures}; whether the step is slower, only a verdict says")
    if not case.is_at_verdict:
        return
    bound = f"bound {wording.ratio(1 - case.policy.memory.noninferiority)}"
    time = f"step {wording.estimate(row.speedup)} against {wording.arm(row.arm)}, {bound}" if row else "step not timed"
    if case.timing is Outcome.REFUTED:
        yield Reason(code=ReasonCode.REGRESSION, message=f"slower: {time}; {figures}")
    elif found is case.timing is Outcome.CONFIRMED:
        yield Reason(code=ReasonCode.MEMORY_REDUCED, message=f"{figures}; {time}")
    else:
        yield Reason(code=ReasonCode.MEMORY_UNCERTAIN, message=f"{figures}; {time}")


def sources_disagree(case: Case) -> Iterator[Reason]:
    """Torch's figure and the device's change by other amounts: somebody allocates past torch, or a cache hides it."""
    savings = _savings(case.evidence) if _is_on_device(case.evidence) else []
    ratios = [saving.ratio for saving in savings]
    if len(ratios) == len(_ON_DEVICE) and max(ratios) - min(ratios) > DISAGREE_RATIO:
        said = "; ".join(f"{saving.source}: {_change(saving.ratio)}" for saving in savings)
        yield Reason(code=ReasonCode.MEMORY_DISAGREES, message=f"{said} of the baseline's peak")


def grows(case: Case) -> Iterator[Reason]:
    """Memory in use rises over the candidate's steps in each of its processes, and not over the baseline's."""
    evidence = case.evidence
    mine = _records(evidence, evidence.candidate)
    if _is_growing(mine) and not _is_growing(_records(evidence, evidence.baseline)):
        least = min(record.growth_bytes or 0 for record in mine)
        steps = f"{mine[0].steps} steps" if mine[0].steps else "all steps"
        message = f"at least {wording.size(least)} more in use after {steps} than after the first few"
        yield Reason(code=ReasonCode.MEMORY_GROWS, message=message)


def memory_of(case: Case) -> MemoryVerdict:
    """Every figure of both arms; an outcome only where the policy asks for one and the arms are known."""
    evidence = case.evidence
    least = min(_savings(evidence), key=lambda saving: saving.ratio, default=None)
    asks = case.policy.objective == "memory" and evidence.stage_asked.rank >= Stage.SCREEN.rank and case.is_timed
    return MemoryVerdict(
        outcome=_outcome(case) if asks else None,
        baseline=_use(evidence, evidence.baseline),
        candidate=_use(evidence, evidence.candidate),
        reduction_ratio=least.ratio if least else None,
        range_ratio=least.range_ratio if least and least.processes > 1 else None,
        measure=least.source if least else "not measured",
    )


def _outcome(case: Case) -> Outcome:
    """What the figures say, all sources together; on a CPU nothing."""
    savings = _savings(case.evidence)
    if not _is_on_device(case.evidence) or not _has_enough(case, savings):
        return Outcome.INCONCLUSIVE
    found = {saving.outcome(case.policy.memory.margin) for saving in savings}
    return found.pop() if len(found) == 1 else Outcome.INCONCLUSIVE


def _has_enough(case: Case, savings: list[_Saving]) -> bool:
    needed = case.policy.memory.processes
    return len(savings) == len(_ON_DEVICE) and all(saving.processes >= needed for saving in savings)


def _figures_say(case: Case) -> str:
    """The savings beside the margin, or why there are none."""
    savings = _savings(case.evidence)
    if not _is_on_device(case.evidence):
        return "a CPU shows only the resident high-water mark of whole processes, which decides nothing"
    if not _has_enough(case, savings):
        done = min((saving.processes for saving in savings), default=0)
        return f"memory was seen by both sources in {done} of {case.policy.memory.processes} processes per arm"
    return f"{'; '.join(map(str, savings))} (margin {wording.percent(case.policy.memory.margin)})"


def _change(saving: Ratio) -> str:
    return f"{wording.percent(abs(saving))} {'less' if saving >= 0 else 'more'}"


def _savings(evidence: Evidence) -> list[_Saving]:
    """One for every source that showed both arms; of a device's all or none mean anything."""
    sources = _ON_DEVICE if _is_on_device(evidence) else _ON_CPU
    peak = _median(evidence, evidence.baseline, next(iter(sources)))
    found = [_saving(evidence, name, text, peak=peak) for name, text in sources.items()] if peak else []
    return [saving for saving in found if saving is not None]


def _saving(evidence: Evidence, name: str, source: str, *, peak: Bytes) -> _Saving | None:
    theirs, mine = (_values(evidence, arm, name) for arm in (evidence.baseline, evidence.candidate))
    if not theirs or not mine:
        return None
    change = statistics.median_low(theirs) - statistics.median_low(mine)
    widest = max(max(values) - min(values) for values in (theirs, mine))
    return _Saving(source, change / peak, widest / peak, min(len(theirs), len(mine)))


def _is_on_device(evidence: Evidence) -> bool:
    return evidence.device is not None and evidence.device.kind == "cuda"


def _is_growing(records: list[MemoryRecord]) -> bool:
    """In every process; one whose growth or peak is not known says nothing."""
    return bool(records) and all(map(_grew, records))


def _grew(record: MemoryRecord) -> bool:
    peak, share = record.peak_allocated_bytes, GROWTH_RATIO
    if peak is None:
        peak, share = record.host_high_water_bytes, GROWTH_RATIO_ON_CPU
    if record.growth_bytes is None or peak is None:
        return False
    return record.growth_bytes > max(GROWTH_BYTES, share * peak)


def _use(evidence: Evidence, arm: str | None) -> MemoryUse | None:
    records = _records(evidence, arm)
    if not records:
        return None
    return MemoryUse(processes=len(records), **{name: _median(evidence, arm, name) for name in _FIGURES})


def _median(evidence: Evidence, arm: str | None, name: str) -> Bytes | None:
    values = _values(evidence, arm, name)
    return statistics.median_low(values) if values else None


def _values(evidence: Evidence, arm: str | None, name: str) -> list[Bytes]:
    found = [getattr(record, name) for record in _records(evidence, arm)]
    return [value for value in found if value is not None]


def _records(evidence: Evidence, arm: str | None) -> list[MemoryRecord]:
    return [record for record in evidence.memory if record.arm == arm]
