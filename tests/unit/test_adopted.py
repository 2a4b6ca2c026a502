"""An adopted kernel in a real, small model: it runs for the call that was measured, and for no other."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from e2e.adopted import Adopted
from e2e.errors import StoredRunError, UsageError
from e2e.reading import read_kernel
from e2e.schema.adoption import FILE, Adoption
from e2e.schema.words import Outcome
from e2e.schema.workload import Cell
from e2e.surroundings import packages
from tests import tiny

BATCH, SEQUENCE = 1, 32
SOURCE = """\
# /// e2e
# op: rms_norm
# entry: norm
# ///
import torch


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps) * {factor}
"""


def folder_of(folder: Path, *, factor: float = 1.0, **changes: Any) -> Path:
    """What `e2e adopt` would write, for a kernel whose outputs are multiplied, so that it shows where it runs."""
    folder.mkdir(exist_ok=True)
    (folder / "norm.py").write_text(SOURCE.format(factor=factor))
    kernel = read_kernel(str(folder / "norm.py"), op=None).model_copy(update={"path": "norm.py"})
    fields: dict[str, Any] = {
        "run_id": "run",
        "result_sha256": "0" * 64,
        "outcome": Outcome.CONFIRMED,
        "policy": "standard",
        "op": "rms_norm",
        "op_sha256": None,
        "kernel": kernel,
        "alternative": None,
        "mode": "candidate:eager",
        "sites": ["model.norm"],
        "calls": [{"rows": BATCH * SEQUENCE, "hidden": tiny.HIDDEN, "dtype": "float32"}],
        "cells": [Cell(batch=BATCH, sequence=SEQUENCE, dtype="float32", step="prefill")],
        "device": "CPU",
        "environment": {"packages": packages()},
        "workload": "tiny.yaml",
        "workload_sha256": "0" * 64,
        "overrides": {},
    }
    (folder / FILE).write_text(Adoption(**{**fields, **changes}).model_dump_json())
    return folder


def ids(batch: int = BATCH) -> torch.Tensor:
    return torch.arange(batch * SEQUENCE).reshape(batch, SEQUENCE) % tiny.VOCABULARY


def test_it_runs_for_the_call_that_was_measured_and_can_be_taken_back(tmp_path: Path) -> None:
    model = tiny.llama()
    before = dict(vars(model.model.norm))
    calls: Counter[str] = Counter()
    with torch.no_grad():
        own = model(ids()).logits
        applied = Adopted(folder_of(tmp_path / "a", factor=2.0)).apply(model, calls=calls)
        twice = model(ids()).logits
        applied.undo()
        again = model(ids()).logits
    assert Counter({"model.norm": 1}) == calls
    torch.testing.assert_close(2 * own, twice)
    assert torch.equal(own, again)
    assert before == dict(vars(model.model.norm))


def test_another_shape_dtype_or_gradient_keeps_the_models_own_code(tmp_path: Path) -> None:
    adopted = Adopted(folder_of(tmp_path / "a", factor=2.0))
    model = tiny.llama()
    with torch.no_grad():
        own = model(ids(2)).logits
    calls: Counter[str] = Counter()
    applied = adopted.apply(model, calls=calls)
    with torch.no_grad():
        assert torch.equal(own, model(ids(2)).logits)
    model(ids()).logits.sum().backward()
    applied.undo()
    model = model.to(torch.bfloat16)
    adopted.apply(model, calls=calls)
    with torch.no_grad():
        model(ids())
    assert 0 == calls.total()


def test_under_a_compiler_it_is_an_op_without_a_break_in_the_graph(tmp_path: Path) -> None:
    model = tiny.llama()
    with torch.no_grad():
        own = model(ids()).logits
        Adopted(folder_of(tmp_path / "a", factor=2.0)).apply(model)
        graphs: list[Any] = []

        def backend(graph: Any, inputs: Any) -> Any:
            graphs.append(graph)
            return graph

        norm = torch.compile(model.model.norm, fullgraph=True, backend=backend)
        norm(torch.ones(BATCH, SEQUENCE, tiny.HIDDEN))
        torch.testing.assert_close(2 * own, model(ids()).logits)
    assert any("e2e_" in str(node.target) for node in graphs[0].graph.nodes)


def test_pytorchs_own_path_needs_no_kernel(tmp_path: Path) -> None:
    model = tiny.llama()
    calls: Counter[str] = Counter()
    folder = folder_of(tmp_path / "a", kernel=None, alternative="F.rms_norm")
    with torch.no_grad():
        own = model(ids()).logits
        Adopted(folder).apply(model, calls=calls)
        torch.testing.assert_close(own, model(ids()).logits)
    assert 1 == calls["model.norm"]


def test_another_device_is_left_alone_and_another_version_is_said(tmp_path: Path) -> None:
    model = tiny.llama()
    with pytest.warns(UserWarning, match="measured on NVIDIA H200, not here: left out"):
        assert () == Adopted(folder_of(tmp_path / "a", device="NVIDIA H200")).apply(model).sites
    assert "forward" not in vars(model.model.norm)
    older = {"packages": {**packages(), "torch": "1.0"}}
    with pytest.warns(UserWarning, match="measured in another environment: torch 1.0 -> "):
        assert ("model.norm",) == Adopted(folder_of(tmp_path / "b", environment=older)).apply(model).sites


def test_another_model_is_refused(tmp_path: Path) -> None:
    adopted = Adopted(folder_of(tmp_path / "a", sites=["model.norm", "model.layers.9.input_layernorm", "x"]))
    with pytest.raises(UsageError, match=r"no place for rms_norm at model\.layers\.9\.input_layernorm and 1 more"):
        adopted.apply(tiny.llama())


def test_an_edited_kernel_or_record_is_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "a")
    (folder / "norm.py").write_text(SOURCE.format(factor=3.0))
    with pytest.raises(StoredRunError, match="is not what was measured"):
        Adopted(folder)
    (folder / FILE).write_text("{}")
    with pytest.raises(StoredRunError, match="cannot be read"):
        Adopted(folder)
    with pytest.raises(StoredRunError, match="cannot be read"):
        Adopted(tmp_path / "none")


def test_its_trial_runs_the_measured_step_and_another(tmp_path: Path) -> None:
    file = tiny.write_workload(tmp_path, sequence=SEQUENCE)
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    adopted = Adopted(folder_of(tmp_path / "a", workload=str(file), workload_sha256=sha256))
    assert {"model.norm": 1} == adopted.trial()
    assert 2 == adopted.another_batch
    assert {"model.norm": 0} == adopted.trial(batch=2)
    file.write_text(file.read_text() + "# changed\n")
    with pytest.raises(UsageError, match="has changed since run run"):
        adopted.trial()
