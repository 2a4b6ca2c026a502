"""Parent side: stores a trace for people and for TensorBoard, and reads tables back from it. JSON only."""

from __future__ import annotations

import gzip
import json
import math
from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.handed import UnreadableFile, content_of
from e2e.profile.spans import Span, common, gaps, holds, length_of, merged
from e2e.schema.evidence import KernelTime, TraceRecord
from e2e.units import Seconds

MAX_TRACE_BYTES = 256 * 2**20
"""A larger raw trace is not read: a few steps of an honest model stay far below."""
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver", "runtime")
STEP = "e2e step"
"""Name of the range around each profiled step, which ends when the device has nothing left to do."""
MODULE = "e2e module: "
"""Begins the name of a range around a module's forward; its qualified name and its class follow."""
SITE = "e2e op: "
"""Begins the name of a range around a call of the op; the qualified name of its site follows."""
_HOST_TYPE = 0
"""What the profiler calls the host among device types."""
SLICES = 80
"""Of a step, in which the most memory is noted."""
REST, BACKWARD, OPTIMIZER = "forward and the rest", "backward", "optimizer"
"""Phases of a training step."""
_PHASES = {"autograd::engine::evaluate_function": BACKWARD, "Optimizer.step#": OPTIMIZER, STEP: REST}
"""By the beginnings of the names of torch's own ranges around them."""
_SYNCS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cuStreamSynchronize", "cudaMemcpy")
_ALLOCATOR = ("cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaFreeHost", "cuMemAlloc", "cuMemFree", "cuMemMap")
"""Host calls by the beginnings of their names; the first ones exactly."""
_RENAMED = {"cuda_runtime": "runtime", "cuda_driver": "runtime"}
"""torch-tb-profiler 0.4.3 knows only `runtime`; under the new names every operator shows 0 device time."""


@dataclass(frozen=True)
class RangeTime:
    """One operator or module, per step: of kernels launched in it where there are device events, else of the host."""

    calls: float
    own_s: Seconds
    """Without what others of its kind inside it took."""
    total_s: Seconds


Rows = Mapping[str, tuple[float, Seconds]]
"""By device kernel (or operator on a CPU): calls and seconds per step; operators by their own time."""


@dataclass(frozen=True)
class OpShare:
    """What happened inside the ranges around the op's calls, per step."""

    calls: float
    host_s: Seconds
    """The ranges themselves: on a CPU all of the op."""
    rows: Rows
    """Kernels launched there, operators on a CPU."""


@dataclass(frozen=True)
class Idle:
    """Time per step in which the device ran nothing, by what the host did meanwhile."""

    syncs: Seconds
    """Gaps in which the host came back from waiting for the device."""
    allocator: Seconds
    """The driver's allocator was at work."""
    op: Seconds
    """The host was inside a call of the op."""
    other: Seconds


@dataclass(frozen=True)
class Timeline:
    """What one trace says, per step."""

    record: TraceRecord
    rows: Rows
    operators: Mapping[str, float]
    """By operator: calls per step."""
    busy_ratio: float | None
    """Share of the device's span in which a kernel ran; None without device events."""
    busy_s: Seconds | None = None
    """Seconds per step in which a kernel ran; None without device events."""
    within: Mapping[str, RangeTime] = field(default_factory=dict)
    """By operator; empty where nothing can be said of them."""
    modules: Mapping[str, RangeTime] = field(default_factory=dict)
    """By qualified name and class, where the trace has their ranges; empty where nothing can be said of them."""
    phases: Mapping[str, RangeTime] = field(default_factory=dict)
    """Of a training step, by their names; own times sum to what is known of the step."""
    step_s: Seconds | None = None
    """A profiled step, from the ranges around them; None where the trace has none."""
    spread_s: Seconds = 0.0
    """From the shortest of them to the longest."""
    op: OpShare | None = None
    """None where the trace has no ranges around the op's calls: in compiled arms, graphs and training."""
    idle: Idle | None = None
    """None without device events, and without ranges around the steps."""


