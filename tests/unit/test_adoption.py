from __future__ import annotations

import ast
import hashlib
from pathlib import Path
from typing import Any

import pytest

from e2e.adoption import Written
from e2e.adoption import adopt as write
from e2e.errors import UsageError
from e2e.schema.adoption import FILE, Adoption
from e2e.schema.result import CellResult, Result
from e2e.schema.words import Outcome
from e2e.sources import digest
from e2e.store import RESULT, Run
from tests import results

REPOSITORY = Path(__file__).parents[2]
SOURCE = "// a kernel\n"


@pytest.fixture(autouse=True)
def _where_the_workloads_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)


def confirmed(**changes: Any) -> Result:
    told = results.verdict(outcome=Outcome.CONFIRMED, label=None, reasons=[])
    cell = CellResult(cell=results.cell(), evidence=results.evidence(), verdict=told)
    return results.result([cell], **changes)


def stored(folder: Path, result: Result, name: str = "rmsnorm.cu") -> Path:
    """The run's folder, with the kernel's source as a run leaves it."""
    kernel = results.kernel().model_copy(update={"sha256": hashlib.sha256(SOURCE.encode()).hexdigest()})
    kernels = [kernel] if result.kernels == [results.kernel()] else result.kernels
    folder.mkdir()
    run = Run(folder)
    run.finish(result.model_copy(update={"kernels": kernels}))
    run.write_text(f"kernel/{name}", SOURCE)
    return folder


def adopt(folder: Path, result: Result, **options: Any) -> Written:
    from e2e.store import load

    run = stored(folder / "run", result)
    return write(run, load(run), **{"out": folder / "out", "alternative": None, "forced": None, **options})


def refusal(folder: Path, result: Result, **options: Any) -> str:
    with pytest.raises(UsageError) as caught:
        adopt(folder, result, **options)
    assert not (folder / "out").exists(), "nothing is written"
    return caught.value.message


def record(written: Written) -> Adoption:
    return Adoption.model_validate_json((written.folder / FILE).read_bytes())


def test_a_confirmed_kernel_is_written_with_its_guard_and_its_test(tmp_path: Path) -> None:
    written = adopt(tmp_path, confirmed())
    names = {"adoption.json", "rms_norm_adopted.py", "test_rms_norm_adopted.py", "rmsnorm.cu"}
    assert names == {file.name for file in written.folder.iterdir()}
    told = record(written)
    assert ([{"hidden": 2048}], ["model.norm"], "NVIDIA H200") == (told.calls, told.sites, told.device)
    assert digest(tmp_path / "run" / RESULT) == told.result_sha256
    assert told.kernel is not None
    assert ("rmsnorm.cu", "candidate:eager") == (told.kernel.path, told.mode)
    assert "pytest" in written.text
    module = (written.folder / "rms_norm_adopted.py").read_text()
    assert "rms_norm by kernels/rmsnorm.cu in prefill 8 x 2048 bfloat16: CONFIRMED." in module
    assert told.result_sha256[:16] in module
    assert "FORCED" not in module


def test_what_is_not_confirmed_is_refused_and_the_free_win_offered(tmp_path: Path) -> None:
    said = refusal(tmp_path, results.result())
    assert "the run is REFUTED: matched by PyTorch; --force REASON writes it all the same" in said
    assert "as fast, and PyTorch's own: e2e adopt 20261130T120000Z-llama-infer-abc123 --alternative F.rms_norm" in said


def test_pytorchs_own_path_that_matched_is_adopted_without_a_kernel(tmp_path: Path) -> None:
    written = adopt(tmp_path, results.result(), alternative="F.rms_norm")
    assert not (written.folder / "rmsnorm.cu").exists()
    told = record(written)
    assert (None, "F.rms_norm", "baseline:eager+F.rms_norm") == (told.kernel, told.alternative, told.mode)
    assert "PyTorch's own F.rms_norm in" in (written.folder / "rms_norm_adopted.py").read_text()


@pytest.mark.parametrize(
    ("result", "options", "words"),
    [
        (confirmed(), {"alternative": "F.rms_norm"}, "F.rms_norm was not what matched the kernel; --force REASON"),
        (results.result(), {"alternative": "other"}, "other was not what matched the kernel"),
        (results.result(), {"alternative": "other", "forced": "it is mine"}, "--alternative other: rms_norm has F.rms"),
        (results.result(), {"forced": "because"}, "--force 'because': say why, in a few words"),
        (results.ended_early(6, "no device"), {"forced": "it is mine"}, "nothing of it ran"),
        (confirmed(command=["e2e", "validate", "--repeat", "x"]), {}, "adopt the run that it repeats"),
        (confirmed(command=["e2e", "validate", "none.yaml"]), {}, "no workload 'none.yaml'"),
        (confirmed(kernels=[]), {}, "has 0 kernels; adopt takes runs of one"),
    ],
)
def test_what_cannot_be_adopted_says_why(tmp_path: Path, result: Result, options: dict[str, Any], words: str) -> None:
    assert words in refusal(tmp_path, result, **options)


