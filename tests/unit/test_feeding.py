"""Steps fed by a data pipeline, with a pipeline and a step that need no model."""

from __future__ import annotations

import multiprocessing.process
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from e2e.configuration import load_workload
from e2e.crew import Deadline
from e2e.errors import UsageError
from e2e.judge import judge
from e2e.measure.feeding import batch_s, short_temporary_folder
from e2e.measure.schedule import SeedSource
from e2e.processes import WorkerFault
from e2e.schema.evidence import Evidence, Fed
from e2e.schema.words import ReasonCode, Stage
from e2e.schema.workload import Cell, DataSpec
from e2e.stages.fed import measure_fed
from e2e.story_facts import _fed
from e2e.weighing import fed_of
from tests import results
from tests.fakes import CANDIDATE, EAGER, STEP_S, arms, evidence, policy, timed


class Pipeline:
    """Makes batches that say who made them."""

    device = "cpu"
    cell = Cell(batch=1, sequence=1, dtype="bfloat16", step="forward")

    def made(self, seed: int) -> tuple[torch.Tensor, ...]:
        return torch.tensor([seed]), torch.tensor([0.5]), torch.tensor([os.getpid()])


@pytest.mark.parametrize("workers", [0, 2])
def test_steps_get_every_batch_once_in_order_from_as_many_processes_as_asked(workers: int) -> None:
    taken: list[Any] = []
    seconds = batch_s(Pipeline(), DataSpec(path="x", workers=workers), taken.append, seeds=range(9), settle=3)
    assert seconds > 0
    assert list(range(9)) == [int(batch[0]) for batch in taken]
    makers = {int(batch[2]) for batch in taken}
    assert {os.getpid()} == makers if workers == 0 else len(makers) == workers and os.getpid() not in makers
    assert [torch.int64, torch.bfloat16] == [tensor.dtype for tensor in taken[0][:2]]  # numbers in the cell's dtype


def test_a_long_name_of_the_temporary_folder_stops_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sockets in it could not be opened, and whoever waits for a batch would wait for ever."""
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    monkeypatch.setitem(multiprocessing.process.current_process()._config, "tempdir", None)
    with short_temporary_folder():
        assert batch_s(Pipeline(), DataSpec(path="x", workers=1), None, seeds=range(4), settle=1) > 0
    assert tempfile.tempdir == str(deep)


def test_a_pipeline_is_timed_without_a_step_too() -> None:
    assert batch_s(Pipeline(), DataSpec(path="x"), None, seeds=range(4), settle=1) > 0
    with pytest.raises(ValueError, match="no batch is left"):
        batch_s(Pipeline(), DataSpec(path="x"), None, seeds=range(4), settle=4)


def fed(*, made: float, without: float, mine: float) -> Evidence:
    times = {None: made, EAGER: without, CANDIDATE: mine}
    found = [Fed(arm=arm, batch_s=batch_s, spread_ratio=0.02) for arm, batch_s in times.items()]
    return evidence(timed(1.05), arms=arms(), baseline=EAGER, candidate=CANDIDATE, fed=found)


def test_a_step_that_waits_for_its_data_is_named_and_the_verdict_stays_that_of_prepared_batches() -> None:
    slow = fed(made=2 * STEP_S, without=2 * STEP_S, mine=2 * STEP_S)
    reasons = [reason.code for reason in judge(slow, policy()).reasons]
    assert ReasonCode.INPUT_BOUND in reasons
    assert judge(slow, policy()).outcome == judge(fed(made=1e-4, without=STEP_S, mine=STEP_S), policy()).outcome
    found = fed_of(slow)
    assert found is not None
    assert (0.5, 1.0) == (found.waits, found.speedup)
    ((label, text),) = _fed(results.result([]), slow)
    assert "pipeline" == label
    assert all(words in text for words in ("50 % is not the step", "1.00x end to end", "differs by up to 2 %"))


def test_a_pipeline_that_keeps_up_binds_nothing() -> None:
    quick = fed(made=1e-4, without=1.01 * STEP_S, mine=STEP_S)
    assert ReasonCode.INPUT_BOUND not in [reason.code for reason in judge(quick, policy()).reasons]


def test_what_was_not_measured_says_nothing() -> None:
    assert fed_of(evidence(timed(1.05))) is None
    assert [] == list(_fed(results.result([]), evidence(timed(1.05))))


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("task: causal-lm, data: {path: synthetic}", "no pipeline where inputs are drawn"),
        ("task: command, command: {argv: [x]}", "a pipeline of its own"),
    ],
)
def test_a_pipeline_that_is_none_cannot_be_included(tmp_path: Path, task: str, words: str) -> None:
    file = tmp_path / "w.yaml"
    rest = "step: prefill, model: {id: x, dtype: float32}, cells: {batch: [1], sequence: [8]}, include: [data]"
    file.write_text(f"{{name: w, {task}, {rest}}}")
    with pytest.raises(UsageError, match=words):
        load_workload(str(file))


class FeedingWorker:
    """Says how long batches took it, and remembers for whom; breaks at one of them."""

    def __init__(self, broken: str) -> None:
        self._broken = broken
        self.fed: list[str | None] = []

    def call(self, do: str, *, timeout_s: float, arm: str | None, **fields: Any) -> dict[str, Any]:
        if do == "prepare":
            return {}
        if arm == self._broken:
            raise WorkerFault("no answer to 'feed'", kind="timed_out")
        self.fed.append(arm)
        assert len(fields["seeds"]) > fields["settle"] == 2 + 3 * 4
        return {"batch_s": 0.01 + 0.001 * len(self.fed)}

    def __enter__(self) -> FeedingWorker:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to end."""


