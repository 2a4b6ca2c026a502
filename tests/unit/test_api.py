from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import e2e
from e2e import api, pipeline
from e2e.cli import _request, app
from e2e.protocols import Progress
from e2e.request import Request
from e2e.schema.result import Result
from e2e.schema.words import Stage
from tests import results

REPOSITORY = Path(__file__).parents[2]


def test_the_interface_is_ten_names_at_most_and_sorted() -> None:
    """Guards a decision (STYLE.md 5.6): what is exported must stay."""
    assert sorted(e2e.__all__) == e2e.__all__ == api.__all__
    assert len(e2e.__all__) <= 10
    for name in e2e.__all__:
        assert getattr(e2e, name) is getattr(api, name)
        assert getattr(e2e, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = e2e.nothing


def test_no_name_is_that_of_a_module_which_would_take_its_place() -> None:
    modules = {path.stem for path in (REPOSITORY / "e2e").iterdir()}
    assert not modules & set(e2e.__all__)


def test_reading_and_judging_import_neither_torch_nor_pandas() -> None:
    code = f"""
import sys
import e2e
assert "e2e.api" not in sys.modules
result = e2e.load_result({str(results.GOLDEN)!r})
e2e.gate_result(result), e2e.report(result, "html"), e2e.compare(result, result)
sys.exit(str({{"torch", "pandas", "transformers", "numpy"}} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )
    assert "set()" == done.stderr.strip()


def test_a_stored_run_is_loaded_judged_and_rendered() -> None:
    result = e2e.load_result(results.GOLDEN)
    assert e2e.Outcome.REFUTED is result.outcome
    gated = e2e.gate_result(result.model_copy(update={"environment": {}}))
    assert (10, "REFUTED") == (gated.code, gated.text.split()[0])
    assert e2e.report(result).startswith("REFUTED")
    assert e2e.report(result, "junit").startswith("<?xml")
    assert e2e.compare(result, result).startswith("COMPARED")


def test_a_mistake_is_one_kind_of_exception(tmp_path: Path) -> None:
    result = results.result()
    for wrong in (
        lambda: e2e.load_result(tmp_path / "none"),
        lambda: e2e.report(result, "pdf"),
        lambda: e2e.gate_result(result, tmp_path / "none.yaml"),
        lambda: e2e.history(tmp_path / "none"),
        lambda: e2e.compare(result, results.incorrect()),
        lambda: e2e.validate(tmp_path / "none.yaml", "none.cpp", quiet=True),
        lambda: e2e.validate("w", "k", until="never"),
        lambda: e2e.check_kernel(tmp_path / "none.cpp", quiet=True),
    ):
        with pytest.raises(e2e.E2EError):
            wrong()


def test_the_history_is_a_frame(tmp_path: Path) -> None:
    shutil.copytree(results.GOLDEN, tmp_path / "golden")
    frame = e2e.history(tmp_path)
    assert [1.0001] == frame["ratio"].tolist()
    assert ["golden"] == frame["folder"].tolist()
    assert 2026 == frame["created"].dt.year.iloc[0]
    assert list(frame.columns) == list(e2e.history(REPOSITORY / "docs").columns), "also without a run"


def test_the_docs_name_every_name_and_no_other() -> None:
    text = (REPOSITORY / "docs" / "python.md").read_text(encoding="utf-8")
    example = text.partition("```python\n")[2].partition("```")[0]
    compile(example, "docs/python.md", "exec")
    assert set(re.findall(r"e2e\.([A-Za-z_]+)", example)) <= set(e2e.__all__)
    rows = " ".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| `"))
    assert set(e2e.__all__) == set(re.findall(r"`([A-Za-z_0-9]+)", rows))


class Recorder:
    """Takes the place of the pipeline and keeps what it is asked."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def __call__(self, request: Request, progress: Progress) -> Result:
        self.requests.append(request)
        progress.note("a note")
        return results.result()


def test_validate_asks_what_the_command_that_it_records_asks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = Recorder()
    monkeypatch.setattr(pipeline, "validate", asked)
    e2e.validate("workloads/tiny_llama_infer.yaml", "kernels/rmsnorm.cpp", quiet=True)
    assert "" == capsys.readouterr().err
    e2e.validate(
        Path("w.yaml"),
        Path("k.cu"),
        until="check",
        op="rms_norm",
        settings={"cells.batch": [1, 2], "model.weights": "random", "model.id": None},
        policy="demo",
        device="cpu",
        budget_s=90.5,
        seed=3,
        out="elsewhere",
        trace=False,
    )
    assert "a note" in capsys.readouterr().err
    short, long = asked.requests
    assert ("e2e", "validate", "workloads/tiny_llama_infer.yaml", "--kernel", "kernels/rmsnorm.cpp") == short.command
    assert Stage.CHECK is long.until
    assert ("cells.batch=[1, 2]", 'model.weights="random"', "model.id=null") == long.overrides
    for request in asked.requests:
        assert request == typed(request.command)


def typed(command: tuple[str, ...]) -> Request:
    """The request that this command line is."""
    import typer

    context = (
        typer.main.get_command(app)
        .commands["validate"]
        .make_context(  # type: ignore[attr-defined]
            "validate", list(command[2:]), obj=command[1:]
        )
    )
    return _request(context)
