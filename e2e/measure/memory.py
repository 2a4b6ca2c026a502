"""Memory of one arm, alone in its process."""

from __future__ import annotations

from typing import Any

import torch

from e2e.measure.machine import free_memory_bytes

FIRST_STEPS = 4
"""Steps after which an arm has what it needs: buffers, graphs and caches are made in the first ones."""


def peak(arena: Any, arm: str, *, seed: int, steps: int, device: str) -> dict[str, Any]:
    """Peaks over `steps` steps after the arm is ready, and what later steps kept; absent is None, never 0.

    Inputs are made step by step, so that their number is not in the figures. What a step takes from the device and
    gives back by itself, past torch, is not seen.

    Units:
        Bytes. Of a CPU only the process is seen: its resident high-water mark, start-up included, and its growth.
    """
    on_device = device != "cpu"
    if on_device:
        torch.cuda.empty_cache()  # what building the model left: given back later, it would count against the arm
    before = _device_used() if on_device else None
    ready = arena.prepare(arm, seed=seed)
    arena.sync()
    if on_device:
        torch.cuda.reset_peak_memory_stats()
    in_use = _in_use(on_device)
    for place in range(steps):
        arena.run(arm, seeds=[seed + place])
        if place + 1 == FIRST_STEPS:
            in_use = _in_use(on_device)
    grown = [after - first for first, after in zip(in_use, _in_use(on_device), strict=True)]
    return {
        "steps": steps,
        "first_step_s": ready["first_step_s"],
        "growth_bytes": max(grown, default=None) if steps > FIRST_STEPS else None,
        "host_high_water_bytes": _of_process("VmHWM"),
        **(_of_device(before) if before is not None else {}),
    }


def room(device: str) -> dict[str, int | None]:
    """Memory where the model lives: what this process holds, and what is free.

    Units:
        Bytes. Of a device what torch holds counts, the pools of CUDA graphs included.
    """
    if device != "cpu":
        return {"held_bytes": torch.cuda.memory_reserved(), "free_bytes": int(torch.cuda.mem_get_info()[0])}
    return {"held_bytes": _of_process("VmRSS") or 0, "free_bytes": free_memory_bytes()}


def of_step(arena: Any, arm: str, model: Any, *, seed: int, device: str) -> dict[str, int | None]:
    """What one more step of a prepared arm needs beside the weights; absent is None, never 0.

    Units:
        Bytes.
    """
    on_device = device != "cpu"
    arena.sync()
    if on_device:
        torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated() if on_device else None
    arena.run(arm, seeds=[seed])
    arena.sync()
    return {
        "parameters_bytes": sum(tensor.nbytes for tensor in model.parameters()),
        "buffers_bytes": sum(tensor.nbytes for tensor in model.buffers()),
        "held_bytes": held,
        "peak_bytes": torch.cuda.max_memory_allocated() if on_device else None,
        "host_high_water_bytes": _of_process("VmHWM"),
    }


def _of_device(before: int) -> dict[str, int | None]:
    return {
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
        "device_used_delta_bytes": _device_used() - before,
        "pinned_bytes": _pinned(),
    }


def _in_use(on_device: bool) -> list[int]:
    """By every source that sees it: torch's allocations may grow inside what it holds, a kernel's own outside."""
    if on_device:
        return [torch.cuda.memory_allocated(), _device_used()]
    resident = _of_process("VmRSS")
    return [] if resident is None else [resident]


def _device_used() -> int:
    """By every process on the device."""
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


def _pinned() -> int | None:
    """Most page-locked host memory that torch held; not every version of it counts."""
    if not hasattr(torch.cuda, "host_memory_stats"):
        return None
    found = torch.cuda.host_memory_stats().get("allocated_bytes.peak")
    return None if found is None else int(found)


def _of_process(field: str) -> int | None:
    with open("/proc/self/status", encoding="ascii") as file:
        for line in file:
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    return None