def store(raw: Path, folder: Path, *, arm: str, steps: int) -> Timeline:
    """Compress the raw trace into `folder`, write TensorBoard's copy, and read both tables.

    Raises:
        ValueError: the trace is too large, or is not a trace.
    """
    try:
        content = json.loads(content_of(raw, limit=MAX_TRACE_BYTES))
    except OSError as error:
        raise ValueError(f"the trace of {arm} was not written") from error
    except UnreadableFile as error:
        raise ValueError(f"the trace of {arm} was not read: {error}") from error
    except RecursionError as error:
        raise ValueError(f"the trace of {arm} is nested too deeply") from error
    events = content.get("traceEvents") if isinstance(content, dict) else None
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise ValueError(f"the trace of {arm} holds no events")
    folder.mkdir(parents=True, exist_ok=True)
    name = folder_name(arm)
    path = folder / f"{name}.pt.trace.json.gz"
    _write(path, content)
    for_plugin = folder / "tensorboard" / name
    for_plugin.mkdir(parents=True, exist_ok=True)
    renamed = [{**event, "cat": _RENAMED.get(str(event.get("cat", "")), event.get("cat", ""))} for event in events]
    _write(for_plugin / "worker.1.pt.trace.json.gz", {**content, "traceEvents": renamed})
    raw.unlink()
    return read(events, arm=arm, steps=steps, path=f"{folder.name}/{path.name}")


def folder_name(arm: str) -> str:
    """How an arm's files and TensorBoard's runs are called."""
    return arm.replace(":", ".").replace("+", ".")


def read(events: list[Any], *, arm: str, steps: int, path: str) -> Timeline:
    """Tables of a trace's events."""
    spans = [event for event in events if _is_span(event)]
    device = [event for event in spans if event.get("cat") in _DEVICE]
    operators = [event for event in spans if event.get("cat") == "cpu_op"]
    totals = _totals(device) if device else _own_times(operators)
    calls: dict[str, float] = defaultdict(float)
    for event in operators:
        calls[str(event["name"])] += 1 / steps
    rows = {name: (count / steps, seconds / steps) for name, (count, seconds) in totals.items()}
    busy = merged(map(_ends, device))
    busy_us, span_us = length_of(busy), busy[-1][1] - busy[0][0] if busy else 0.0
    ranges = [event for event in spans if event.get("cat") == "user_annotation"]
    modules = [event for event in ranges if str(event["name"]).startswith(MODULE)]
    launches = _launches(spans, device) if device else None
    steps_us = [_ends(event) for event in ranges if event["name"] == STEP]
    lengths = [end - start for start, end in steps_us]
    sites = [event for event in ranges if str(event["name"]).startswith(SITE)]
    record = TraceRecord(
        arm=arm,
        path=path,
        events=len(events),
        device_events=len(device),
        steps=steps,
        memory_bytes=_memory(events, min(steps_us), on_device=bool(device)) if steps_us else [],
    )
    return Timeline(
        record,
        rows,
        dict(calls),
        busy_ratio=busy_us / max(span_us, 1e-9) if device else None,
        busy_s=busy_us / 1e6 / steps if device else None,
        within=_times_in(operators, launches, steps),
        modules={name.removeprefix(MODULE): found for name, found in _times_in(modules, launches, steps).items()},
        phases=_phases([*operators, *ranges], launches, steps),
        step_s=sum(lengths) / 1e6 / steps if lengths else None,
        spread_s=(max(lengths) - min(lengths)) / 1e6 if lengths else 0.0,
        op=_op_share(sites, spans, device, operators, steps) if sites else None,
        idle=_idle(steps_us, busy, spans, sites, steps) if device and steps_us else None,
    )


def difference(baseline: Timeline, candidate: Timeline) -> list[KernelTime]:
    """Rows of both arms side by side, largest change first."""
    rows = []
    for name in {*baseline.rows, *candidate.rows}:
        before, after = baseline.rows.get(name), candidate.rows.get(name)
        calls = (after or before or (0.0, 0.0))[0]
        rows.append(
            KernelTime(
                name=name,
                calls=round(calls),
                baseline_s=before[1] if before else None,
                candidate_s=after[1] if after else None,
            )
        )
    return sorted(rows, key=lambda row: (-abs((row.candidate_s or 0.0) - (row.baseline_s or 0.0)), row.name))


def new_names(baseline: Timeline, candidate: Timeline) -> list[str]:
    """Device kernels (operators on a CPU) of the candidate's trace that the baseline's does not have."""
    before = {*baseline.rows, *baseline.operators}
    return sorted(name for name in {*candidate.rows, *candidate.operators} if name not in before)


