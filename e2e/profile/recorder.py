"""Worker side: one untimed, profiled pass of one arm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

STEP = "e2e step"
"""Range around each profiled step, by which the reader finds its span."""


def record(arena: Any, arm: str, *, seed: int, steps: int, path: Path, device: str) -> dict[str, Any]:
    """Profile `steps` steps and write the raw Chrome trace to `path`; timing is never taken from here."""
    from torch.profiler import ProfilerActivity, profile, record_function

    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device != "cpu" else [])
    arena.run(arm, seeds=[seed])
    with profile(activities=activities, record_shapes=True) as profiler:
        for place in range(steps):
            with record_function(STEP):
                arena.run(arm, seeds=[seed + place])
    profiler.export_chrome_trace(str(path))
    return {"steps": steps}
