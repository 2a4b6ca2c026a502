"""Invented profiles of a step: what the host does, one thing after the other, and what the device makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from e2e.profile import timeline
from e2e.profile.timeline import SITE, STEP, Timeline

LAUNCH_US = 4.0
"""What a launch takes the host; the device begins when it is done, or when it is free."""


class Tracer:
    """Writes one step; times are in microseconds."""

    def __init__(self, *, device: bool = True) -> None:
        self.events: list[dict[str, Any]] = []
        self._device = device
        self._host = self._free = 1000.0
        self._number = 0

    def work(self, us: float) -> None:
        """The host does something that no trace shows."""
        self._host += us

    def launch(self, name: str, us: float, *, cat: str = "kernel") -> None:
        self._number += 1
        self._add("cudaLaunchKernel", "cuda_runtime", LAUNCH_US, correlation=self._number)
        start = max(self._host, self._free)
        self._event(name, cat, start, us, tid=7, correlation=self._number)
        self._free = start + us

    def operator(self, name: str, us: float) -> None:
        self._add(name, "cpu_op", us)

    def sync(self) -> None:
        """The host waits until the device is done, and a little longer."""
        self._add("cudaStreamSynchronize", "cuda_runtime", max(0.0, self._free - self._host) + 1.0)

    def allocate(self, us: float) -> None:
        self._add("cudaMalloc", "cuda_runtime", us)

    @contextmanager
    def op(self, site: str = "model.norm") -> Iterator[None]:
        start = self._host
        yield
        self._event(f"{SITE}{site}", "user_annotation", start, self._host - start)

    def read(self, arm: str = "baseline:eager", *, ranged: bool = True) -> Timeline:
        """What the step's trace says; it ends with a wait for the device, as every profiled step does."""
        if self._device:
            self.sync()
        events = list(self.events)
        if ranged:
            whole = {"ph": "X", "cat": "user_annotation", "name": STEP, "ts": 1000.0, "pid": 1, "tid": 1}
            events.append({**whole, "dur": self._host - 1000.0})
        return timeline.read(events, arm=arm, steps=1, path="p")

    def _add(self, name: str, cat: str, us: float, **args: Any) -> None:
        self._event(name, cat, self._host, us, **args)
        self._host += us

    def _event(self, name: str, cat: str, start: float, us: float, *, tid: int = 1, **args: Any) -> None:
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": us, "pid": 1, "tid": tid, "args": args}
        )
