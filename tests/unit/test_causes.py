"""Traces with a planted cause each: it is found, in microseconds, and the changes add up."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.profile import causes, timeline
from e2e.profile.timeline import SITE, STEP, Timeline
from e2e.schema.evidence import TraceDifference
from tests.traces import LAUNCH_US, Tracer
from tests.unit.test_timeline import REAL

Write = Callable[[Tracer], None]
NORM, GEMM = "norm_kernel", "nvjet_tst_128x256"


def step(trace: Tracer, *, norm_us: float = 50, gemm_us: float = 400, name: str = NORM, ahead_us: float = 0) -> None:
    """A product that keeps the device busy while the host runs ahead, the op at a site, and another product."""
    trace.launch(GEMM, gemm_us)
    trace.work(ahead_us)
    with trace.op():
        trace.launch(name, norm_us)
    trace.launch(GEMM, gemm_us)


def written(write: Write, *, device: bool = True, arm: str = "baseline:eager") -> Timeline:
    trace = Tracer(device=device)
    write(trace)
    return trace.read(arm)


def found(before: Write, after: Write, *, device: bool = True) -> dict[str, float]:
    """Changes in microseconds by cause; they must add up to what parts the two steps."""
    difference = causes.difference_of(written(before, device=device), written(after, device=device))
    assert difference is not None
    return microseconds(difference)


def microseconds(difference: TraceDifference) -> dict[str, float]:
    apart = difference.candidate_step_s - difference.step_s
    assert apart == pytest.approx(sum(change.seconds for change in difference.changes), abs=1e-12)
    return {
        change.cause: round(1e6 * change.seconds, 3) for change in difference.changes if abs(change.seconds) > 1e-12
    }


def note(before: Write, after: Write, cause: str) -> str:
    difference = causes.difference_of(written(before), written(after))
    assert difference is not None
    return next(change.note for change in difference.changes if change.cause == cause)


# ---- On a device


def test_a_step_against_itself_has_no_changes() -> None:
    assert found(step, step) == {}


def test_a_faster_kernel_of_a_busy_device_saves_what_it_saves() -> None:
    assert found(step, lambda t: step(t, norm_us=10, name="mine")) == {"op": -40}


def test_where_the_host_is_the_limit_the_device_only_rests_longer() -> None:
    def slow_host(trace: Tracer, norm_us: float, name: str) -> None:
        for _ in range(5):
            trace.work(100)
            with trace.op():
                trace.launch(name, norm_us)

    seen = found(lambda t: slow_host(t, 50, NORM), lambda t: slow_host(t, 10, "mine"))
    assert seen["op"] == -200
    assert seen["idle"] + seen.get("host_per_call", 0) == pytest.approx(160), "four gaps grow by what the kernel saves"


def test_the_hosts_work_for_each_call_shows_where_the_device_waits_for_it() -> None:
    def one(trace: Tracer, host_us: float) -> None:
        with trace.op():
            trace.work(host_us)
            trace.launch(NORM, 50)

    assert found(lambda t: one(t, 5), lambda t: one(t, 30)) == {"host_per_call": 25}
    assert "a call takes the host 34.0 us, 9.0 us without the kernel" == note(
        lambda t: one(t, 5), lambda t: one(t, 30), "host_per_call"
    )


def test_the_hosts_work_is_free_while_the_device_is_busy() -> None:
    def ahead(trace: Tracer, host_us: float) -> None:
        trace.launch(GEMM, 400)
        with trace.op():
            trace.work(host_us)
            trace.launch(NORM, 50)

    assert found(lambda t: ahead(t, 5), lambda t: ahead(t, 200)) == {}


def test_a_new_wait_of_the_host_for_the_device() -> None:
    def waits(trace: Tracer) -> None:
        trace.launch(GEMM, 400)
        trace.sync()
        trace.work(20)
        with trace.op():
            trace.launch(NORM, 50)
        trace.launch(GEMM, 400)

    seen = found(lambda t: step(t, ahead_us=20), waits)
    assert seen == {"syncs": 1 + 20 + LAUNCH_US}, "the device rests from its last kernel to the next launch"


def test_calls_of_the_drivers_allocator() -> None:
    def allocates(trace: Tracer) -> None:
        with trace.op():
            trace.allocate(150)
            trace.launch(NORM, 50)

    def does_not(trace: Tracer) -> None:
        with trace.op():
            trace.launch(NORM, 50)

    assert found(does_not, allocates) == {"allocator": 150}


def test_copies_and_casts_that_are_new() -> None:
    def with_cast(trace: Tracer) -> None:
        trace.launch("void at::native::bfloat16_copy_kernel<4>(x)", 30)
        step(trace)

    assert found(step, with_cast) == {"copies": 30}
    assert note(step, with_cast, "copies") == "+1 calls: at::native::bfloat16_copy_kernel"


def test_neighbours_that_take_longer() -> None:
    assert found(step, lambda t: step(t, gemm_us=430)) == {"neighbours": 60}
    assert note(step, lambda t: step(t, gemm_us=430), "neighbours") == GEMM


def test_the_same_kernel_more_often() -> None:
    def thrice(trace: Tracer) -> None:
        step(trace)
        trace.launch(GEMM, 400)

    assert found(step, thrice) == {"calls": 400}


def test_another_algorithm_elsewhere() -> None:
    def split(trace: Tracer) -> None:
        trace.launch("splitK_gemm", 300)
        trace.launch("splitK_reduce", 150)
        with trace.op():
            trace.launch(NORM, 50)
        trace.launch("splitK_gemm", 300)
        trace.launch("splitK_reduce", 150)

    assert found(step, split) == {"algorithm": 100}
    assert note(step, split, "algorithm").startswith("1 gone, 2 new: ")


def test_a_fusion_that_a_compiler_no_longer_makes() -> None:
    """Without ranges: in a compiled arm the candidate's kernel is known by the eager arm's trace."""

    def fused(trace: Tracer) -> None:
        trace.launch("triton_per_fused_mul_norm_0", 60)
        trace.launch(GEMM, 400)

    def broken(trace: Tracer) -> None:
        trace.launch("triton_poi_fused_add_0", 25)
        trace.launch("mine", 45)
        trace.launch(GEMM, 400)

    difference = causes.difference_of(written(fused), written(broken), kernels={"mine"})
    assert difference is not None
    assert microseconds(difference) == {"op": 45, "fusion": 25 - 60}
    assert difference.op_s is None, "nothing in the trace says what the op took there"


def test_work_that_ran_beside_other_work_and_does_no_longer() -> None:
    def overlapping(trace: Tracer) -> None:
        step(trace)
        trace.events.append({**trace.events[1], "name": "copy_engine", "ts": 1010.0, "dur": 100.0, "tid": 9})

    def after_it(trace: Tracer) -> None:
        step(trace)
        trace.launch("copy_engine", 100)

    assert found(overlapping, after_it) == {"overlap": 100}


def test_the_candidates_kernels_are_those_that_nothing_else_launches() -> None:
    def mine(trace: Tracer) -> None:
        with trace.op():
            trace.launch("elementwise", 5)
            trace.launch("mine", 45)

    def shipped(trace: Tracer) -> None:
        with trace.op():
            trace.launch("elementwise", 5)
            trace.launch(NORM, 45)

    assert causes.own_kernels(written(mine), written(shipped)) == {"mine"}


def test_the_share_in_which_the_device_rests_is_of_the_step() -> None:
    def half(trace: Tracer) -> None:
        trace.work(95)
        with trace.op():
            trace.launch(NORM, 100)

    difference = causes.difference_of(written(half), written(step))
    assert difference is not None
    assert difference.idle_ratio == pytest.approx(100 / 200)
    assert difference.op_s == pytest.approx(100e-6)


def test_a_trace_without_its_steps_says_nothing() -> None:
    trace = Tracer()
    step(trace)
    assert causes.difference_of(trace.read(ranged=False), written(step)) is None


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.floats(1, 500), st.floats(0, 200), st.booleans()), max_size=8),
    st.lists(st.tuples(st.sampled_from("bcd"), st.floats(1, 500), st.floats(0, 200), st.booleans()), max_size=8),
)
def test_whatever_two_steps_do_the_changes_add_up(
    first: list[tuple[str, float, float, bool]], second: list[tuple[str, float, float, bool]]
) -> None:
    def doing(calls: list[tuple[str, float, float, bool]]) -> Write:
        def write(trace: Tracer) -> None:
            for name, us, host_us, is_op in calls:
                trace.work(host_us)
                if is_op:
                    with trace.op():
                        trace.launch(name, us)
                else:
                    trace.launch(name, us)
                if us > 400:
                    trace.sync()

        return write

    found(doing(first), doing(second))


# ---- A real trace of an H200: four steps of linear, GELU and layer norm, forward and backward

LAYER_NORM = "vectorized_layer_norm_kernel"
_STEPS = 4


def real(change: Callable[[dict[str, Any]], dict[str, Any]] = lambda event: event) -> Timeline:
    """The trace, changed event by event, with the ranges that a recorder would have put there."""
    with gzip.open(REAL) as file:
        events = [change(event) for event in json.load(file)["traceEvents"]]
    waits = [event for event in events if event["name"] == "cudaDeviceSynchronize"][-_STEPS - 1 :]
    ends = [event["ts"] + event["dur"] for event in waits]
    ranges = [ranged(STEP, start, end, waits[0]["tid"]) for start, end in pairwise(ends)]
    calls = [event for event in events if event["name"] == "aten::layer_norm"]
    ranges += [ranged(f"{SITE}norm", e["ts"], e["ts"] + e["dur"], e["tid"]) for e in calls]
    return timeline.read([*events, *ranges], arm="baseline:eager", steps=_STEPS, path="p")


def ranged(name: str, start: float, end: float, tid: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "user_annotation", "name": name, "ts": start, "dur": end - start, "pid": 1, "tid": tid}


def test_the_op_of_a_real_trace_is_the_kernel_that_its_calls_launch() -> None:
    seen = real()
    assert seen.op is not None
    assert seen.op.calls == 1
    (name,) = seen.op.rows
    assert LAYER_NORM in name
    assert seen.op.rows[name] == seen.rows[name]
    assert seen.step_s is not None and seen.busy_s is not None and seen.idle is not None
    waited = seen.idle.syncs + seen.idle.allocator + seen.idle.op + seen.idle.other
    assert waited == pytest.approx(seen.step_s - seen.busy_s, rel=0.01)
    assert waited / seen.step_s > 0.5, "so small a model waits for the host"


def test_changes_that_are_planted_in_a_real_trace_are_found() -> None:
    def planted(event: dict[str, Any]) -> dict[str, Any]:
        if event.get("cat") != "kernel":
            return event
        if LAYER_NORM in event["name"]:
            return {**event, "name": "mine", "dur": event["dur"] - 0.5}
        return {**event, "dur": event["dur"] + 0.25} if event["name"].startswith("nvjet") else event

    before, after = real(), real(planted)
    difference = causes.difference_of(before, after)
    assert difference is not None
    seen = microseconds(difference)
    gemms = sum(calls for name, (calls, _) in before.rows.items() if name.startswith("nvjet"))
    assert seen["op"] == pytest.approx(-0.5, abs=2e-3)
    assert seen["neighbours"] == pytest.approx(0.25 * gemms, abs=2e-3)
    assert "algorithm" not in seen


# ---- On a CPU


def host_step(trace: Tracer, *, norm_us: float = 50, python_us: float = 10, mul_us: float = 400) -> None:
    trace.operator("aten::mm", mul_us)
    trace.work(python_us)
    with trace.op():
        trace.work(norm_us)


def test_on_a_cpu_the_op_is_its_ranges_and_the_rest_its_operators() -> None:
    assert found(host_step, lambda t: host_step(t, norm_us=20), device=False) == {"op": -30}
    assert found(host_step, lambda t: host_step(t, mul_us=430), device=False) == {"neighbours": 30}


def test_on_a_cpu_what_is_in_no_operator_is_the_hosts_own() -> None:
    assert found(host_step, lambda t: host_step(t, python_us=17), device=False) == {"host": 7}


def test_on_a_cpu_a_copy_is_an_operator() -> None:
    def copies(trace: Tracer) -> None:
        host_step(trace)
        trace.operator("aten::copy_", 12)

    assert found(host_step, copies, device=False) == {"copies": 12}


def test_on_a_cpu_a_compiled_arm_calls_the_kernel_as_an_operator() -> None:
    def compiled(trace: Tracer, region: str, norm_us: float = 0) -> None:
        trace.operator(region, 300)
        trace.operator("aten::mm", 400)
        if norm_us:
            trace.operator("e2e_ad94eb699f8234c1::rms_norm", norm_us)

    assert found(
        lambda t: compiled(t, "Torch-Compiled Region: 0/0"),
        lambda t: compiled(t, "Torch-Compiled Region: 0/1", 30),
        device=False,
    ) == {"op": 30}


def test_on_a_cpu_nothing_is_said_of_a_device() -> None:
    difference = causes.difference_of(written(host_step, device=False), written(host_step, device=False))
    assert difference is not None
    assert (difference.idle_ratio, difference.candidate_idle_ratio, difference.changes) == (None, None, [])
