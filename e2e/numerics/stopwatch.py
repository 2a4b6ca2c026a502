"""Clean side: how long the calls of an op take within an eager step, roughly: it orders what is measured properly."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from e2e.patch import Patch
from e2e.protocols import Op, Site
from e2e.trainer import stepping
from e2e.units import Seconds

STEPS = 3
"""Steps under the stopwatch, after one that warms up; the median counts."""


class Stopwatch:
    """Sums spans, by the device's clock where there is one."""

    def __init__(self, device: str) -> None:
        self._on_device = device != "cpu"
        self._spans: list[tuple[Any, Any]] = []

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, each of its calls a span."""

        def timed(*args: Any, **named: Any) -> Any:
            start = self._now()
            output = function(*args, **named)
            self._spans.append((start, self._now()))
            return output

        return timed

    def seconds(self) -> Seconds:
        """In all spans so far, which are then forgotten."""
        if self._on_device:
            torch.cuda.synchronize()
            taken = sum(start.elapsed_time(end) for start, end in self._spans) / 1e3
        else:
            taken = sum(end - start for start, end in self._spans)
        self._spans = []
        return float(taken)

    def _now(self) -> Any:
        if not self._on_device:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def seconds_in(session: Any, op: Op, sites: list[Site], *, seed: int) -> dict[str, Seconds]:
    """Seconds per eager step in the op's own code at those sites, and of that step.

    On a device they contain its waiting for the host between a call's kernels, as the step does. In training the step
    is a whole one, and of the op's backward nothing is seen.
    """
    inside, whole = Stopwatch(session.device), Stopwatch(session.device)
    patch = Patch(op, sites, lambda site: inside(op.own(site)))
    found: list[tuple[Seconds, Seconds]] = []
    try:
        with stepping(session) as run:
            step = whole(run)
            for place in range(1 + STEPS):
                batch = session.batch(seed + place)
                session.reset()
                step(batch)
                found.append((inside.seconds(), whole.seconds()))
    finally:
        patch.undo()
    return {"op_s": median(op_s for op_s, _ in found[1:]), "step_s": median(step_s for _, step_s in found[1:])}
