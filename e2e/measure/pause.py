"""A wait of known length, added to a step: the true effects that `e2e selftest` plants. Worker side."""

from __future__ import annotations

import time

import torch

from e2e.units import Seconds

_PROBE_CYCLES = 1_000_000
"""About half a millisecond on a GPU: long beside the launch, short beside a change of clocks."""
_PROBES = 5


class Pause:
    """Holds host and device back by the same time, so that the step takes exactly that much longer.

    The slower of the two sets a step's length, and which one that is may change within it. A wait of one side alone
    vanishes where the other leads; equal waits, begun together, leave every lead as it was.
    """

    def __init__(self, seconds: Seconds, device: str) -> None:
        self.seconds = seconds
        self._on_device = device != "cpu"
        self._cycles = round(seconds * _cycles_per_s()) if self._on_device else 0

    def __call__(self) -> None:
        """Wait."""
        if self._on_device:
            torch.cuda._sleep(self._cycles)
        end = time.perf_counter() + self.seconds
        while time.perf_counter() < end:
            pass

    def take(self) -> Seconds:
        """Seconds that one wait takes now, by the device's own clock where there is one."""
        if self._on_device:
            return _device_s(self._cycles)
        start = time.perf_counter()
        self()
        return time.perf_counter() - start


def _cycles_per_s() -> float:
    return _PROBE_CYCLES / min(_device_s(_PROBE_CYCLES) for _ in range(_PROBES))


def _device_s(cycles: int) -> Seconds:
    """Seconds between two events around a sleep of so many of the device's cycles."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.cuda._sleep(cycles)
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3
