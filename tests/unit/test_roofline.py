from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from e2e import ceilings, registry
from e2e.numerics import roofline
from e2e.numerics.captures import Captured, save_calls
from e2e.protocols import OpCall
from e2e.schema.evidence import Roofline
from e2e.schema.result import CellResult
from e2e.story import tell
from tests import results


def worked(op: str, call: OpCall, folder: Path) -> dict[str, Any]:
    path = folder / "calls.safetensors"
    save_calls(path, [Captured("site", "captured", call)])
    return roofline.work_of(registry.load("ops", op), inputs=path, device="cpu")


def test_a_norm_moves_its_input_its_weight_and_its_output_and_multiplies_no_matrices(tmp_path: Path) -> None:
    call = OpCall((torch.randn(4, 64), torch.ones(64)), (1e-5,))
    assert worked("rms_norm", call, tmp_path) == {"bytes": 4 * (4 * 64 + 64 + 4 * 64), "flops": 0.0}


def test_a_linear_layer_has_two_operations_for_every_weight_and_row(tmp_path: Path) -> None:
    call = OpCall((torch.randn(4, 64), torch.randn(32, 64), None), ())
    assert worked("linear", call, tmp_path) == {"bytes": 4 * (4 * 64 + 32 * 64 + 4 * 32), "flops": 2.0 * 4 * 64 * 32}


def test_a_table_of_which_a_call_reads_some_rows_is_not_counted(tmp_path: Path) -> None:
    call = OpCall((torch.zeros(4, dtype=torch.int64), torch.randn(1000, 16)), ())
    assert worked("embedding", call, tmp_path) == {"bytes": 8 * 4 + 4 * 4 * 16, "flops": 0.0}


def test_maths_that_looks_at_values_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    op = registry.load("ops", "silu")
    monkeypatch.setattr(op, "reference", lambda x: x * float(x.sum()))
    assert worked("silu", OpCall((torch.randn(8),), ()), tmp_path) == {"bytes": 64, "flops": None}


def test_the_device_is_measured_by_a_copy_and_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "_COPIED", {"cpu": 2**20})
    monkeypatch.setattr(roofline, "_SIDE", {"cpu": 64})
    monkeypatch.setattr(roofline, "_fastest", lambda work, device: (work(), 1e-3)[1])
    found = roofline.ceilings(dtype="float32", device="cpu")
    assert found == {"copy_bytes_per_s": 2 * 2**20 * 1e3, "matmul_flops_per_s": pytest.approx(2 * 64**3 * 1e3)}


@pytest.mark.parametrize(("flops", "least"), [(0.0, 1e-3), (4e9, 4e-3), (None, 1e-3)])
def test_a_call_takes_at_least_what_its_bytes_or_its_products_do(flops: float | None, least: float) -> None:
    limit = Roofline(bytes=10**6, flops=flops, copy_bytes_per_s=1e9, matmul_flops_per_s=1e12)
    assert limit.least_s == pytest.approx(least)


def test_the_highest_rate_of_any_run_is_kept_by_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("E2E_CACHE_DIR", str(tmp_path))
    slow, fast = ({"copy_bytes_per_s": rate, "matmul_flops_per_s": 5.0} for rate in (1.0, 2.0))
    assert ceilings.highest("cpu", slow) == slow
    assert ceilings.highest("cpu", fast) == fast
    assert ceilings.highest("cpu", slow) == fast, "other work slowed it down"
    assert ceilings.highest("gpu", slow) == slow


@pytest.mark.parametrize("text", ["", "[]", '{"cpu": 3}', '{"cpu": {"copy_bytes_per_s": "high"}}', "{"])
def test_a_damaged_file_is_no_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("E2E_CACHE_DIR", str(tmp_path))
    (tmp_path / "ceilings.json").write_text(text)
    rates = {"copy_bytes_per_s": 1.0, "matmul_flops_per_s": 5.0}
    assert ceilings.highest("cpu", rates) == rates


def test_the_page_says_how_near_each_way_comes_to_the_devices_best() -> None:
    isolated = results.evidence().isolated
    assert isolated is not None
    limit = Roofline(bytes=134_000_000, flops=0.0, copy_bytes_per_s=4.0e12, matmul_flops_per_s=7e14)
    seen = results.evidence(isolated=isolated.model_copy(update={"roofline": limit}))
    cell = CellResult(cell=results.cell(), evidence=seen, verdict=results.verdict())
    story = tell(results.result([cell]), is_full=True)
    section = next(item for item in story.sections if item.title == "Roofline of the op")
    assert section.table is not None
    assert section.table.rows == (
        ("the model's own module", "406 us", "8.3 %"),
        ("F.rms_norm", "40.5 us", "83 %"),
        ("the kernel", "39.0 us", "86 %"),
    )
    assert "4,000 GB/s copied, 700 TFLOP/s in products: at least 33.5 us" in section.lines[0]
