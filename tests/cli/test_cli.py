from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from e2e import store
from e2e.cli import app, run
from tests import results

REPOSITORY = Path(__file__).parents[2]
COMMANDS = ["validate", "gate", "report", "trace", "selftest", "doctor", "list"]


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    folder = tmp_path / "results" / "golden"
    shutil.copytree(results.GOLDEN, folder)
    return folder


def subprocess_run(*arguments: str, cwd: Path = REPOSITORY, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "e2e", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "NO_COLOR": "1", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


# ---- Help and start-up


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    shown = CliRunner().invoke(app, [command, "--help"])
    assert shown.exit_code == 0
    assert "Usage:" in shown.stdout


def test_only_the_flags_of_this_version_exist() -> None:
    """Guards a decision: anything else is a field of a file, not a flag (DESIGN.md 3)."""
    shown = CliRunner().invoke(app, ["validate", "--help"], env={"COLUMNS": "200"}).stdout
    flags = {
        "--budget", "--device", "--events", "--help", "--json", "--kernel", "--no-trace", "--op", "--out",
        "--policy", "--seed", "--set", "--trace", "--until",
    }  # fmt: skip
    assert flags == set(re.findall(r"--[a-z-]+", shown))


def test_only_the_flags_of_this_version_exist_for_selftest() -> None:
    shown = CliRunner().invoke(app, ["selftest", "--help"], env={"COLUMNS": "200"}).stdout
    flags = {"--budget", "--device", "--help", "--json", "--out", "--policy", "--runs", "--seed", "--set"}
    assert flags == set(re.findall(r"--[a-z-]+", shown))


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["no-such-workload"], 2, "no workload"),
        (["--set", "step=train"], 2, "inference workload"),
        (["--runs", "0"], 2, "--runs"),
        (["--policy", "no-such-policy"], 2, "no policy"),
        (["--device", "gpu"], 2, "--device gpu"),
        (["--device", "cuda:99"], 6, "CUDA device"),
    ],
)
def test_a_self_test_that_cannot_begin_says_why(
    arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code == run(["selftest", *arguments])
    shown = capsys.readouterr()
    assert words in shown.err
    assert "" == shown.out


def test_no_arguments_print_help_and_are_no_success(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    assert "Commands:" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--help"], ["list", "ops"], ["list", "reasons"], ["list", "kernels"]])
def test_help_and_list_start_quickly_and_without_torch(arguments: list[str]) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code = f"""
import sys
from e2e.cli import run
code = run({arguments!r})
heavy = {{"torch", "pandas", "numpy", "transformers", "scipy"}} & set(sys.modules)
sys.exit(f"imported {{heavy}}" if heavy else code)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    # Processor time: wall time would measure the other tests.
    assert (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime) < 0.3


@pytest.mark.parametrize("arguments", [["gate"], ["report"]])
def test_stored_runs_are_read_without_torch(arguments: list[str]) -> None:
    code = f"""
import sys
from e2e.cli import run
run([*{arguments!r}, {str(results.GOLDEN)!r}])
sys.exit(str({{"torch", "pandas", "transformers"}} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr.strip() == "set()"


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("e2e ")


# ---- Reading stored runs


def test_gate_exits_with_the_verdicts_code(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["gate", str(stored)]) == 10
    assert capsys.readouterr().out.startswith("REFUTED  ")


def test_gate_judges_under_another_policy(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = stored.parent / "lenient.yaml"
    file.write_text("name: lenient\ndecides: as_shipped\n")
    assert run(["gate", str(stored), "--policy", str(file)]) == 0
    assert "stored as REFUTED" in capsys.readouterr().out
    assert run(["gate", str(stored), "--policy", "no-such-policy"]) == 2


def test_an_edited_run_is_refused(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = stored / store.RESULT
    file.write_text(file.read_text().replace("refuted", "confirmed"))
    assert run(["gate", str(stored)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "it was edited after the run" in shown.err


@pytest.mark.parametrize(("style", "start"), [("text", "REFUTED"), ("md", "# REFUTED"), ("json", "{")])
def test_report_renders_every_format(stored: Path, capsys: pytest.CaptureFixture[str], style: str, start: str) -> None:
    assert run(["report", str(stored), "--format", style]) == 0
    assert capsys.readouterr().out.startswith(start)


def test_report_as_json_is_strict_json(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["report", str(stored), "--format", "json"])
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["outcome"] == "refuted"


def test_an_unknown_format_names_the_nearest(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", str(stored), "--format", "txt"]) == 2
    assert "did you mean 'text'?" in capsys.readouterr().err


def test_trace_without_traces_says_so(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", str(stored)]) == 2
    assert "has no traces" in capsys.readouterr().err


# ---- The main job, as far as it needs no model


def test_json_is_alone_on_stdout_and_events_tell_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setenv("E2E_CACHE_DIR", str(tmp_path / "cache"))
    events = tmp_path / "events.jsonl"
    arguments = [
        "validate",
        "tiny_llama_infer",
        "--kernel",
        "tests/kernels/plain_norm.py",
        "--until",
        "build",
    ]
    arguments += ["--set", "cells.batch=[3]", "--out", str(tmp_path), "--events", str(events), "--json"]
    assert run(arguments) == 0
    shown = capsys.readouterr()
    result = json.loads(shown.out, parse_constant=pytest.fail)
    assert result["overrides"] == {"cells.batch": [3]}
    assert result["command"] == ["e2e", *arguments]
    assert store.load(tmp_path / result["run_id"]).run_id == result["run_id"]
    assert "build" in shown.err
    told = [json.loads(line) for line in events.read_text().splitlines()]
    assert told[0]["event"] == "start"
    assert told[-1]["event"] == "finish"
    assert (told[-1]["code"], told[-1]["run"]) == (0, result["run_id"])
    assert run(["gate", str(tmp_path / result["run_id"])]) == 11


def test_a_mistake_in_a_file_is_shown_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "w.yaml"
    file.write_text("name: w\ntask: causal-lm\nstep: prefil\n")
    assert run(["validate", str(file), "--kernel", "x.cpp", "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert f"{file}:3: step: must be" in said
    assert f"{file}:1: model: missing" in said
    assert not (tmp_path / "out").exists()


# ---- Mistakes


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["validate", "w.yaml"], "Missing option '--kernel'"),
        (["validate", "--kernel", "a"], "Missing argument 'WORKLOAD'"),
        (["validate", "w", "--kernel", "a", "--until", "chek"], "'chek' is not one of 'build', 'check'"),
        (["validate", "w", "--kernel", "a", "--budget", "soon"], "Invalid value for '--budget'"),
        (["validate", "w", "--kernel", "a", "--kernel", "b"], "come with a later version"),
        (["validate", "w", "--kernell", "a"], "No such option: --kernell"),
        (["gate", "no-such-run"], "no run 'no-such-run'"),
        (["list", "things"], "'things' is not one of"),
        (["nonsense"], "No such command 'nonsense'"),
    ],
)
def test_the_callers_mistake_is_one_line_and_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert run(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("e2e: error: ")
    assert words in shown.err
    assert shown.err.count("\n") == 1
    assert "Value error" not in shown.err


def test_a_fault_of_ours_is_code_70_with_its_traceback_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(store, "find", lambda _: 1 / 0)
    assert run(["trace", "x"]) == 70
    said = capsys.readouterr().err
    assert "internal error: ZeroDivisionError" in said
    assert "Traceback" not in said
    log = Path(said.rsplit("details in ", 1)[1].strip())
    assert "ZeroDivisionError" in log.read_text()
    assert "e2e trace x" in log.read_text()


def test_an_interrupt_is_code_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(_: object) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "find", interrupt)
    assert run(["trace", "x"]) == 130
    assert "interrupted" in capsys.readouterr().err


# ---- The process itself


def test_a_reader_that_goes_away_changes_no_exit_code(stored: Path) -> None:
    """`e2e gate RUN | true` in a script with `pipefail`."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "e2e", "gate", str(stored)],
            cwd=REPOSITORY, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (10, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_never_a_success(stored: Path) -> None:
    with open("/dev/full", "w", encoding="ascii") as full:
        done = subprocess.run(
            [sys.executable, "-m", "e2e", "report", str(stored)],
            cwd=REPOSITORY, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 6
    assert "cannot write to stdout" in done.stderr


def test_any_locale_can_show_any_name(stored: Path) -> None:
    odd = stored.parent / "n\u00f6-\u65e5"
    stored.rename(odd)
    done = subprocess_run("gate", str(odd) + "x", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_users_own_folder_called_e2e_is_not_in_the_way(stored: Path, tmp_path: Path) -> None:
    (tmp_path / "e2e").mkdir()
    (tmp_path / "e2e" / "__init__.py").write_text("raise SystemExit('the wrong one')")
    code = "import sys; sys.path.insert(0, sys.argv.pop()); from e2e.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, "gate", str(stored), str(REPOSITORY)],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 10


def test_doctor_says_what_can_be_validated_here() -> None:
    done = subprocess_run("doctor", HF_HUB_OFFLINE="1")
    assert done.returncode in (0, 6)
    assert "validate here" in done.stdout
    assert "torch" in done.stdout
