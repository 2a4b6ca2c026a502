"""What the parent can read of the machine around timing: CPU pressure and steal, device clocks and company."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any

from e2e.schema.evidence import Telemetry


@dataclass
class Watch:
    """Reads once between blocks, never during one; what cannot be read stays None."""

    device: str
    _pressure: float | None = None
    _times: tuple[float, float] | None = None
    _start: float = 0.0
    _clocks: list[float] = field(default_factory=list)
    _power: list[float] = field(default_factory=list)
    _temperature: list[float] = field(default_factory=list)
    _reasons: set[str] = field(default_factory=set)
    _handle: Any = None

    def begin(self) -> None:
        """Start of timing."""
        self._start = time.monotonic()
        self._pressure = _pressure_total_s()
        self._times = _cpu_times()
        self._handle = _nvml_handle(self.device)

    def look(self) -> None:
        """Between blocks: the device's clocks, power, temperature and throttle reasons."""
        if self._handle is None:
            return
        import pynvml

        try:
            self._clocks.append(pynvml.nvmlDeviceGetClockInfo(self._handle, pynvml.NVML_CLOCK_SM) * 1e6)
            self._power.append(pynvml.nvmlDeviceGetPowerUsage(self._handle) / 1e3)
            self._temperature.append(float(pynvml.nvmlDeviceGetTemperature(self._handle, pynvml.NVML_TEMPERATURE_GPU)))
            self._reasons |= _throttle_names(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle))
        except pynvml.NVMLError:
            self._handle = None

    def end(self) -> tuple[Telemetry, list[str]]:
        """What was seen, and what this machine does not show; nothing if timing never began."""
        if self._start == 0.0:
            return Telemetry(), []
        unseen = []
        pressure, steal = self._ratios()
        if pressure is None:
            unseen.append("CPU pressure")
        if steal is None:
            unseen.append("CPU steal")
        if self.device != "cpu" and not self._clocks:
            unseen.append("device clocks, power and temperature (NVML)")
        telemetry = Telemetry(
            cpu_pressure_ratio=pressure,
            steal_ratio=steal,
            sm_clock_min_hz=min(self._clocks, default=None),
            sm_clock_max_hz=max(self._clocks, default=None),
            power_max_w=max(self._power, default=None),
            temperature_max_c=max(self._temperature, default=None),
            throttle_reasons=sorted(self._reasons),
        )
        return telemetry, unseen

    def _ratios(self) -> tuple[float | None, float | None]:
        elapsed = max(time.monotonic() - self._start, 1e-9)
        now, times = _pressure_total_s(), _cpu_times()
        pressure = None if now is None or self._pressure is None else (now - self._pressure) / elapsed
        if times is None or self._times is None or times[0] <= self._times[0]:
            return pressure, None
        return pressure, (times[1] - self._times[1]) / (times[0] - self._times[0])


def thread_count() -> int:
    """Cores this process may use, at most 16: more threads than that only add noise to a step's host side."""
    return min(16, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def has_vectors() -> bool:
    """Whether this is an x86-64 processor with AVX2 and fused multiply-add, by the kernel's word."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            flags = next((line for line in file if line.startswith("flags")), "").split()
    except OSError:
        return False
    return {"avx2", "fma"} <= set(flags)


def _pressure_total_s() -> float | None:
    """Seconds in which some process waited for a CPU since boot (pressure stall information)."""
    try:
        with open("/proc/pressure/cpu", encoding="ascii") as file:
            return int(file.readline().rsplit("total=", 1)[1]) / 1e6
    except (OSError, ValueError, IndexError):
        return None


def _cpu_times() -> tuple[float, float] | None:
    """Total and stolen CPU time, in ticks."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            ticks = [float(value) for value in file.readline().split()[1:]]
    except (OSError, ValueError):
        return None
    return (sum(ticks), ticks[7]) if len(ticks) > 7 else None


def _nvml_handle(device: str) -> Any:
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
        return pynvml.nvmlDeviceGetHandleByIndex(index)
    except (pynvml.NVMLError, IndexError):
        return None


_THROTTLE = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}
"""NVML clocks-event-reason bits; the power cap alone is normal under heavy matrix work."""


def _throttle_names(bits: int) -> set[str]:
    return {name for bit, name in _THROTTLE.items() if bits & bit}
