"""Peak memory of one arm, alone in its process."""

from __future__ import annotations

from typing import Any

import torch


def peak(arena: Any, arm: str, *, seed: int, steps: int, device: str) -> dict[str, Any]:
    """Peaks over `steps` steps after the arm is ready; absent is None, never 0.

    Units:
        Bytes. On a CPU only the resident high-water mark of the process, start-up included.
    """
    if device == "cpu":
        arena.prepare(arm, seed=seed)
        arena.run(arm, seeds=[seed + place for place in range(steps)])
        return {"host_high_water_bytes": _high_water()}
    free_before, _ = torch.cuda.mem_get_info()
    arena.prepare(arm, seed=seed)
    arena.sync()
    torch.cuda.reset_peak_memory_stats()
    arena.run(arm, seeds=[seed + place for place in range(steps)])
    free_after, _ = torch.cuda.mem_get_info()
    return {
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
        "device_used_delta_bytes": free_before - free_after,
        "host_high_water_bytes": _high_water(),
    }


def _high_water() -> int | None:
    with open("/proc/self/status", encoding="ascii") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None
