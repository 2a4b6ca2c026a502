"""What the parent can read of the machine around timing: CPU pressure and steal, device clocks and company."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.schema.evidence import Telemetry

PERIOD_S = 0.1
"""Between two readings of the device. Source: METHOD.md B5.10."""
_NEAR_NS = 150_000_000
"""A segment shorter than the period is described by the readings just around it."""


@dataclass(frozen=True)
class Reading:
    """The device at one moment; None where it does not say."""

    at_ns: int
    """By the parent's clock, the one that stamps segments."""
    clock_hz: float | None
    power_w: float | None
    temperature_c: float | None
    reasons: int | None
    """NVML's bits for why the clock is not higher."""


@dataclass
class Watch:
    """Reads the device ten times a second, its company between blocks, the rest at both ends."""

    device: str
    readings: list[Reading] = field(default_factory=list)
    _pressure: float | None = None
    _times: tuple[float, float] | None = None
    _start: float = 0.0
    _settings: dict[str, str] = field(default_factory=dict)
    _company: list[int | None] = field(default_factory=list)
    _nvml: Nvml | None = None
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start of timing."""
        self._start = time.monotonic()
        self._pressure = _pressure_total_s()
        self._times = _cpu_times()
        self._nvml = Nvml.open(self.device)
        self._settings = self._read_settings()
        if self._nvml is not None:
            self._thread = threading.Thread(target=self._sample, name="e2e-telemetry", daemon=True)
            self._thread.start()

    def look(self) -> None:
        """Between blocks: who else is on the device."""
        if self._nvml is not None:
            self._company.append(strangers(self._nvml.processes(), own_processes()))

    def during(self, start_ns: int, end_ns: int) -> tuple[float | None, bool | None]:
        """Mean clock in hertz between two stamps, and whether the device slowed itself down; None if not seen."""
        inside = [r for r in self.readings if start_ns - _NEAR_NS <= r.at_ns <= end_ns + _NEAR_NS]
        clocks = [reading.clock_hz for reading in inside if reading.clock_hz is not None]
        reasons = [reading.reasons for reading in inside if reading.reasons is not None]
        clock = sum(clocks) / len(clocks) if clocks else None
        return clock, any(bits & SLOWED for bits in reasons) if reasons else None

    def end(self) -> tuple[Telemetry, list[str]]:
        """What was seen, and what this machine does not show; nothing if timing never began."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._start == 0.0:
            return Telemetry(), []
        pressure, steal = self._ratios()
        after, company = self._read_settings(), [number for number in self._company if number is not None]
        telemetry = Telemetry(
            cpu_pressure_ratio=pressure,
            steal_ratio=steal,
            sm_clock_min_hz=min(self._of("clock_hz"), default=None),
            sm_clock_max_hz=max(self._of("clock_hz"), default=None),
            power_max_w=max(self._of("power_w"), default=None),
            temperature_max_c=max(self._of("temperature_c"), default=None),
            throttle_reasons=sorted({name for bits in self._of("reasons") for name in throttle_names(int(bits))}),
            foreign_processes=max(company, default=None),
            samples=len(self.readings),
            changed=[
                f"{name} {was} -> {after.get(name)}" for name, was in self._settings.items() if after.get(name) != was
            ],
        )
        unseen = ["CPU pressure"] if pressure is None else []
        unseen += ["CPU steal"] if steal is None else []
        if self.device != "cpu":
            unseen += [] if self._of("clock_hz") else ["device clocks, power and temperature (NVML)"]
            unseen += [] if company else ["other processes on the device"]
        return telemetry, unseen

    def _of(self, name: str) -> list[float]:
        return [value for reading in self.readings if (value := getattr(reading, name)) is not None]

    def _sample(self) -> None:
        assert self._nvml is not None
        while not self._stop.wait(PERIOD_S):
            self.readings.append(self._nvml.read())

    def _read_settings(self) -> dict[str, str]:
        settings = self._nvml.settings() if self._nvml is not None else {}
        if hasattr(os, "sched_getaffinity"):
            settings["processor affinity"] = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        governor = _text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
        return settings | ({"governor": governor} if governor else {})

    def _ratios(self) -> tuple[float | None, float | None]:
        elapsed = max(time.monotonic() - self._start, 1e-9)
        now, times = _pressure_total_s(), _cpu_times()
        pressure = None if now is None or self._pressure is None else (now - self._pressure) / elapsed
        if times is None or self._times is None or times[0] <= self._times[0]:
            return pressure, None
        return pressure, (times[1] - self._times[1]) / (times[0] - self._times[0])