def _is_span(event: Mapping[str, Any]) -> bool:
    """Whether it has a name, a start and a length; the file comes from a process that holds a candidate."""
    numbers = (event.get("ts"), event.get("dur"))
    finite = all(isinstance(number, int | float) and math.isfinite(number) for number in numbers)
    return event.get("ph") == "X" and "name" in event and finite and float(event["dur"]) >= 0


def _write(path: Path, content: Mapping[str, Any]) -> None:
    with gzip.open(path, "wt", encoding="utf-8", compresslevel=5) as file:
        json.dump(content, file)


def _totals(events: Iterable[Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}
    for event in events:
        count, seconds = found.get(str(event["name"]), (0.0, 0.0))
        found[str(event["name"])] = (count + 1, seconds + float(event["dur"]) / 1e6)
    return found


def _own_times(events: list[Any]) -> dict[str, tuple[float, float]]:
    """Operators by their own time: what their children took is the children's."""
    found: dict[str, tuple[float, float]] = {}
    threads: dict[Any, list[Any]] = defaultdict(list)
    for event in events:
        threads[event.get("tid")].append(event)
    for thread in threads.values():
        stack: list[tuple[float, str]] = []
        for event in sorted(thread, key=lambda item: (float(item["ts"]), -float(item["dur"]))):
            start, took, name = float(event["ts"]), float(event["dur"]), str(event["name"])
            while stack and stack[-1][0] <= start:
                stack.pop()
            if stack:
                count, seconds = found[stack[-1][1]]
                found[stack[-1][1]] = (count, seconds - took / 1e6)
            count, seconds = found.get(name, (0.0, 0.0))
            found[name] = (count + 1, seconds + took / 1e6)
            stack.append((start + took, name))
    return found


def _ends(event: Mapping[str, Any]) -> Span:
    return float(event["ts"]), float(event["ts"]) + float(event["dur"])


def _memory(events: list[Any], step: Span, *, on_device: bool) -> list[int]:
    """Bytes allocated beyond those at the step's beginning, the most in each slice of it."""
    start, end = step
    changes = deque(sorted(change for change in _allocations(events, on_device) if start <= change[0] < end))
    found, now = [], 0
    for number in range(SLICES) if changes else ():
        until, most = start + (end - start) * (number + 1) / SLICES, now
        while changes and changes[0][0] < until:
            now += changes.popleft()[1]
            most = max(most, now)
        found.append(most)
    return found


def _allocations(events: list[Any], on_device: bool) -> Iterator[tuple[float, int]]:
    """Moment and bytes, below 0 where they are given back."""
    for event in events:
        args, moment = event.get("args"), event.get("ts")
        if event.get("name") == "[memory]" and isinstance(args, dict) and isinstance(moment, int | float):
            size, kind = args.get("Bytes"), args.get("Device Type")
            if isinstance(size, int) and isinstance(kind, int) and (kind != _HOST_TYPE) is on_device:
                yield float(moment), size


# ---- The op, and what the host does while the device waits


def _op_share(sites: list[Any], spans: list[Any], device: list[Any], operators: list[Any], steps: int) -> OpShare:
    """Kernels whose launch lies in a range, or on a CPU the operators that do."""
    threads: dict[Any, list[Span]] = defaultdict(list)
    for event in sites:
        threads[event.get("tid")].append(_ends(event))
    inside = {thread: merged(own) for thread, own in threads.items()}

    def is_inside(thread: Any, moment: float) -> bool:
        return holds(inside.get(thread, []), moment)

    if device:
        places = _launch_places(spans)
        launched = [(event, places.get(_correlation(event) or -1)) for event in device]
        totals = _totals(event for event, place in launched if place is not None and is_inside(*place))
    else:
        totals = _own_times([event for event in operators if is_inside(event.get("tid"), float(event["ts"]))])
    host_us = sum(map(length_of, inside.values()))
    rows = {name: (count / steps, seconds / steps) for name, (count, seconds) in totals.items()}
    return OpShare(len(sites) / steps, host_us / 1e6 / steps, rows)


def _idle(steps_us: list[Span], busy: list[Span], spans: list[Any], sites: list[Any], steps: int) -> Idle:
    """Gaps of the device inside the steps. One in which a wait of the host ended is that wait's, whole."""
    calls = [event for event in spans if event.get("cat") in _LAUNCHES]
    waits = sorted(_ends(event)[1] for event in calls if event["name"] in _SYNCS)
    in_allocator = merged(_ends(event) for event in calls if str(event["name"]).startswith(_ALLOCATOR))
    in_op = gaps(merged(map(_ends, sites)), in_allocator)
    found = gaps(merged(steps_us), busy)
    others = [gap for gap in found if bisect_left(waits, gap[0]) == bisect_right(waits, gap[1])]
    allocator, op = (length_of(common(others, place)) for place in (in_allocator, in_op))
    whole, scale = length_of(others), 1e6 * steps
    return Idle((length_of(found) - whole) / scale, allocator / scale, op / scale, (whole - allocator - op) / scale)


_Launch = tuple[Any, float, float]
"""The host's thread, when it launched something, and how long that ran on the device."""


def _times_in(ranges: list[Any], launches: list[_Launch] | None, steps: int) -> dict[str, RangeTime]:
    """Time of every range: of what was launched in it, or without a device its own.

    Nothing where kernels do not name their launches.
    """
    if launches == []:
        return {}
    calls: dict[str, int] = defaultdict(int)
    own: dict[str, float] = defaultdict(float)
    total: dict[str, float] = defaultdict(float)
    threads: dict[Any, list[Any]] = defaultdict(list)
    for event in ranges:
        calls[str(event["name"])] += 1
        threads[event.get("tid")].append(event)
    for thread, mine in threads.items():
        marks = [(start, length) for place, start, length in launches or () if place == thread]
        for names, length in _own_of(mine) if launches is None else _inside(mine, marks):
            own[names[-1]] += length
            for name in set(names):
                total[name] += length
    return {
        name: RangeTime(count / steps, own[name] / 1e6 / steps, total[name] / 1e6 / steps)
        for name, count in calls.items()
    }


def _phases(ranges: list[Any], launches: list[_Launch] | None, steps: int) -> dict[str, RangeTime]:
    """Nothing where the trace is of no training step."""
    named = [
        {**event, "name": phase}
        for event in ranges
        for beginning, phase in _PHASES.items()
        if str(event["name"]).startswith(beginning)
    ]
    found = _times_in(named, launches, steps)
    return found if BACKWARD in found else {}


def _launches(spans: list[Any], device: list[Any]) -> list[_Launch]:
    """Of every device event whose launch is in the trace."""
    places = _launch_places(spans)
    launched = [(_correlation(event), float(event["dur"])) for event in device]
    return [(*places[number], length) for number, length in launched if number is not None and number in places]


def _launch_places(spans: list[Any]) -> dict[int, tuple[Any, float]]:
    """Thread and moment of every launch, by the number that its device events have too."""
    return {
        number: (event.get("tid"), float(event["ts"]))
        for event in spans
        if event.get("cat") in _LAUNCHES and (number := _correlation(event)) is not None
    }


def _correlation(event: Mapping[str, Any]) -> int | None:
    args = event.get("args")
    number = args.get("correlation") if isinstance(args, dict) else None
    return number if isinstance(number, int) else None


_Named = tuple[tuple[str, ...], float]
"""Names of the ranges around something, outermost first, and how long it took."""


def _inside(ranges: list[Any], marks: list[tuple[float, float]]) -> Iterator[_Named]:
    """Ranges around each mark; a mark is a moment and a length of its own. Those in no range are left out."""
    stack: list[tuple[float, str]] = []
    waiting = deque(sorted(ranges, key=_outer_first))
    for moment, length in sorted(marks):
        while waiting and float(waiting[0]["ts"]) <= moment:
            _enter(stack, waiting.popleft())
        while stack and stack[-1][0] < moment:
            stack.pop()
        if stack:
            yield tuple(name for _, name in stack), length


def _own_of(ranges: list[Any]) -> Iterator[_Named]:
    """Every range with its length, and again, with what it takes away, for the range around it."""
    stack: list[tuple[float, str]] = []
    for event in sorted(ranges, key=_outer_first):
        _enter(stack, event)
        names, length = tuple(name for _, name in stack), float(event["dur"])
        yield names, length
        if names[:-1]:
            yield names[:-1], -length


def _enter(stack: list[tuple[float, str]], event: Mapping[str, Any]) -> None:
    start = float(event["ts"])
    while stack and stack[-1][0] <= start:
        stack.pop()
    stack.append((start + float(event["dur"]), str(event["name"])))


def _outer_first(event: Mapping[str, Any]) -> tuple[float, float]:
    return float(event["ts"]), -float(event["dur"])
