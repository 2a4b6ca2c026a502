"""Tables from traces: a real one of an H200, and small invented ones with known answers."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from e2e.profile import timeline
from e2e.profile.timeline import Timeline

REAL = Path(__file__).parents[1] / "data" / "h200-linear-gelu-layernorm.pt.trace.json.gz"
ARM = "baseline:eager+F.rms_norm"


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """The real trace as a worker leaves it: not compressed."""
    path = tmp_path / "trace.json"
    with gzip.open(REAL) as source, path.open("wb") as target:
        shutil.copyfileobj(source, target)
    return path


@pytest.fixture
def stored(raw: Path, tmp_path: Path) -> Timeline:
    return timeline.store(raw, tmp_path / "traces", arm=ARM, steps=4)


def span(name: str, start: float, length: float, *, cat: str = "cpu_op", tid: int = 1) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": length, "pid": 1, "tid": tid}


def kernel(name: str, start: float, length: float) -> dict[str, Any]:
    return span(name, start, length, cat="kernel", tid=7)


def read(*events: dict[str, Any], steps: int = 1) -> Timeline:
    return timeline.read(list(events), arm="a", steps=steps, path="p")


def microseconds(found: Timeline) -> dict[str, float]:
    return {name: round(seconds * 1e6, 6) for name, (_, seconds) in found.rows.items()}


def unzipped(path: Path) -> Any:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return json.load(file)


def categories(path: Path) -> dict[str, int]:
    counts: dict[str, int] = {}
    for event in unzipped(path)["traceEvents"]:
        counts[event.get("cat", "")] = counts.get(event.get("cat", ""), 0) + 1
    return counts


# ---- The real trace


def test_a_device_trace_counts_kernels_copies_and_fills_only(stored: Timeline) -> None:
    assert (stored.record.events, stored.record.device_events) == (1497, 56 + 8)
    assert sum(calls for calls, _ in stored.rows.values()) == pytest.approx((56 + 8) / 4)
    assert not any(name.startswith("aten::") for name in stored.rows)


def test_rows_are_per_step(stored: Timeline) -> None:
    calls, seconds = stored.rows["nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_bias_TNT"]
    assert calls == 1
    assert seconds == pytest.approx(25.12e-6, rel=1e-3)
    assert stored.operators["aten::as_strided"] == 24 / 4


def test_the_busy_share_of_a_real_trace_lies_between_none_and_all(stored: Timeline) -> None:
    assert stored.busy_ratio is not None
    assert 0 < stored.busy_ratio < 1


def test_people_get_the_trace_as_it_was(stored: Timeline, tmp_path: Path) -> None:
    assert stored.record.path == "traces/baseline.eager.F.rms_norm.pt.trace.json.gz"
    assert unzipped(tmp_path / stored.record.path) == unzipped(REAL)


def test_tensorboard_gets_a_copy_with_the_category_it_knows(stored: Timeline, tmp_path: Path) -> None:
    copy = tmp_path / "traces" / "tensorboard" / "baseline.eager.F.rms_norm" / "worker.1.pt.trace.json.gz"
    before, after = categories(REAL), categories(copy)
    assert before["cuda_runtime"] + before["cuda_driver"] == after["runtime"] == 69 + 8
    assert not {"cuda_runtime", "cuda_driver"} & after.keys()
    assert before["kernel"] == after["kernel"]


def test_the_raw_trace_is_gone_once_it_is_stored(stored: Timeline, raw: Path) -> None:
    assert not raw.exists()


def test_a_trace_against_itself_changes_nothing(stored: Timeline) -> None:
    rows = timeline.difference(stored, stored)
    assert {row.name for row in rows} == set(stored.rows)
    assert all(row.baseline_s == row.candidate_s for row in rows)
    assert timeline.new_names(stored, stored) == []


# ---- Own time


def test_an_operators_own_time_is_without_its_children() -> None:
    found = read(span("outer", 0, 100), span("inner", 10, 30), span("inner", 50, 20), span("leaf", 12, 5))
    assert microseconds(found) == {"outer": 50, "inner": 45, "leaf": 5}


def test_own_times_of_one_thread_add_up_to_its_busy_time() -> None:
    found = read(span("a", 0, 40), span("b", 0, 40), span("c", 0, 10), span("a", 100, 7), span("b", 101, 3))
    assert sum(microseconds(found).values()) == 47


def test_a_recursive_operator_is_counted_once_for_each_call() -> None:
    found = read(span("clone", 0, 10), span("clone", 2, 5))
    assert found.rows["clone"] == (2, pytest.approx(10e-6))


def test_an_operator_that_starts_where_another_ends_is_not_its_child() -> None:
    assert microseconds(read(span("first", 0, 10), span("second", 10, 5))) == {"first": 10, "second": 5}


def test_operators_of_other_threads_are_nobodys_children() -> None:
    found = read(span("forward", 0, 100, tid=1), span("backward", 10, 50, tid=2))
    assert microseconds(found) == {"forward": 100, "backward": 50}


def test_the_order_of_events_in_the_file_does_not_matter() -> None:
    events = [span("outer", 0, 100), span("middle", 10, 50), span("leaf", 20, 10)]
    assert microseconds(read(*events)) == microseconds(read(*reversed(events)))


def test_operators_are_not_rows_where_there_are_kernels() -> None:
    found = read(span("aten::mm", 0, 100), kernel("gemm", 50, 10), steps=2)
    assert microseconds(found) == {"gemm": 5}
    assert found.operators == {"aten::mm": 0.5}


# ---- Busy


@pytest.mark.parametrize(
    ("kernels", "busy"),
    [
        ([(0, 10)], 1.0),
        ([(0, 10), (10, 10)], 1.0),
        ([(0, 10), (30, 10)], 0.5),
        ([(0, 100), (10, 10), (20, 10)], 1.0),  # inside: overlapping streams must not count twice
        ([(0, 60), (40, 60)], 1.0),
        ([(50, 50), (0, 25)], 0.75),  # not in order
        ([(0, 0)], 0.0),
    ],
)
def test_busy_is_the_union_of_the_kernels_over_their_span(kernels: list[tuple[float, float]], busy: float) -> None:
    assert busy == pytest.approx(read(*(kernel("k", *item) for item in kernels)).busy_ratio)


def test_without_device_events_busy_is_unknown_and_not_zero() -> None:
    assert read(span("aten::mm", 0, 1)).busy_ratio is None
    assert read().busy_ratio is None


# ---- Two arms


def test_differences_come_largest_first_and_absent_is_none() -> None:
    before = read(kernel("gemm", 0, 100), kernel("norm", 200, 30))
    after = read(kernel("gemm", 0, 99), kernel("fused", 200, 10))
    rows = [(row.name, row.baseline_s, row.candidate_s) for row in timeline.difference(before, after)]
    assert [name for name, _, _ in rows] == ["norm", "fused", "gemm"]
    assert rows[0][2] is None
    assert rows[1][1] is None


def test_new_names_are_what_only_the_candidate_has() -> None:
    before = read(span("aten::mm", 0, 9), kernel("gemm", 0, 100))
    after = read(span("aten::mm", 0, 9), span("e2e::norm", 20, 9), kernel("gemm", 0, 99), kernel("mine", 200, 10))
    assert timeline.new_names(before, after) == ["e2e::norm", "mine"]


# ---- Traces from a process that cannot be trusted


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "[]", "7", '{"traceEvents": 3}', '{"traceEvents": [1, 2]}', '{"other": []}',
        '{"traceEvents": ' + "[" * 100_000 + "]" * 100_000 + "}",
    ],
    ids=["empty", "cut", "a list", "a number", "no list", "no objects", "no events", "deep"],
)  # fmt: skip
def test_what_is_not_a_trace_is_refused_as_such(tmp_path: Path, content: str) -> None:
    raw = tmp_path / "trace.json"
    raw.write_text(content)
    with pytest.raises(ValueError, match=r"trace|JSON|Expecting"):
        timeline.store(raw, tmp_path / "traces", arm="a", steps=1)
    assert not (tmp_path / "traces").exists()


def test_a_trace_that_is_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "trace.json")
    with pytest.raises(ValueError, match="no plain file"):
        timeline.store(tmp_path / "trace.json", tmp_path / "traces", arm="a", steps=1)


def test_a_trace_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "MAX_TRACE_BYTES", 100)
    raw = tmp_path / "trace.json"
    raw.write_text(json.dumps({"traceEvents": [span("a", 0, 1)] * 10}))
    with pytest.raises(ValueError, match="limit"):
        timeline.store(raw, tmp_path / "traces", arm="a", steps=1)


@pytest.mark.parametrize(
    "change",
    [{"dur": "long"}, {"ts": None}, {"dur": float("inf")}, {"ts": float("nan")}, {"dur": -5.0}, {"ph": "i"}],
    ids=["text", "none", "endless", "nan", "negative", "instant"],
)
def test_events_without_a_start_and_a_length_are_left_out(change: dict[str, Any]) -> None:
    found = read(span("good", 0, 10), {**span("bad", 20, 10), **change})
    assert microseconds(found) == {"good": 10}


def test_odd_events_do_not_stop_the_good_ones_from_being_stored(tmp_path: Path) -> None:
    raw = tmp_path / "trace.json"
    odd: list[dict[str, Any]] = [{}, {"cat": ["list"]}, {"ph": "X", "dur": 1}, {"ph": "X", "ts": 0, "dur": 1}]
    raw.write_text(json.dumps({"traceEvents": [*odd, span("good", 0, 10)]}))
    found = timeline.store(raw, tmp_path / "traces", arm="a", steps=1)
    assert microseconds(found) == {"good": 10}


# ---- By module and by operator


def ranged(name: str, start: float, length: float, *, tid: int = 1) -> dict[str, Any]:
    return span(f"{timeline.MODULE}{name}", start, length, cat="user_annotation", tid=tid)


def launch(number: int, at: float, *, tid: int = 1) -> dict[str, Any]:
    return {**span("cudaLaunchKernel", at, 1, cat="cuda_runtime", tid=tid), "args": {"correlation": number}}


def launched(number: int, start: float, length: float) -> dict[str, Any]:
    return {**kernel("k", start, length), "args": {"correlation": number}}


def of_modules(found: Timeline) -> dict[str, tuple[float, float, float]]:
    return {
        name: (item.calls, round(item.own_s * 1e6, 6), round(item.total_s * 1e6, 6))
        for name, item in found.modules.items()
    }


def test_without_a_device_a_modules_time_is_the_hosts_less_what_is_inside() -> None:
    found = read(ranged("mlp MLP", 0, 100), ranged("mlp.up Linear", 10, 30), ranged("mlp.up Linear", 50, 20), steps=2)
    assert of_modules(found) == {"mlp MLP": (0.5, 25, 50), "mlp.up Linear": (1, 25, 25)}


def test_with_a_device_a_kernel_is_the_innermost_modules_that_launched_it_however_late_it_runs() -> None:
    found = read(
        *(ranged("mlp MLP", 0, 100), ranged("mlp.up Linear", 10, 30), ranged("norm Norm", 120, 10)),
        *(launch(1, 20), launch(2, 60), launch(3, 125), launch(4, 500)),
        *(launched(1, 1000, 7), launched(2, 1010, 5), launched(3, 1020, 2), launched(4, 1030, 9)),
    )
    assert of_modules(found) == {"mlp MLP": (1, 5, 12), "mlp.up Linear": (1, 7, 7), "norm Norm": (1, 2, 2)}


def test_a_launch_belongs_to_ranges_of_its_own_thread() -> None:
    found = read(ranged("a A", 0, 100), ranged("b B", 0, 100, tid=2), launch(1, 50, tid=2), launched(1, 70, 3))
    assert of_modules(found) == {"a A": (1, 0, 0), "b B": (1, 3, 3)}


def test_kernels_that_name_no_launch_leave_modules_and_operators_unknown() -> None:
    found = read(ranged("a A", 0, 100), span("aten::mm", 1, 2), kernel("k", 10, 5))
    assert (found.modules, found.within) == ({}, {})
    assert found.busy_s == pytest.approx(5e-6)


def test_the_real_traces_operators_share_out_the_time_of_all_kernels(stored: Timeline) -> None:
    busiest = max(stored.within, key=lambda name: stored.within[name].own_s)
    assert busiest in ("aten::addmm", "aten::mm")
    whole = sum(seconds for _, seconds in stored.rows.values())
    inside = sum(item.own_s for item in stored.within.values())
    assert inside == pytest.approx(whole, rel=0.02)


# ---- Memory over a step


def memory(moment: float, size: int, kind: int = 0) -> dict[str, Any]:
    args = {"Bytes": size, "Device Type": kind, "Total Allocated": 0}
    return {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": moment, "pid": 1, "tid": 1, "args": args}


def of_a_step(*events: dict[str, Any]) -> list[int]:
    step = span(timeline.STEP, 0, timeline.SLICES, cat="user_annotation")
    return read(step, *events).record.memory_bytes


def test_memory_over_a_step_is_what_is_allocated_beyond_its_beginning() -> None:
    found = of_a_step(memory(-5, 900), memory(0.5, 100), memory(2.2, 50), memory(2.4, -50), memory(4.5, -100))
    assert found[:6] == [100, 100, 150, 100, 100, 0]
    assert len(found) == timeline.SLICES


def test_memory_of_the_host_is_not_the_devices() -> None:
    found = of_a_step(kernel("k", 1, 2), memory(0.5, 100), memory(0.6, 30, kind=1))
    assert found[:2] == [30, 30]


def test_a_step_that_allocates_nothing_has_no_curve() -> None:
    assert of_a_step(memory(-5, 900)) == []


# ---- By phase of a training step


def of_phases(found: Timeline) -> dict[str, float]:
    return {name: round(item.own_s * 1e6, 6) for name, item in found.phases.items()}


def node(name: str, start: float, length: float, *, tid: int = 1) -> dict[str, Any]:
    return span(f"autograd::engine::evaluate_function: {name}", start, length, cat="cpu_op", tid=tid)


STEP = span(timeline.STEP, 0, 100, cat="user_annotation")
UPDATE = span("Optimizer.step#AdamW.step", 80, 15, cat="user_annotation")


def test_a_training_steps_phases_share_out_the_step() -> None:
    found = read(STEP, node("MmBackward0", 40, 20), span("aten::mm", 45, 10), node("AddBackward0", 60, 5), UPDATE)
    assert of_phases(found) == {timeline.REST: 60, timeline.BACKWARD: 25, timeline.OPTIMIZER: 15}


def test_a_kernel_is_of_the_phase_that_launched_it_from_whatever_thread() -> None:
    found = read(
        STEP, UPDATE, node("MmBackward0", 40, 20, tid=2),
        launch(1, 10), launch(2, 45, tid=2), launch(3, 85),
        launched(1, 200, 7), launched(2, 300, 30), launched(3, 400, 2),
    )  # fmt: skip
    assert of_phases(found) == {timeline.REST: 7, timeline.BACKWARD: 30, timeline.OPTIMIZER: 2}


def test_a_step_without_a_backward_has_no_phases() -> None:
    assert read(STEP, span("aten::mm", 45, 10)).phases == {}
