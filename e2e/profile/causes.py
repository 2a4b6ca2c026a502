"""Why one arm's step takes another time than another arm's: the difference of two traces, cause by cause. Pure.

The changes add up to the difference of the two profiled steps: every kernel (on a CPU every operator) is counted in one
cause, and so is every gap of the device (on a CPU the time outside all operators).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from e2e.profile.timeline import Idle, Rows, Timeline
from e2e.schema.evidence import Cause, TraceChange, TraceDifference
from e2e.units import Ratio, Seconds

_COPIES = re.compile(
    r"memcpy|copy_kernel|copy_device_to_device|CatArrayBatchedCopy|aten::(copy_|_to_copy|to|clone|contiguous|cat)$",
    re.IGNORECASE,
)
_GENERATED = re.compile(r"^triton_|cpp_fused|CompiledFxGraph|Torch-Compiled Region|CompiledFunction")
"""What a compiler of torch's names its kernels, and their regions on a CPU."""
_REGISTERED = re.compile(r"^e2e_[0-9a-f]{8,}::")
"""The candidate as an operator, which compiled arms call, and eager training."""
_SAME_CALLS = 0.01
"""Calls per step that differ by less are as many."""
_NAMED = 2
"""Names that a note has, at most."""
_NAME = 48


@dataclass
class _Bucket:
    seconds: Seconds = 0.0
    calls: float = 0.0
    names: list[tuple[Seconds, str]] = field(default_factory=list)

    def add(self, name: str, seconds: Seconds, calls: float) -> None:
        self.seconds += seconds
        self.calls += calls
        self.names.append((-abs(seconds), name))

    @property
    def largest(self) -> str:
        """The names that matter most."""
        shown = ", ".join(_short(name) for _, name in sorted(self.names)[:_NAMED])
        return f"{shown} and {len(self.names) - _NAMED} more" if len(self.names) > _NAMED else shown


def difference_of(arm: Timeline, candidate: Timeline, *, kernels: Collection[str] = ()) -> TraceDifference | None:
    """The candidate's step against that arm's; None where a trace does not show its steps.

    `kernels`: names of the candidate's own, for arms whose traces have no ranges around the op's calls.
    """
    if arm.step_s is None or candidate.step_s is None:
        return None
    has_device = arm.busy_s is not None and candidate.busy_s is not None
    changes = [*_in_rows(arm, candidate, kernels), *(_waiting(arm, candidate) if has_device else ())]
    left = candidate.step_s - arm.step_s - sum(change.seconds for change in changes)
    changes.append(TraceChange(cause="overlap" if has_device else "host", seconds=left))
    return TraceDifference(
        arm=arm.record.arm,
        step_s=arm.step_s,
        candidate_step_s=candidate.step_s,
        spread_s=max(arm.spread_s, candidate.spread_s),
        idle_ratio=_idle_ratio(arm),
        candidate_idle_ratio=_idle_ratio(candidate),
        op_s=_op_s(arm),
        candidate_op_s=_op_s(candidate),
        changes=[change for change in changes if change.seconds],
    )


def own_kernels(candidate: Timeline, shipped: Timeline) -> set[str]:
    """Names of device kernels that only the candidate's calls of the op launch, from eager traces of both."""
    return set() if candidate.op is None else set(candidate.op.rows) - set(shipped.rows)


# ---- What ran


def _in_rows(arm: Timeline, candidate: Timeline, kernels: Collection[str]) -> Iterator[TraceChange]:
    before, after = dict(arm.rows), dict(candidate.rows)
    if arm.op is not None and candidate.op is not None:
        before, after = _without(before, arm.op.rows), _without(after, candidate.op.rows)
        yield TraceChange(cause="op", seconds=(_op_s(candidate) or 0.0) - (_op_s(arm) or 0.0))
    elif own := {name: after.pop(name) for name in list(after) if name in kernels or _REGISTERED.search(name)}:
        calls, seconds = (sum(row[place] for row in own.values()) for place in (0, 1))
        note = f"{calls:,.0f} calls of the kernel's own; what they replace is under other causes"
        yield TraceChange(cause="op", seconds=seconds, note=note)
    buckets = _sorted_out(before, after)
    for cause, bucket in buckets.items():
        yield TraceChange(cause=cause, seconds=bucket.seconds, note=_note(cause, bucket, before, after))


