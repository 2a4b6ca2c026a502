"""Telemetry without a device: what is read, what is told apart, what stays unseen."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from e2e.measure.machine import Nvml, Reading, Watch, free_memory_bytes, own_processes, strangers, throttle_names


class NVMLError(Exception):
    """What the library raises."""


class Library:
    """The few questions e2e asks of NVIDIA's library, answered from a table; a missing answer is refused."""

    NVML_CLOCK_SM = NVML_TEMPERATURE_GPU = 0
    NVMLError = NVMLError

    def __init__(self, **answers: Any) -> None:
        self.answers = answers

    def __getattr__(self, question: str) -> Any:
        def answer(handle: object, *more: object) -> Any:
            if question not in self.answers:
                raise NVMLError(question)
            return self.answers[question]

        return answer


def reading(at_ns: int, *, clock: float | None = 1.98e9, reasons: int | None = 0) -> Reading:
    return Reading(at_ns=at_ns, clock_hz=clock, power_w=600.0, temperature_c=50.0, reasons=reasons)


def test_a_segment_gets_the_mean_clock_of_its_own_time() -> None:
    seconds = 10**9
    watch = Watch("cuda:0", readings=[reading(place * seconds, clock=1e9 + place * 1e8) for place in range(5)])
    assert watch.during(1 * seconds, 3 * seconds) == (pytest.approx(1.2e9), False)


@pytest.mark.parametrize(("bits", "slowed"), [(0, False), (0x4, False), (0x20, True), (0x8 | 0x4, True)])
def test_a_power_cap_is_normal_and_heat_is_not(bits: int, slowed: bool) -> None:
    watch = Watch("cuda:0", readings=[reading(0, reasons=bits)])
    assert watch.during(0, 10) == (1.98e9, slowed)


def test_what_was_not_read_during_a_segment_is_not_known() -> None:
    watch = Watch("cuda:0", readings=[reading(0)])
    assert watch.during(10**10, 2 * 10**10) == (None, None)
    assert Watch("cuda:0", readings=[reading(0, clock=None, reasons=None)]).during(0, 1) == (None, None)


def test_a_device_that_answers_little_leaves_gaps_and_no_zeros() -> None:
    device = Nvml(Library(nvmlDeviceGetPowerUsage=350_000), handle=object())
    seen = device.read()
    assert (seen.power_w, seen.clock_hz, seen.temperature_c, seen.reasons) == (350.0, None, None, None)
    assert device.processes() is None
    assert device.settings() == {}


def test_settings_are_named_with_their_units() -> None:
    library = Library(nvmlDeviceGetEnforcedPowerLimit=700_000, nvmlDeviceGetMaxClockInfo=1980)
    assert Nvml(library, object()).settings() == {"power limit": "700 W", "highest clock": "1980 MHz"}


def test_a_power_limit_that_changes_during_the_run_is_reported() -> None:
    library = Library(nvmlDeviceGetEnforcedPowerLimit=700_000)
    watch = Watch("cpu")
    watch.begin()
    watch._nvml = Nvml(library, object())
    watch._settings = watch._read_settings()
    library.answers["nvmlDeviceGetEnforcedPowerLimit"] = 500_000
    telemetry, _ = watch.end()
    assert telemetry.changed == ["power limit 700 W -> 500 W"]


@pytest.mark.parametrize(
    ("on_device", "expected"),
    [([10, 11], 0), ([10, 99], 1), ([98, 99], None), ([], None), (None, None)],
)
def test_strangers_are_counted_only_where_our_own_workers_show(
    on_device: list[int] | None, expected: int | None
) -> None:
    assert strangers(on_device, own={10, 11}) == expected


def test_workers_of_workers_are_our_own() -> None:
    code = "import subprocess, sys; print(subprocess.Popen(['sleep', '30']).pid, flush=True); sys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None and child.stdout is not None
    grandchild = int(child.stdout.readline())
    try:
        assert {os.getpid(), child.pid, grandchild} <= own_processes()
        assert os.getppid() not in own_processes()
    finally:
        os.kill(grandchild, 9)
        child.communicate()


def test_a_watch_that_never_began_saw_nothing() -> None:
    telemetry, unseen = Watch("cpu").end()
    assert telemetry.samples == 0 and telemetry.cpu_pressure_ratio is None and unseen == []


def test_a_device_without_the_library_says_what_cannot_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(nvmlInit=_refuse, NVMLError=NVMLError))
    watch = Watch("cuda:0")
    watch.begin()
    _, unseen = watch.end()
    assert "device clocks, power and temperature (NVML)" in unseen
    assert "other processes on the device" in unseen


def _refuse() -> None:
    raise NVMLError("no driver")


def test_throttle_bits_have_names() -> None:
    assert throttle_names(0x4 | 0x40) == {"power cap", "hardware thermal"}


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="uses /proc")
def test_free_memory_is_seen_and_is_not_all_there_is() -> None:
    free = free_memory_bytes()
    total = os.sysconf("SC_PHYS_PAGES") * resource.getpagesize()
    assert free is not None
    assert 0 < free < total
