"""Tasks from outside the package: found beside the workload, read in the parent, run in workers only."""

from __future__ import annotations

import hashlib
import typing
from pathlib import Path
from typing import Any

import pytest
import torch

from e2e import outside, registry
from e2e.configuration import load_workload
from e2e.errors import UsageError
from e2e.numerics.examine import Examiner
from e2e.numerics.kept import Kept
from e2e.preflight import check_model, check_task
from e2e.protocols import Session, Task
from e2e.schema.workload import cells_of

torch.set_num_threads(1)

EXAMPLE = Path(__file__).parents[2] / "examples" / "forecaster.yaml"
TASK = EXAMPLE.with_suffix(".py")
_WORKLOAD = """\
name: own
task: own.py:Own
step: forward
model: {weights: random, dtype: float32, config: {model_type: own}}
data: {path: synthetic}
cells: {batch: [1]}
"""


@pytest.fixture(scope="module")
def session() -> Any:
    loaded = load_workload(str(EXAMPLE), ["cells.batch=[2]", "cells.sequence=[16]"])
    task = registry.load_task(loaded.workload.task, EXAMPLE.parent, loaded.task_sha256)
    return task.open(loaded.workload, cells_of(loaded.workload)[0], root=EXAMPLE.parent, device="cpu", seed=1)


def write(folder: Path, text: str) -> Path:
    (folder / "own.py").write_text(text)
    file = folder / "own.yaml"
    file.write_text(_WORKLOAD)
    return file


def test_the_members_asked_of_a_task_are_those_of_the_protocol() -> None:
    public = {name for name in vars(Task) if not name.startswith("_")} | set(typing.get_type_hints(Task))
    assert public == set(outside.TASK.members)


def test_the_example_has_all_that_the_protocol_says(session: Any) -> None:
    asked = {name for name in vars(Session) if not name.startswith("_")} | set(typing.get_type_hints(Session))
    assert [name for name in asked if not hasattr(session, name)] == []


def test_the_example_is_ready_before_anything_starts() -> None:
    loaded = load_workload(str(EXAMPLE))
    check_task(loaded)
    check_model(loaded)
    assert loaded.task_sha256 == hashlib.sha256(TASK.read_bytes()).hexdigest()


@pytest.mark.parametrize(("factor", "status"), [(1.0, "passed"), (1.001, "wrong")])
def test_the_examples_forecasts_are_judged_without_kl_or_classes(
    session: Any, tmp_path: Path, factor: float, status: str
) -> None:
    from safetensors.torch import save_file

    op = registry.load_op("layer_norm")
    examiner = Examiner(session, op, op.find_sites(session.model))
    assert examiner.survey(seed=1, path=tmp_path / "calls", budget_bytes=2**22)["captured"] == 8
    told = examiner.reference_logits(tokens=200, seed=1, kept=Kept(None, []))
    assert told["tokens"] == 200 // 16 * 16
    answers = torch.cat([session.answers(session.model, *inputs) for inputs in session.exam(200, 1)])
    save_file({"logits": factor * answers.reshape(-1, 16)}, tmp_path / "answers")
    row = examiner.compare_logits(path=tmp_path / "answers", ratio=2.0)
    assert (row["status"], row["kl_candidate"], row["top1_candidate"]) == (status, None, None)
    assert row["answer"]["what"] == "forecasts"


def test_the_parent_reads_the_file_and_does_not_run_it(tmp_path: Path) -> None:
    file = write(tmp_path, "class Own:\n    steps = ('forward',)\n    def open(self): ...\nraise SystemExit('run')\n")
    loaded = load_workload(str(file))
    check_task(loaded)
    assert loaded.task_sha256 is not None
    with pytest.raises(UsageError, match=r"task .*own\.py:4: SystemExit: run"):
        registry.load_task(loaded.workload.task, tmp_path, loaded.task_sha256)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("class Own:\n    steps = ('forward',)\n", r"Own lacks open \(see docs/workloads\.md\)"),
        ("class Own: ...\n", r"Own is no task \(see docs/workloads\.md\)"),
        ("class Other: ...\n", "there is no 'Own' in it; it has: Other"),
    ],
)
def test_a_file_without_the_task_is_the_callers_mistake(tmp_path: Path, text: str, words: str) -> None:
    loaded = load_workload(str(write(tmp_path, text)))
    with pytest.raises(UsageError, match=words):
        registry.load_task(loaded.workload.task, tmp_path)


def test_a_task_whose_file_is_missing_or_lacks_the_step_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path, "class Own:\n    steps = ('prefill',)\n")
    with pytest.raises(UsageError, match=r"the task own\.py:Own has no forward; it has: prefill"):
        check_task(load_workload(str(file)))
    (tmp_path / "own.py").unlink()
    with pytest.raises(UsageError, match=r"task .*own\.py cannot be read: No such file"):
        load_workload(str(file))


def test_a_file_that_changed_meanwhile_is_refused() -> None:
    with pytest.raises(UsageError, match=r"task .* changed during the run"):
        registry.load_task("forecaster.py:Forecasting", EXAMPLE.parent, "0" * 64)