@dataclass(frozen=True)
class Nvml:
    """One device through NVIDIA's management library; every question may go unanswered."""

    module: Any
    handle: Any

    @classmethod
    def open(cls, device: str) -> Nvml | None:
        """The device of that name, or None where the library, the driver or the device is not there."""
        if device == "cpu":
            return None
        try:
            import pynvml
        except ModuleNotFoundError:
            return None
        try:
            pynvml.nvmlInit()
            index = int(device.partition(":")[2] or 0)
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
            if visible and all(part.isdigit() for part in visible.split(",")):
                index = int(visible.split(",")[index])
            return cls(pynvml, pynvml.nvmlDeviceGetHandleByIndex(index))
        except (pynvml.NVMLError, IndexError):
            return None

    def read(self) -> Reading:
        """The device now."""
        n = self.module
        now = time.perf_counter_ns()
        clock = self._ask(n.nvmlDeviceGetClockInfo, n.NVML_CLOCK_SM)
        power = self._ask(n.nvmlDeviceGetPowerUsage)
        temperature = self._ask(n.nvmlDeviceGetTemperature, n.NVML_TEMPERATURE_GPU)
        reasons = self._ask(n.nvmlDeviceGetCurrentClocksThrottleReasons)
        return Reading(
            at_ns=(now + time.perf_counter_ns()) // 2,
            clock_hz=None if clock is None else clock * 1e6,
            power_w=None if power is None else power / 1e3,
            temperature_c=None if temperature is None else float(temperature),
            reasons=reasons,
        )

    def processes(self) -> list[int] | None:
        """Process ids on the device, in the driver's own numbering."""
        found = self._ask(self.module.nvmlDeviceGetComputeRunningProcesses)
        return None if found is None else [int(process.pid) for process in found]

    def settings(self) -> dict[str, str]:
        """What should stay as it is during a run."""
        n = self.module
        limit = self._ask(n.nvmlDeviceGetEnforcedPowerLimit)
        most = self._ask(n.nvmlDeviceGetMaxClockInfo, n.NVML_CLOCK_SM)
        persistence = self._ask(n.nvmlDeviceGetPersistenceMode)
        found = {
            "power limit": None if limit is None else f"{limit / 1e3:.0f} W",
            "highest clock": None if most is None else f"{most} MHz",
            "persistence mode": None if persistence is None else str(persistence),
        }
        return {name: value for name, value in found.items() if value is not None}

    def _ask(self, question: Callable[..., Any], *more: Any) -> Any:
        try:
            return question(self.handle, *more)
        except self.module.NVMLError:
            return None


def strangers(on_device: list[int] | None, own: set[int]) -> int | None:
    """Other processes on the device; None if the driver shows none of ours.

    Inside a container the driver may show nothing, or count in the host's numbering: then nobody can be told
    from us, and that is not the same as being alone.
    """
    if not on_device or not own & set(on_device):
        return None
    return len(set(on_device) - own)


def own_processes() -> set[int]:
    """This process and everything that descends from it, as this process numbers them."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        stat = _text(f"/proc/{entry}/stat") if entry.isdigit() else None
        if stat:
            parents[int(entry)] = int(stat.rpartition(")")[2].split()[1])
    own = {os.getpid()}
    for _ in range(_DEEPEST):
        more = {pid for pid, parent in parents.items() if parent in own} - own
        if not more:
            break
        own |= more
    return own


_DEEPEST = 16
"""Generations of processes looked at; ours are four: namespace, zygote, worker, compiler."""


def thread_count() -> int:
    """Cores this process may use, at most 16: more threads than that only add noise to a step's host side."""
    return min(16, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def free_memory_bytes() -> int | None:
    """Memory of the host that a new process could take, or None where it cannot be seen."""
    lines = (_text("/proc/meminfo") or "").splitlines()
    found = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), None)
    return int(found) * 1024 if found is not None else None


def has_vectors() -> bool:
    """Whether this is an x86-64 processor with AVX2 and fused multiply-add, by the kernel's word."""
    lines = (_text("/proc/cpuinfo") or "").splitlines()
    flags = next((line for line in lines if line.startswith("flags")), "").split()
    return {"avx2", "fma"} <= set(flags)


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None


def _pressure_total_s() -> float | None:
    """Seconds in which some process waited for a CPU since boot (pressure stall information)."""
    first = (_text("/proc/pressure/cpu") or "").partition("\n")[0]
    total = first.rpartition("total=")[2]
    return int(total) / 1e6 if total.isdigit() else None


def _cpu_times() -> tuple[float, float] | None:
    """Total and stolen CPU time, in ticks."""
    first = (_text("/proc/stat") or "").partition("\n")[0]
    ticks = [float(value) for value in first.split()[1:]]
    return (sum(ticks), ticks[7]) if len(ticks) > 7 else None


_THROTTLE = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}
"""NVML clocks-event-reason bits. Source: METHOD.md B2.8."""
SLOWED = 0x8 | 0x20 | 0x40 | 0x80
"""All but the power cap, which is normal under heavy matrix work."""


def throttle_names(bits: int) -> set[str]:
    """The bits in words."""
    return {name for bit, name in _THROTTLE.items() if bits & bit}
