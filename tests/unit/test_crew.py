from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from e2e.configuration import LoadedWorkload
from e2e.crew import Crew
from e2e.errors import E2EError, EnvironmentFault
from e2e.exam import Exam
from e2e.processes import FaultKind, WorkerFault
from e2e.schema.words import Stage
from e2e.workers import OVERLOAD, CandidateFault, Member
from tests import results
from tests.fakes import policy


@pytest.mark.parametrize("config", ["not json", "[]", "3", "\xff", "[" * 200_000])
def test_a_models_config_that_is_damaged_is_left_to_who_opens_the_model(tmp_path: Path, config: str) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(config, encoding="latin-1")
    assert crew_in(tmp_path)._model_modules() == []


class SilentWorker:
    """A worker that printed nothing."""

    def output(self, limit: int) -> str:
        return ""

    def close(self) -> None:
        """Nothing to end."""


@pytest.mark.parametrize(
    ("kind", "waiting", "blamed"),
    [
        ("timed_out", OVERLOAD * 2, EnvironmentFault),
        ("timed_out", OVERLOAD / 2, CandidateFault),
        ("crashed", OVERLOAD * 2, CandidateFault),
    ],
)
def test_a_time_limit_on_an_overloaded_machine_says_nothing_of_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: FaultKind, waiting: float, blamed: type[E2EError]
) -> None:
    cores = os.cpu_count() or 1
    monkeypatch.setattr(os, "getloadavg", lambda: (waiting * cores, 0.0, 0.0))
    silent: Any = SilentWorker()
    fault = WorkerFault("no answer to 'logits' within 30 s", kind=kind)
    assert type(crew_in(tmp_path).blame(fault, stage=Stage.CHECK, worker=silent)) is blamed


def crew_in(tmp_path: Path) -> Crew:
    """With a model in `tmp_path / "model"`."""
    workload = results.workload()
    local = workload.model_copy(update={"model": workload.model.model_copy(update={"id": "model", "config": {}})})
    return Crew(
        workload=LoadedWorkload(local, tmp_path / "w.yaml", {}, "0" * 64),
        cell=results.cell(),
        device="cpu",
        seed=1,
        exam=Exam(1),
        policy=policy(),
        scratch=tmp_path,
        members=[Member(results.kernel())],
    )


@pytest.mark.parametrize(
    ("spec", "fetches"),
    [
        ({"id": "model"}, False),
        ({"id": "someone/model"}, True),
        ({"id": "model", "trust_remote_code": True}, True),
        ({"id": "someone/model", "weights": "random", "config": {"model_type": "llama"}}, False),
    ],
)
def test_in_a_sandbox_what_has_to_be_fetched_is_opened_by_the_clean_process_first(
    tmp_path: Path, spec: dict[str, Any], fetches: bool
) -> None:
    (tmp_path / "model").mkdir()
    crew = crew_in(tmp_path)
    asked = crew.workload.workload
    model = asked.model.model_copy(update={"config": {}, "weights": "pretrained", **spec})
    crew.workload = replace(crew.workload, workload=asked.model_copy(update={"model": model}))
    assert crew.has_to_fetch is False
    crew.sandboxed = True
    assert crew.has_to_fetch is fetches
