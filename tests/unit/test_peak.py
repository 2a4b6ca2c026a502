"""Memory of one arm in this very process: high-water mark, growth, and nothing made up."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from e2e import registry
from e2e.arms import Arena
from e2e.bound import Part
from e2e.measure.memory import FIRST_STEPS, peak
from e2e.schema.evidence import MemoryRecord
from tests.sessions import LlamaSession

MIB = 2**20
ARM = "baseline:eager"


class FakeArena:
    """An arm whose every step keeps some memory, written to so that it is resident."""

    def __init__(self, *, kept_bytes: int = 0, passing_bytes: int = 0, device: str = "cpu") -> None:
        self._kept_bytes, self._passing_bytes, self._device = kept_bytes, passing_bytes, device
        self._kept: list[Any] = []
        self.seeds: list[int] = []

    def prepare(self, name: str, *, seed: int) -> dict[str, Any]:
        self._kept.append(torch.ones(1, device=self._device))
        return {"first_step_s": 0.25}

    def sync(self) -> None: ...

    def run(self, name: str, *, seeds: list[int]) -> None:
        self.seeds += seeds
        self._kept.append(torch.ones(self._kept_bytes, dtype=torch.uint8, device=self._device))
        torch.ones(self._passing_bytes, dtype=torch.uint8, device=self._device)


def seen(arena: Any, *, steps: int, device: str = "cpu") -> dict[str, Any]:
    return peak(arena, ARM, seed=7, steps=steps, device=device)


def test_a_step_of_a_real_model_on_a_cpu_shows_the_process_and_nothing_of_a_device() -> None:
    op = registry.load("ops", "rms_norm")
    session = LlamaSession()
    found = seen(Arena(session, [Part(op, op.find_sites(session.model))]), steps=FIRST_STEPS + 2)
    assert {"steps", "first_step_s", "growth_bytes", "host_high_water_bytes"} == set(found)
    assert ARM == MemoryRecord.model_validate({**found, "arm": ARM}).arm
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 50 * MIB < found["host_high_water_bytes"] < total
    assert FIRST_STEPS + 2 == found["steps"]


def test_what_every_step_keeps_is_growth() -> None:
    found = seen(FakeArena(kept_bytes=8 * MIB), steps=FIRST_STEPS + 8)
    assert 56 * MIB < found["growth_bytes"] < 80 * MIB


def test_what_a_step_gives_back_raises_the_peak_and_does_not_grow() -> None:
    Path("/proc/self/clear_refs").write_text("5")  # the mark falls to what is resident now
    before = seen(FakeArena(), steps=1)["host_high_water_bytes"]
    found = seen(FakeArena(passing_bytes=256 * MIB), steps=FIRST_STEPS + 4)
    assert found["host_high_water_bytes"] > before + 200 * MIB
    assert found["growth_bytes"] < 64 * MIB


@pytest.mark.parametrize("steps", [1, FIRST_STEPS])
def test_after_few_steps_growth_is_not_known(steps: int) -> None:
    assert None is seen(FakeArena(kept_bytes=MIB), steps=steps)["growth_bytes"]


def test_every_step_has_an_input_of_its_own() -> None:
    arena = FakeArena()
    seen(arena, steps=5)
    assert [7, 8, 9, 10, 11] == arena.seeds


@pytest.mark.gpu
def test_on_a_device_every_source_sees_what_the_steps_take() -> None:
    torch.cuda.empty_cache()  # what earlier tests left would be used again, and nothing be taken from the device
    arena = FakeArena(kept_bytes=32 * MIB, passing_bytes=64 * MIB, device="cuda")
    found = seen(arena, steps=FIRST_STEPS + 4, device="cuda")
    assert found["peak_allocated_bytes"] >= (FIRST_STEPS + 4) * 32 * MIB + 64 * MIB
    assert found["peak_reserved_bytes"] >= found["peak_allocated_bytes"]
    assert found["device_used_delta_bytes"] >= (FIRST_STEPS + 4) * 32 * MIB
    assert found["growth_bytes"] >= 4 * 32 * MIB