@pytest.mark.parametrize(
    ("manifest", "fields", "words"),
    [
        ({"op": "module:Thing"}, {}, "what one model's modules compute"),
        ({"kind": "patch", "op": "patch"}, {}, "what one model's modules compute"),
        ({}, {"path": None}, "is no source file of its own"),
        ({}, {"inside": "second.cu"}, "is no source file of its own"),
    ],
)
def test_a_kernel_without_sites_or_a_source_of_its_own_is_refused(
    tmp_path: Path, manifest: dict[str, Any], fields: dict[str, Any], words: str
) -> None:
    kernel = results.kernel()
    kernel = kernel.model_copy(update={"manifest": kernel.manifest.model_copy(update=manifest), **fields})
    assert words in refusal(tmp_path, confirmed(kernels=[kernel]))


def test_a_reason_forces_and_stands_in_the_module(tmp_path: Path) -> None:
    written = adopt(tmp_path, results.result(), forced='our own "tests" \\ """ say so')
    module = (written.folder / "rms_norm_adopted.py").read_text()
    assert "FORCED, although the run is not CONFIRMED: our own 'tests' / ''' say so" in module
    assert "REFUTED" in module


def test_names_from_files_do_not_become_code(tmp_path: Path) -> None:
    hostile = '"""\nimport os\n"""\\'
    kernel = results.kernel().model_copy(
        update={"spec": hostile, "sha256": hashlib.sha256(SOURCE.encode()).hexdigest()}
    )
    result = confirmed(kernels=[kernel], run_id=hostile)
    device = result.cells[0].evidence.device
    assert device is not None
    evidence = result.cells[0].evidence.model_copy(update={"device": device.model_copy(update={"name": hostile})})
    cell = result.cells[0].model_copy(update={"evidence": evidence})
    written = adopt(tmp_path, result.model_copy(update={"cells": [cell]}))
    for file, imported in (
        ("rms_norm_adopted.py", {"pathlib", "e2e.adopted"}),
        ("test_rms_norm_adopted.py", {"pytest"}),
    ):
        tree = ast.parse((written.folder / file).read_text())
        froms = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        plain = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
        assert imported <= froms | plain
        assert "os" not in froms | plain


def test_a_kernel_that_was_edited_or_removed_after_the_run_is_refused(tmp_path: Path) -> None:
    from e2e.store import load

    run = stored(tmp_path / "run", confirmed())
    (run / "kernel" / "rmsnorm.cu").write_text("// another\n")
    with pytest.raises(UsageError, match="is not the kernel that was measured"):
        write(run, load(run), out=tmp_path / "out", alternative=None, forced=None)
    (run / "kernel" / "rmsnorm.cu").unlink()
    with pytest.raises(UsageError, match="copy of the kernel cannot be read"):
        write(run, load(run), out=tmp_path / "out", alternative=None, forced=None)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    from e2e.store import load

    run = stored(tmp_path / "run", confirmed())
    options: dict[str, Any] = {"out": tmp_path / "out", "alternative": None, "forced": None}
    write(run, load(run), **options)
    with pytest.raises(UsageError, match="is there already, and nothing is overwritten"):
        write(run, load(run), **options)


def test_of_a_sweep_only_the_cells_that_are_confirmed_are_adopted(tmp_path: Path) -> None:
    cells = []
    for rows, outcome in ((512, Outcome.CONFIRMED), (16384, Outcome.REFUTED), (1024, Outcome.CONFIRMED)):
        site = results.engagement().sites[0].model_copy(update={"dims": {"rows": rows, "hidden": 2048}})
        seen = results.engagement().model_copy(update={"sites": [site]})
        told = results.verdict(outcome=outcome, label=None, reasons=[])
        cell = results.cell(sequence=rows)
        cells.append(CellResult(cell=cell, evidence=results.evidence(engagement=seen), verdict=told))
    told = record(adopt(tmp_path, results.result(cells)))
    assert [512, 1024] == [call["rows"] for call in told.calls]
    assert [512, 1024] == [cell.sequence for cell in told.cells]