def course(worker: FeedingWorker, *, include: list[str]) -> Any:
    own = results.workload()
    data = own.data.model_copy(update={"workers": 3, "prefetch": 4})
    loaded = SimpleNamespace(workload=own.model_copy(update={"include": include, "data": data}))
    found = SimpleNamespace(
        crew=SimpleNamespace(workload=loaded, candidate_worker=lambda fqns, *, stage: worker),
        policy=policy(),
        progress=SimpleNamespace(stage=lambda *_: None),
        deadline=Deadline(60),
        seeds=SeedSource(0),
        fqns=[],
        evidence=evidence(arms=arms(), baseline=EAGER, candidate=CANDIDATE),
    )
    found.learn = lambda **changes: setattr(found, "evidence", found.evidence.model_copy(update=changes))
    return found


def test_the_pipeline_and_both_arms_take_turns_in_mirrored_order() -> None:
    worker = FeedingWorker("nobody")
    own = course(worker, include=["data"])
    measure_fed(own, [EAGER, CANDIDATE], stage=Stage.VERDICT)
    assert [None, EAGER, CANDIDATE, CANDIDATE, EAGER, None] == worker.fed
    assert [None, EAGER, CANDIDATE] == [item.arm for item in own.evidence.fed]
    assert pytest.approx((0.011, 0.016 / 0.011 - 1)) == (own.evidence.fed[0].batch_s, own.evidence.fed[0].spread_ratio)


def test_a_pipeline_that_fails_accuses_nobody_and_is_said() -> None:
    own = course(FeedingWorker(CANDIDATE), include=["data"])
    measure_fed(own, [EAGER, CANDIDATE], stage=Stage.VERDICT)
    assert [] == own.evidence.fed and [] == own.evidence.faults
    assert "the data pipeline: no answer to 'feed'" in own.evidence.unseen


def test_nobody_is_fed_who_did_not_ask() -> None:
    worker = FeedingWorker("nobody")
    measure_fed(course(worker, include=[]), [EAGER, CANDIDATE], stage=Stage.VERDICT)
    assert [] == worker.fed
