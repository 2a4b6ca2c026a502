"""Stored runs can be made again, and say nothing of the machine that made them."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e import store
from tests.evidence import PIECES, keep, main
from tests.results import result


def test_a_kept_run_loads_and_names_no_folder_of_the_machine(tmp_path: Path) -> None:
    run = tmp_path / "elsewhere" / "20260101T000000Z-llama-infer-abc123"
    run.mkdir(parents=True)
    store.Run(run).finish(result())
    (run / "traces").mkdir()
    (run / "traces" / "huge.json").write_text("{}")
    (run / "report.md").write_text(f"`e2e trace {run}`, {Path.cwd()}/kernels/rmsnorm.cu")
    keep(run, tmp_path / "kept")
    assert store.load(tmp_path / "kept").outcome == result().outcome
    assert not (tmp_path / "kept" / "traces").exists()
    assert (tmp_path / "kept" / "report.md").read_text() == f"`e2e trace results/{run.name}`, kernels/rmsnorm.cu"


@pytest.mark.parametrize("name", PIECES)
def test_what_a_stored_runs_command_names_is_there(name: str) -> None:
    folders = ("workloads/", "kernels/", "examples/", "tests/")
    files = [word for word in PIECES[name].command if word.startswith(folders)]
    assert [word for word in files if not Path(word).is_file()] == []


def test_a_piece_that_nobody_knows_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["h200-nothing"])
    assert "no piece is called h200-nothing" in capsys.readouterr().err
