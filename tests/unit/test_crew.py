from __future__ import annotations

from pathlib import Path

import pytest

from e2e.configuration import LoadedWorkload
from e2e.crew import Crew
from e2e.exam import Exam
from tests import results
from tests.fakes import policy


@pytest.mark.parametrize("config", ["not json", "[]", "3", "\xff", "[" * 200_000])
def test_a_models_config_that_is_damaged_is_left_to_who_opens_the_model(tmp_path: Path, config: str) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(config, encoding="latin-1")
    workload = results.workload()
    local = workload.model_copy(update={"model": workload.model.model_copy(update={"id": "model", "config": {}})})
    crew = Crew(
        workload=LoadedWorkload(local, tmp_path / "w.yaml", {}, "0" * 64),
        cell=results.cell(),
        device="cpu",
        seed=1,
        exam=Exam(1),
        policy=policy(),
        scratch=tmp_path,
        kernel=results.kernel(),
    )
    assert crew._model_modules() == []