def _sorted_out(before: Rows, after: Rows) -> dict[Cause, _Bucket]:
    """Every name under its cause."""
    found: dict[Cause, _Bucket] = {}
    for name in sorted({*before, *after}):
        then, now = before.get(name, (0.0, 0.0)), after.get(name, (0.0, 0.0))
        calls, seconds = now[0] - then[0], now[1] - then[1]
        is_in_both = name in before and name in after
        if abs(calls) < _SAME_CALLS:
            found.setdefault("neighbours", _Bucket()).add(name, seconds, 0.0)
        elif _COPIES.search(name):
            found.setdefault("copies", _Bucket()).add(name, seconds, calls)
        elif is_in_both:
            by_number = calls * then[1] / then[0]
            found.setdefault("calls", _Bucket()).add(name, by_number, calls)
            found.setdefault("neighbours", _Bucket()).add(name, seconds - by_number, 0.0)
        else:
            cause: Cause = "fusion" if _GENERATED.search(name) else "algorithm"
            found.setdefault(cause, _Bucket()).add(name, seconds, calls)
    return found


def _note(cause: Cause, bucket: _Bucket, before: Rows, after: Rows) -> str:
    if cause in ("fusion", "algorithm"):
        names = [name for _, name in bucket.names]
        gone, new = sum(name in before for name in names), sum(name in after for name in names)
        return f"{gone} gone, {new} new: {bucket.largest}"
    if cause == "neighbours":
        return bucket.largest
    return f"{bucket.calls:+,.1f} calls: {bucket.largest}".replace(".0 calls", " calls")


def _without(rows: Rows, inside: Rows) -> dict[str, tuple[float, Seconds]]:
    """Those outside the op; a name may be inside it as well as outside."""
    found = {}
    for name, (calls, seconds) in rows.items():
        taken = inside.get(name, (0.0, 0.0))
        if calls - taken[0] >= _SAME_CALLS:
            found[name] = (calls - taken[0], seconds - taken[1])
    return found


def _op_s(seen: Timeline) -> Seconds | None:
    """In the op, per step: of the device where it has events, else of the host."""
    if seen.op is None:
        return None
    return seen.op.host_s if seen.busy_s is None else sum(seconds for _, seconds in seen.op.rows.values())


def _short(name: str) -> str:
    """A kernel's name without its template arguments: they are longer than a line."""
    bare = re.sub(r"^void |\(anonymous namespace\)::", "", name).partition("<")[0] or name
    return bare if len(bare) <= _NAME else bare[: _NAME - 3] + "..."


# ---- What the device waited for


def _waiting(arm: Timeline, candidate: Timeline) -> Iterator[TraceChange]:
    """Gaps of the device, by what the host did in them."""
    then, now = arm.idle, candidate.idle
    if then is None or now is None:
        return
    yield TraceChange(cause="syncs", seconds=now.syncs - then.syncs)
    yield TraceChange(cause="allocator", seconds=now.allocator - then.allocator)
    yield TraceChange(cause="host_per_call", seconds=now.op - then.op, note=_per_call(arm, candidate))
    yield TraceChange(cause="idle", seconds=now.other - then.other)


def _per_call(arm: Timeline, candidate: Timeline) -> str:
    parts = [f"{1e6 * seen.op.host_s / seen.op.calls:.1f} us" for seen in (candidate, arm) if seen.op and seen.op.calls]
    return f"a call takes the host {parts[0]}, {parts[1]} without the kernel" if len(parts) > 1 else ""


def _idle_ratio(seen: Timeline) -> Ratio | None:
    if seen.idle is None or not seen.step_s:
        return None
    return _whole(seen.idle) / seen.step_s


def _whole(idle: Idle) -> Seconds:
    return idle.syncs + idle.allocator + idle.op + idle.other
