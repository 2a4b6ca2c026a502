"""Planted arms take the time they are told and change nothing; planted kernels go wrong in one way each."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from e2e import registry
from e2e.arms import Arena
from e2e.bound import Part
from e2e.builders.planted import LATE_CALLS, LATE_TRICKS, PLUGIN, REFERENCE, TRICKS
from e2e.measure.pause import Pause
from e2e.ops.rms_norm import RmsNorm
from e2e.stages.planted import planted
from tests.sessions import ToySession

torch.set_num_threads(1)

OP: RmsNorm = registry.load("ops", "rms_norm")
TWIN, SLOW = "planted:eager+twin", "planted:eager+5%a"
PAUSE_S = 0.01


@pytest.fixture(scope="module")
def arena() -> Arena:
    session = ToySession()
    made = Arena(session, [Part(OP, OP.find_sites(session.model))])
    made.prepare("baseline:eager", seed=1)
    made.plant(TWIN, pause_s=0.0, seed=1)
    made.plant(SLOW, pause_s=PAUSE_S, seed=1)
    return made


# ---- Arms


@pytest.mark.parametrize("name", [TWIN, SLOW])
def test_a_planted_arm_computes_what_the_baseline_does_bit_for_bit(arena: Arena, name: str) -> None:
    assert arena.run("baseline:eager", seeds=[5, 6]) == arena.run(name, seeds=[5, 6])


def test_every_step_of_a_slow_arm_waits_once(arena: Arena) -> None:
    seconds = {}
    for name in (TWIN, SLOW):
        start = time.perf_counter()
        arena.run(name, seeds=list(range(10)))
        seconds[name] = time.perf_counter() - start
    assert seconds[SLOW] >= 10 * PAUSE_S
    assert seconds[TWIN] < 10 * PAUSE_S


def test_what_a_pause_took_is_measured_between_steps(arena: Arena) -> None:
    assert PAUSE_S <= arena.pause_s(SLOW, seeds=[1, 2, 3]) < 2 * PAUSE_S


def test_a_pause_is_never_shorter_than_told() -> None:
    assert min(Pause(0.002, "cpu").take() for _ in range(5)) >= 0.002


# ---- Kernels


def inputs(rows: int = 4) -> tuple[torch.Tensor, torch.Tensor, float]:
    generator = torch.Generator().manual_seed(rows)
    return torch.randn(rows, 8, generator=generator), torch.linspace(0.5, 1.5, 8), 1e-5


def bound(entry: str) -> Callable[..., torch.Tensor]:
    return PLUGIN.bind(planted("rms_norm", entry), OP, "float32")


def exact(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return OP.reference(x.double(), weight.double(), eps).float()


def test_the_honest_kernels_are_right() -> None:
    for entry in (REFERENCE, *(f"alternative:{name}" for name in OP.alternatives)):
        kernel = bound(entry)
        torch.testing.assert_close(kernel(*inputs()), exact(*inputs()))


def test_a_mutant_is_the_ops_own() -> None:
    kernel = bound("mutant:zeros")
    assert not kernel(*inputs()).any()


def test_every_planted_kernel_has_a_hash_of_its_own() -> None:
    entries = [REFERENCE, *(f"trick:{name}" for name in {**TRICKS, **LATE_TRICKS})]
    assert len(entries) == len({planted("rms_norm", entry).kernel.sha256 for entry in entries})
    assert planted("rms_norm", REFERENCE).kernel.sha256 != planted("module:X", REFERENCE).kernel.sha256


def test_one_that_remembers_gives_its_first_answer_to_another_input() -> None:
    kernel = bound("trick:remembers its first answer")
    x, weight, eps = inputs()
    first = kernel(x, weight, eps)
    torch.testing.assert_close(first, exact(x, weight, eps))
    assert torch.equal(first, kernel(2 + x, weight, eps))


def test_one_that_skips_rows_is_right_in_the_first_half_only() -> None:
    kernel = bound("trick:skips half the rows")
    x, weight, eps = inputs()
    found, right = kernel(x, weight, eps), exact(x, weight, eps)
    torch.testing.assert_close(found[:2], right[:2])
    assert not torch.isclose(found[2:], right[2:]).all()
    assert torch.equal(inputs()[0], x), "its input is untouched"


def test_one_that_writes_to_its_input_is_right_otherwise() -> None:
    kernel = bound("trick:writes to its input")
    x, weight, eps = inputs()
    torch.testing.assert_close(kernel(x, weight, eps), exact(*inputs()))
    assert not torch.equal(inputs()[0], x)


def test_one_that_reuses_its_output_hands_out_the_same_memory() -> None:
    kernel = bound("trick:reuses its output")
    x, weight, eps = inputs()
    first = kernel(x, weight, eps)
    assert first.data_ptr() == kernel(3 + x, weight, eps).data_ptr()
    torch.testing.assert_close(first, exact(3 + x, weight, eps))


def test_one_that_leaves_a_nan_leaves_one() -> None:
    kernel = bound("trick:leaves a NaN")
    assert 1 == int(kernel(*inputs()).isnan().sum())
    assert not kernel(*inputs(0)).numel(), "no rows, nothing to leave"


def test_one_that_stops_computing_later_is_right_as_long_as_it_is_checked() -> None:
    kernel = bound("trick:stops computing later")
    x, weight, eps = inputs()
    for call in range(LATE_CALLS):
        torch.testing.assert_close(kernel(x + call, weight, eps), exact(x + call, weight, eps))
    kernel(x, weight, eps)
    assert not torch.isclose(kernel(1 - x, weight, eps), exact(1 - x, weight, eps)).all()
