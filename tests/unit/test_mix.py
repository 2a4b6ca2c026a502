"""What a kernel is worth on the cells of a sweep together, each as often as the workload runs it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from e2e import stats
from e2e.configuration import load_workload
from e2e.errors import UsageError
from e2e.mix import mix_of
from e2e.schema.result import CellResult
from e2e.schema.verdict import Estimate
from e2e.schema.workload import Cell, cells_of
from e2e.story_sections import _on_the_mix
from tests import results
from tests.fakes import policy


def estimate(point: float, *, half: float = 0.0, look: int = 5) -> Estimate:
    """An interval whose logarithm is so much wide on either side."""
    bounds = {"lower_bound": point * math.exp(-half), "upper_bound": point * math.exp(half)}
    return Estimate(point_estimate=point, **bounds, confidence_level=0.95, look=look)


def cell(weight: float | None, *, step_s: float, speedup: float | None, half: float = 0.01) -> CellResult:
    """A timed cell; `speedup` None: one without a time."""
    latency = results.verdict().latency
    row = next(row for row in latency.against if row.opponent == "best_pytorch")
    timed = row.model_copy(update={"arm_step_s": step_s, "speedup": estimate(speedup or 1.0, half=half)})
    changed = [] if speedup is None else [timed]
    return CellResult(
        cell=Cell(batch=1, sequence=8, dtype="float32", step="prefill", weight=weight),
        evidence=results.evidence(),
        verdict=results.verdict(latency=latency.model_copy(update={"against": changed})),
    )


def test_one_prefill_and_many_decodes_are_no_equal_votes() -> None:
    """A prefill of 80 ms that is won twofold, beside 64 decodes of 10 ms that are not touched."""
    mix = mix_of([cell(1, step_s=0.08, speedup=2.0), cell(64, step_s=0.01, speedup=1.0)], policy())
    assert mix is not None and mix.speedup is not None
    assert pytest.approx((0.08 + 0.64) / (0.04 + 0.64)) == mix.speedup.point_estimate
    assert pytest.approx((0.08 + 0.64) / 65) == mix.baseline_step_s
    assert pytest.approx((0.04 + 0.64) / 65) == mix.candidate_step_s


def test_a_cell_that_is_never_run_counts_for_nothing_even_without_a_time() -> None:
    mix = mix_of([cell(1, step_s=0.01, speedup=1.1), cell(0, step_s=1.0, speedup=None)], policy())
    assert mix is not None and mix.speedup is not None
    assert pytest.approx(1.1) == mix.speedup.point_estimate


def test_a_cell_that_counts_and_has_no_time_leaves_the_mix_unknown() -> None:
    mix = mix_of([cell(1, step_s=0.01, speedup=1.1), cell(1, step_s=1.0, speedup=None)], policy())
    assert mix is not None and mix.speedup is None
    assert "not known, for want of a time in prefill 1 x 8 float32" in _on_the_mix(mix)[0]


@pytest.mark.parametrize("weights", [(None, None), (1, None)])
def test_without_weights_there_is_no_mix(weights: tuple[float | None, ...]) -> None:
    assert mix_of([cell(weight, step_s=0.01, speedup=1.1) for weight in weights], policy()) is None


def test_one_cell_is_no_mix() -> None:
    assert mix_of([cell(1, step_s=0.01, speedup=1.1)], policy()) is None


def test_half_widths_add_in_quadrature_by_what_each_part_takes() -> None:
    mixed = stats.mixture([estimate(1.0, half=0.03), estimate(1.0, half=0.04)], [0.5, 0.5])
    assert pytest.approx(math.hypot(0.015, 0.02)) == math.log(mixed.upper_bound)
    assert pytest.approx(1 / mixed.upper_bound) == mixed.lower_bound
    alone = stats.mixture([estimate(1.2, half=0.03)], [1.0])
    assert pytest.approx((1.2, 1.2 * math.exp(0.03))) == (alone.point_estimate, alone.upper_bound)


def test_weights_are_one_for_every_cell(tmp_path: Path) -> None:
    text = (
        "{name: w, task: causal-lm, step: prefill, model: {id: x, dtype: float32}, data: {path: synthetic}, cells: %s}"
    )
    file = tmp_path / "w.yaml"
    file.write_text(text % "{batch: [1], sequence: [8], step: [prefill, decode], weights: [1, 64]}")
    assert [("prefill", 1), ("decode", 64)] == [(c.step, c.weight) for c in cells_of(load_workload(str(file)).workload)]
    for weights, words in (("[1]", "1 of them for 2 cells"), ("[0, 0]", "all are 0"), ("[1, -1]", "greater than")):
        file.write_text(text % f"{{batch: [1, 2], sequence: [8], weights: {weights}}}")
        with pytest.raises(UsageError, match=words):
            load_workload(str(file))
