from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from e2e import attempts, loading, pipeline, profile_store, store
from e2e.cli import _request, app, run
from e2e.request import Loaded, Request
from e2e.schema.result import METHOD
from e2e.schema.words import Outcome, Stage
from tests import profiles, results

REPOSITORY = Path(__file__).parents[2]
MOUNTING = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
COMMANDS = [
    "validate",
    "profile",
    "check",
    "new",
    "gate",
    "report",
    "compare",
    "history",
    "adopt",
    "trace",
    "selftest",
    "doctor",
    "list",
]


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """The golden run, without its environment: `gate` would compare that with the machine of the tests."""
    folder = tmp_path / "results" / "golden"
    folder.mkdir(parents=True)
    store.Run(folder).finish(store.load(results.GOLDEN).model_copy(update={"environment": {}}))
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


def can_mount() -> bool:
    """Whether a process here can have a small disk of its own."""
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*MOUNTING, "mount -t tmpfs none /mnt"], capture_output=True, check=False).returncode == 0


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
        "--again", "--policy", "--repeat", "--resume", "--sanitize", "--seed", "--set", "--trace", "--until",
        "--workers",
    }  # fmt: skip
    assert flags == set(re.findall(r"--[a-z-]+", shown))


def test_only_the_flags_of_this_version_exist_for_selftest() -> None:
    shown = CliRunner().invoke(app, ["selftest", "--help"], env={"COLUMNS": "200"}).stdout
    flags = {
        "--budget", "--device", "--help", "--identical", "--json", "--op", "--out", "--policy", "--runs", "--seed",
        "--set",
    }  # fmt: skip
    assert flags == set(re.findall(r"--[a-z-]+", shown))


def test_only_the_flags_of_this_version_exist_for_profile() -> None:
    shown = CliRunner().invoke(app, ["profile", "--help"], env={"COLUMNS": "200"}).stdout
    flags = {"--budget", "--device", "--help", "--json", "--op", "--out", "--policy", "--seed", "--set"}
    assert flags == set(re.findall(r"--[a-z-]+", shown))


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["none.yaml"], 2, "no workload 'none.yaml'"),
        (["kernels/rmsnorm.cpp"], 2, "is a kernel file, and a workload is a YAML file or a name"),
        (["tiny_llama_infer", "--op", "rms_nrom"], 2, "did you mean 'rms_norm'?"),
        (["tiny_llama_infer", "--op", "none.py:Op"], 2, "cannot be read"),
        (["tiny_llama_infer", "--op", "module"], 2, "--op module: no op by itself"),
        (["tiny_llama_infer", "--set", "model.dtyp=float32"], 2, "dtyp"),
        (["tiny_llama_infer", "--device", "gpu"], 2, "--device gpu"),
        (["tiny_llama_infer", "--device", "cuda:99"], 6, "CUDA device"),
        (["tiny_llama_infer", "--budget", "0"], 2, "--budget"),
        (["tiny_llama_infer", "--out", "README.md"], 2, "is a file; results need a folder"),
        ([], 2, "WORKLOAD"),
    ],
)
def test_a_profile_that_cannot_begin_says_why(
    arguments: list[str], code: int, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(REPOSITORY)
    assert code == run(["profile", *arguments])
    shown = capsys.readouterr()
    assert words in shown.err
    assert "" == shown.out


def test_a_stored_profile_is_reported_and_cannot_be_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile_store.keep(profiles.report(), store.Run(tmp_path))
    for style, words in (("text", "PROFILE   llama-infer"), ("md", "# PROFILE"), ("json", '"e2e.profile/1"')):
        assert 0 == run(["report", str(tmp_path), "--format", style])
        assert words in capsys.readouterr().out
    assert 0 == run(["report", str(tmp_path / "profile.json")])
    for refused, words in (
        (["report", str(tmp_path), "--format", "junit"], "a profile is shown as text, md, json"),
        (["report", str(tmp_path), "--share"], "--share goes with a validation's run"),
        (["gate", str(tmp_path)], "is a profile, without a kernel to judge"),
        (["trace", str(tmp_path)], "no traces"),
    ):
        assert 2 == run(refused)
        assert words in capsys.readouterr().err


def test_only_the_flags_of_this_version_exist_for_check_and_new() -> None:
    def flags(*command: str) -> set[str]:
        shown = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200"}).stdout
        return set(re.findall(r"--[a-z-]+", shown))

    assert flags("check") == {"--captures", "--device", "--dtype", "--help", "--json", "--op", "--sanitize", "--seed"}
    assert flags("new", "kernel") == {"--help", "--lang", "--out"}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["none.cpp"], 2, "no such file"),
        (["kernels/rmsnorm.cpp", "--dtype", "int8"], 2, "--dtype int8: expected one of float32"),
        (["kernels/leaky_integrator.cpp", "--dtype", "float16"], 2, "declares float32"),
        (["kernels/rmsnorm.cpp", "--op", "rope"], 2, "the file says 'rms_norm'"),
        (["kernels/rmsnorm.cpp", "--op", "none.py:Op"], 2, "cannot be read"),
        (["kernels/rmsnorm.cpp", "--device", "cuda"], 2, "the kernel runs on cpu"),
        (["kernels/rmsnorm.cpp", "--device", "gpu"], 2, "--device gpu"),
        (["kernels/rmsnorm.cpp", "--seed", "-1"], 2, "--seed"),
        (["kernels/rmsnorm.cpp", "--captures", "none"], 2, "no .safetensors file, and no run of `e2e profile`"),
        (["kernels/rmsnorm.cpp", "--captures", "README.md"], 2, "no .safetensors file, and no run"),
        (["kernels/rmsnorm_triton.py", "--device", "cuda:99"], 6, "CUDA device"),
        ([], 2, "SPEC"),
    ],
)
def test_a_check_that_cannot_begin_says_why(
    arguments: list[str], code: int, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(REPOSITORY)
    assert code == run(["check", *arguments])
    shown = capsys.readouterr()
    assert words in shown.err
    assert "" == shown.out


def test_a_new_kernel_is_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert 0 == run(["new", "kernel", "rms_norm", "--lang", "cpp"])
    shown = capsys.readouterr()
    assert ("rms_norm.cpp\n", "next: e2e check rms_norm.cpp\n") == (shown.out, shown.err)
    assert 2 == run(["new", "kernel", "rms_norm", "--lang", "cpp"])
    assert "nothing is overwritten" in capsys.readouterr().err
    assert 2 == run(["new", "kernel", "rms_norm", "--lang", "rust"])
    assert 2 == run(["new", "kernel", "module", "--lang", "cu"])
    assert "no cu template for module" in capsys.readouterr().err
    assert ["rms_norm.cpp"] == [file.name for file in tmp_path.iterdir()]


@pytest.mark.parametrize("arguments", [["new"], ["new", "kernel"]])
def test_new_without_a_kind_or_an_op_is_no_success(arguments: list[str]) -> None:
    assert 2 == run(arguments)


def test_one_op_can_be_listed_by_name(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(REPOSITORY)
    assert 0 == run(["list", "ops", "--op", "examples/swiglu_mlp.py:SwigluMlp"])
    assert "one matmul for gate and up" in capsys.readouterr().out
    assert 2 == run(["list", "kernels", "--op", "rope"])
    assert "--op goes with `e2e list ops`" in capsys.readouterr().err


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


@pytest.mark.parametrize(
    "arguments", [["gate"], ["report"], ["report", "--format", "html"], ["compare", str(results.GOLDEN)]]
)
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


DAMAGE: dict[str, tuple[str, Callable[[bytes], bytes] | None, str]] = {
    "an edited result": (store.RESULT, lambda raw: raw.replace(b"refuted", b"confirmed"), "edited after the run"),
    "a truncated result": (store.RESULT, lambda raw: raw[:2000], "not whole, strict JSON"),
    "bytes that are no text": (store.RESULT, lambda raw: b"\xff\xfe" + raw, "not whole, strict JSON"),
    "another schema": (store.RESULT, lambda raw: raw.replace(b"result/1", b"result/9"), "has schema 'e2e.result/9'"),
    "JSON of another kind": (store.RESULT, lambda raw: b"[1, 2]", "not a result of e2e"),
    "no result": (store.RESULT, None, "has no result.json"),
    "an edited sample": (store.SAMPLES, lambda raw: raw.replace(b"0.2", b"0.3", 1), "edited or cut short"),
    "truncated samples": (store.SAMPLES, lambda raw: raw[: len(raw) // 2], "edited or cut short"),
    "no samples": (store.SAMPLES, None, "samples.csv is missing"),
    "an edited digest": (store.DIGEST, lambda raw: raw[::-1], "does not match"),
    "an empty digest": (store.DIGEST, lambda raw: b"", "does not match"),
    "no digest": (store.DIGEST, None, "result.sha256 is missing"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_gate_refuses_every_kind_of_damage_with_a_reason(
    stored: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    name, change, words = DAMAGE[damage]
    file = stored / name
    if change is None:
        file.unlink()
    else:
        file.write_bytes(change(file.read_bytes()))
    assert run(["gate", str(stored)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert words in shown.err
    assert shown.err.count("\n") == 1


def sign(folder: Path, text: str) -> None:
    """Write a result whose digest fits."""
    (folder / store.RESULT).write_text(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    (folder / store.DIGEST).write_text(f"{digest}  {store.RESULT}\n")


@pytest.mark.parametrize(("method", "code"), [("1", 11), ("9", 2)])
def test_gate_knows_older_methods_as_stale_and_refuses_unknown_ones(
    stored: Path, capsys: pytest.CaptureFixture[str], method: str, code: int
) -> None:
    text = (stored / store.RESULT).read_text()
    sign(stored, text.replace(f'"method": "{METHOD}"', f'"method": "{method}"'))
    assert run(["gate", str(stored)]) == code
    shown = capsys.readouterr()
    assert f"measured by method {method}" in shown.out + shown.err.replace("'", "")


def test_gate_takes_less_than_half_a_second(stored: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert subprocess_run("gate", str(stored)).returncode == 10
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime) < 0.5


@pytest.mark.parametrize(
    ("style", "start"),
    [
        ("text", "REFUTED"),
        ("md", "# REFUTED"),
        ("json", "{"),
        ("html", "<!DOCTYPE html>"),
        ("junit", "<?xml"),
        ("github", "::notice"),
    ],
)
def test_report_renders_every_format(stored: Path, capsys: pytest.CaptureFixture[str], style: str, start: str) -> None:
    assert run(["report", str(stored), "--format", style]) == 0
    assert capsys.readouterr().out.startswith(start)


def test_report_as_json_is_strict_json(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["report", str(stored), "--format", "json"])
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["outcome"] == "refuted"


KNOWN = "github, html, json, junit, md, text"


@pytest.mark.parametrize(("style", "hint"), [("txt", "did you mean 'text'? "), ("pdf", "")])
def test_an_unknown_format_names_the_nearest_and_all(
    stored: Path, capsys: pytest.CaptureFixture[str], style: str, hint: str
) -> None:
    assert run(["report", str(stored), "--format", style]) == 2
    assert capsys.readouterr().err == f"e2e: error: no report called '{style}'; {hint}known: {KNOWN}\n"


def test_two_runs_are_compared_and_a_folder_of_runs_is_listed(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == run(["compare", str(stored), str(stored)])
    assert capsys.readouterr().out.startswith("COMPARED: one kernel in one environment, twice")
    assert 0 == run(["history", str(stored.parent)])
    assert capsys.readouterr().out.startswith("1 RUN ")
    assert 0 == run(["history", str(stored.parent), "--json"])
    assert ["golden"] == [row["folder"] for row in json.loads(capsys.readouterr().out)["rows"]]
    assert 2 == run(["history", str(stored.parent / "none")])
    assert 2 == run(["compare", str(stored), "none"])
    assert 2 == run(["compare", str(stored), str(REPOSITORY / "results" / "h200-decode")])
    assert "cannot be compared: other workloads (" in capsys.readouterr().err


def test_only_the_flags_of_this_version_exist_for_reading_runs() -> None:
    flags = {
        "gate": {"--policy"},
        "report": {"--format", "--share"},
        "compare": set(),
        "history": {"--json"},
        "adopt": {"--alternative", "--force", "--out"},
        "trace": {"--port"},
    }
    for command, expected in flags.items():
        shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).stdout
        assert expected | {"--help"} == set(re.findall(r"--[a-z-]+", shown)), command


def test_a_shared_report_names_no_folder(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == run(["report", str(stored), "--share"])
    shown = capsys.readouterr().out
    assert "rms_norm by rmsnorm.cu makes" in shown
    assert "kernels/" not in shown


def test_adopt_refuses_what_is_not_confirmed(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == run(["adopt", str(stored), "--out", str(stored / "adopted")])
    assert "the run is REFUTED: matched by PyTorch; --force REASON" in capsys.readouterr().err
    assert not (stored / "adopted").exists()


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


def build_only(folder: Path) -> list[str]:
    return [
        *("validate", "tiny_llama_infer", "--kernel", "tests/kernels/plain_norm.py", "--until", "build"),
        *("--out", str(folder), "--json"),
    ]


def test_attempts_at_a_verdict_are_counted_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setenv("E2E_CACHE_DIR", str(tmp_path / "cache"))
    out = tmp_path / "out"
    failing = ["validate", "tiny_llama_infer", "--kernel", "tests/kernels/does_not_compile.cpp", "--out", str(out)]
    found = []
    for arguments, code in [([*failing, "--json"], 13), (build_only(out), 0), ([*failing, "--json"], 13)]:
        assert run(arguments) == code
        found.append(json.loads(capsys.readouterr().out))
    previous = {"run": found[0]["run_id"], "outcome": "failed", "ratio": None}
    first, second = ({"number": number, "confirmed": 0} for number in (1, 2))
    counted = [{**first, "previous": None}, None, {**second, "previous": previous}]
    assert [result["attempts"] for result in found] == counted
    assert run(["report", str(out / found[2]["run_id"])]) == 0
    assert "Attempt 2 of rms_norm on tiny-llama-infer; of these 0 CONFIRMED." in capsys.readouterr().out


@pytest.mark.parametrize("more", [[], ["--until", "check"]])
@pytest.mark.parametrize("kernel", ["rmsnorm.cu", "rmsnorm_raw.cu"])
def test_a_cuda_kernel_that_cannot_run_here_is_sent_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kernel: str, more: list[str]
) -> None:
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    typed = ["validate", "tiny_llama_infer", "--kernel", f"kernels/{kernel}", "--out", str(tmp_path / "out")]
    assert run([*typed, *more]) == 6
    said = capsys.readouterr().err
    assert "try a CPU kernel, such as kernels/rmsnorm.cpp; `e2e doctor`" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kernel", ["rmsnorm_raw.cu", "rmsnorm_triton.py"])
def test_what_is_only_built_is_asked_for_no_device(monkeypatch: pytest.MonkeyPatch, kernel: str) -> None:
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    loaded = loading.load(Request("tiny_llama_infer", (f"kernels/{kernel}",), until=Stage.BUILD))
    assert (loaded.device.name, loaded.device.arch) == ("cuda", None)


@pytest.mark.parametrize(
    ("opponent", "words"),
    [
        ("nope.cpp", "no such file: nope.cpp"),
        ("other.py", "other.py:2: op: the file says 'module:Linear', where 'rms_norm' is wanted"),
        ("half.py", "half.py declares dtypes float16, but tiny_llama_infer.yaml runs in float32"),
        ("gpu.py", "it runs on cuda, and this run on cpu"),
        ("broken.cpp", "it does not build: "),
    ],
)
def test_an_adopted_opponent_that_does_not_fit_is_the_policys_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    opponent: str, words: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("E2E_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    good = (REPOSITORY / "tests/kernels/plain_norm.py").read_text()
    assert "# op: rms_norm\n" in good
    Path("plain_norm.py").write_text(good)
    Path("other.py").write_text(good.replace("op: rms_norm", "op: module:Linear"))
    Path("half.py").write_text(good.replace("float32", "float16"))
    Path("gpu.py").write_text(good.replace("# op: rms_norm\n", "# op: rms_norm\n# device: cuda\n"))
    shutil.copy(REPOSITORY / "tests/kernels/does_not_compile.cpp", "broken.cpp")
    Path("strict.yaml").write_text(f"name: strict\nopponents: [best_pytorch, 'kernel:{opponent}']\n")
    workload = str(REPOSITORY / "workloads/tiny_llama_infer.yaml")
    typed = ["validate", workload, "--kernel", "plain_norm.py", "--policy", "strict.yaml", "--device", "cpu"]
    assert run([*typed, "--until", "build"]) == 2
    shown = capsys.readouterr()
    said = " ".join((shown.err + shown.out).split())
    assert f"policy strict, opponents: kernel:{opponent}: {words}" in said
    assert "--op" not in said


def test_nothing_that_happens_to_the_ledger_costs_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setenv("E2E_CACHE_DIR", str(tmp_path / "cache"))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(attempts, "enter", interrupt)
    assert run(build_only(tmp_path / "out")) == 130
    (folder,) = (tmp_path / "out").iterdir()
    assert store.load(folder).stage is Stage.BUILD


@pytest.mark.skipif(not can_mount(), reason="needs a mount namespace")
@pytest.mark.parametrize("size", ["4k", "16k"])
def test_a_full_disk_under_out_is_the_environments_fault(tmp_path: Path, size: str) -> None:
    (tmp_path / "out").mkdir()
    typed = shlex.join([sys.executable, "-m", "e2e", *build_only(tmp_path / "out")])
    mounted = f"mount -t tmpfs -o size={size} none {tmp_path / 'out'} && exec {typed}"
    done = subprocess.run(
        [*MOUNTING, mounted], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "E2E_CACHE_DIR": str(tmp_path / "cache")},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (6, ""), done.stderr
    assert f"no space left in --out {tmp_path / 'out'}" in done.stderr


def test_what_the_policy_pins_bars_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setenv("E2E_CACHE_DIR", str(tmp_path / "cache"))
    pinned = tmp_path / "pinned.yaml"
    pinned.write_text("name: pinned\npins: {fresh_seed: true}\n")
    arguments = build_only(tmp_path / "out")
    found, said = [], ""
    for more, code in [([], 0), (["--policy", str(pinned)], 0), (["--policy", str(pinned), "--seed", "7"], 11)]:
        assert run([*arguments, *more]) == code
        shown = capsys.readouterr()
        found.append(json.loads(shown.out))
        said = shown.err
    assert "cannot count under policy pinned: the caller chose the seed" in said
    assert [result["cells"][0]["evidence"]["origin"]["seed_chosen"] for result in found] == [False, False, True]
    assert [result["policy_overrides"] for result in found] == [{}, {"name": "standard"}, {"name": "standard"}]
    assert found[2]["reasons"][0]["code"] == "policy_not_met"
    assert run(["report", str(tmp_path / "out" / found[2]["run_id"])]) == 0
    report = capsys.readouterr().out
    assert "Chosen on the command line: policy pinned instead of standard, seed 7" in report


# ---- Runs that were stopped


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """A run of a kernel in `tmp_path` that ended by Ctrl-C before it had built it."""
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setenv("E2E_CACHE_DIR", str(tmp_path / "cache"))
    shutil.copy("tests/kernels/plain_norm.py", tmp_path)
    arguments = ["validate", "tiny_llama_infer", "--kernel", str(tmp_path / "plain_norm.py"), "--until", "build"]

    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "build_all", interrupted)
        assert run([*arguments, "--op", "rms_norm", "--out", str(tmp_path / "out"), "--json"]) == 130
    return tmp_path / "out" / json.loads(capsys.readouterr().out)["run_id"]


def test_an_interrupted_run_says_how_to_go_on_and_goes_on(stopped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = store.load(stopped)
    assert first.error is not None
    assert f"interrupted; `e2e validate --resume {stopped}` goes on from there" == first.error.message
    assert run(["validate", "--resume", str(stopped)]) == 0
    assert "Resumed 20" in capsys.readouterr().out
    second = store.load(stopped)
    assert (second.error, second.stage) == (None, Stage.BUILD)
    assert (first.seed, first.created, first.command) == (second.seed, second.created, second.command)
    assert first.cells[0].evidence.exam == second.cells[0].evidence.exam
    assert [(item.cell, item.stage) for item in second.resumed] == [(0, None)]
    assert run(["validate", "--resume", str(stopped)]) == 2
    assert "has ended: there is nothing to resume" in capsys.readouterr().err


def test_a_killed_run_has_no_outcome_for_any_command(stopped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (stopped / store.RESULT).unlink()  # as if it had been killed, and not interrupted
    for command in (["gate"], ["compare", str(stopped)], ["adopt"]):
        assert run([*command, str(stopped)]) == 2
        assert f"was stopped before it ended: it has no outcome yet; `e2e report {stopped}`" in capsys.readouterr().err
    assert run(["report", str(stopped)]) == 0
    assert "INTERRUPTED" in capsys.readouterr().out
    assert run(["history", str(stopped.parent)]) == 0
    assert "was stopped before it ended" in " ".join(capsys.readouterr().out.split())


def test_a_stopped_run_whose_kernel_was_changed_or_moved_does_not_go_on(
    stopped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel = stopped.parent.parent / "plain_norm.py"
    kernel.write_text(kernel.read_text() + "\n# faster\n")
    assert run(["validate", "--resume", str(stopped)]) == 2
    assert "plain_norm.py has changed (sha256" in capsys.readouterr().err
    kernel.unlink()
    assert run(["validate", "--resume", str(stopped)]) == 2
    assert "no such file" in capsys.readouterr().err
    assert store.load(stopped).error is not None, "what it had is still there"


@pytest.mark.parametrize("more", [["w.yaml"], ["--seed", "1"], ["--out", "x"], ["--repeat", "x", "--workers", "9"]])
def test_what_would_make_it_another_run_is_refused(
    stopped: Path, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    assert run(["validate", "--resume", str(stopped), *more]) == 2
    assert "--resume takes everything from the stopped run" in capsys.readouterr().err


# ---- Repeats


@pytest.fixture
def open_run(stored: Path) -> Path:
    """A stored run that left its question open."""
    result = store.load(stored)
    command = ["e2e", "validate", "no-such-workload", "--kernel", "k.cu", "--until", "check", "--seed", "7"]
    open_ = result.model_copy(update={"outcome": Outcome.INCONCLUSIVE, "command": command})
    store.Run(stored).finish(open_)
    return stored


def test_a_repeat_takes_its_workload_from_the_stored_run(open_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["validate", "--repeat", str(open_run), "--workers", "9"]) == 2
    assert "no workload 'no-such-workload'" in capsys.readouterr().err


def test_a_repeat_of_a_repeat_takes_it_from_the_first(
    open_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    second = tmp_path / "second"
    shutil.copytree(open_run, second)
    typed = ["e2e", "validate", "--repeat", str(open_run), "--workers", "9"]
    store.Run(second).finish(store.load(second).model_copy(update={"command": typed}))
    assert run(["validate", "--repeat", str(second), "--workers", "12"]) == 2
    assert "no workload 'no-such-workload'" in capsys.readouterr().err


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """A run of a kernel in `tmp_path`, as if it had gone on and left its question open."""
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setenv("E2E_CACHE_DIR", str(tmp_path / "cache"))
    shutil.copy("tests/kernels/plain_norm.py", tmp_path)
    arguments = ["validate", "tiny_llama_infer", "--kernel", str(tmp_path / "plain_norm.py"), "--until", "build"]
    assert run([*arguments, "--op", "rms_norm", "--out", str(tmp_path / "out"), "--seed", "7", "--json"]) == 0
    folder = tmp_path / "out" / json.loads(capsys.readouterr().out)["run_id"]
    open_ = store.load(folder).model_copy(update={"outcome": Outcome.INCONCLUSIVE})
    store.Run(folder).finish(open_)
    return folder


def test_a_repeat_asks_the_same_to_the_end_with_a_fresh_seed_in_its_own_size(built: Path) -> None:
    first = store.load(built)
    typed = ["--repeat", str(built), "--workers", "9", "--budget", "333"]
    command = typer.main.get_command(app).commands["validate"]  # type: ignore[attr-defined]
    request = _request(command.make_context("validate", typed, obj=("validate", *typed)))
    loaded = loading.load(request)
    assert (request.until, request.op, request.out) == (Stage.VERDICT, "rms_norm", built.parent)
    assert (loaded.policy.looks, loaded.policy.level, loaded.policy.budgets.cell_s) == ([9], 0.95, 333)
    assert loaded.kernels == (first.kernels[0],)
    assert not loaded.origin.seed_chosen
    assert loaded.seed != first.seed


def test_a_repeat_of_a_kernel_that_was_changed_or_moved_is_refused(
    built: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel = built.parent.parent / "plain_norm.py"
    kernel.write_text(kernel.read_text() + "\n# faster\n")
    assert run(["validate", "--repeat", str(built), "--workers", "9"]) == 2
    assert "plain_norm.py has changed since run" in capsys.readouterr().err
    kernel.unlink()
    assert run(["validate", "--repeat", str(built), "--workers", "9"]) == 2
    assert "no such file" in capsys.readouterr().err


# ---- Again


def requested(*typed: str) -> Loaded:
    command = typer.main.get_command(app).commands["validate"]  # type: ignore[attr-defined]
    return loading.load(_request(command.make_context("validate", list(typed), obj=("validate", *typed))))


def test_again_is_the_same_kernel_workload_and_policy_with_a_fresh_seed(built: Path) -> None:
    first = store.load(built)
    loaded = requested("--again", str(built))
    assert (loaded.workload.workload, loaded.policy, loaded.kernels) == (
        first.workload,
        first.policy,
        (first.kernels[0],),
    )
    assert (loaded.request.until, loaded.request.op) == (Stage.BUILD, "rms_norm")
    assert loaded.seed != first.seed
    assert not loaded.policy_overrides


def test_again_has_the_policy_of_then_whatever_its_file_says_now(built: Path) -> None:
    first = store.load(built)
    assert first.policy is not None
    store.Run(built).finish(first.model_copy(update={"policy": first.policy.model_copy(update={"margin": 0.03})}))
    assert requested("--again", str(built)).policy.margin == 0.03


def test_again_has_the_workload_of_then_whatever_its_file_says_now(built: Path) -> None:
    first = store.load(built)
    assert first.workload is not None
    environment = {**first.environment, "workload_sha256": "0" * 64}
    then = first.workload.model_copy(update={"name": "as-it-was"})
    store.Run(built).finish(first.model_copy(update={"workload": then, "environment": environment}))
    loaded = requested("--again", str(built))
    assert (loaded.workload.workload.name, loaded.workload.sha256) == ("as-it-was", "0" * 64)


def test_again_takes_the_stored_sources_where_the_kernel_was_changed_or_moved(built: Path) -> None:
    kernel, first = built.parent.parent / "plain_norm.py", store.load(built).kernels[0]
    kernel.write_text(kernel.read_text() + "\n# faster\n")
    (changed,) = requested("--again", str(built)).kernels
    kernel.unlink()
    (moved,) = requested("--again", str(built)).kernels
    assert (changed.sha256, changed.spec) == (moved.sha256, moved.spec) == (first.sha256, first.spec)
    assert changed.path == str(built / "kernel" / "plain_norm.py")


def test_again_without_the_kernel_as_it_was_is_refused(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (built.parent.parent / "plain_norm.py").unlink()
    (built / "kernel" / "plain_norm.py").write_text("# another\n")
    assert run(["validate", "--again", str(built)]) == 2
    assert "has changed since run" in capsys.readouterr().err


def test_again_is_linked_to_its_first_run(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["validate", "--again", str(built), "--out", str(built.parent), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["again"] == built.name
    second = built.parent / told["run_id"]
    assert requested("--again", str(second)).request.op == "rms_norm", "again and again"
    assert run(["report", str(second)]) == 0
    assert f"Measures {built.name} again in today's environment" in capsys.readouterr().out


def test_what_would_make_again_another_question_is_refused(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["validate", "--again", str(built), "--policy", "demo"]) == 2
    assert "--again takes workload, kernel, policy and options from the stored run; beside it only --budget" in (
        capsys.readouterr().err
    )
    assert run(["validate", "--again", str(built), "--repeat", str(built), "--workers", "9"]) == 2
    capsys.readouterr()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["w.yaml", "--workers", "9"], "takes workload, kernel, policy and options from the stored run"),
        (["--workers", "9", "--kernel", "k.cu"], "takes workload, kernel, policy and options"),
        (["--workers", "9", "--set", "a=1"], "takes workload, kernel, policy and options"),
        (["--workers", "9", "--seed", "1"], "takes workload, kernel, policy and options"),
        (["--workers", "9", "--until", "check"], "takes workload, kernel, policy and options"),
        ([], "--repeat RUN and --workers N go together"),
    ],
)
def test_what_would_make_a_repeat_another_question_is_refused(
    open_run: Path, capsys: pytest.CaptureFixture[str], more: list[str], words: str
) -> None:
    assert run(["validate", "--repeat", str(open_run), *more]) == 2
    shown = capsys.readouterr()
    assert words in shown.err
    assert (shown.out, shown.err.count("\n")) == ("", 1)


@pytest.mark.parametrize("command", [[], ["e2e", "gate", "x"], ["e2e", "validate", "w", "--odd"], ["e2e", "validate"]])
def test_a_run_whose_command_cannot_be_read_is_not_repeated(
    open_run: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    store.Run(open_run).finish(store.load(open_run).model_copy(update={"command": command}))
    assert run(["validate", "--repeat", str(open_run), "--workers", "9"]) == 2
    assert capsys.readouterr().out == ""


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
        (
            ["validate", "tiny_llama_infer", *["--kernel", "kernels/rmsnorm.cpp"] * 2],
            "are the same kernel: give it once",
        ),
        (["validate", "w", "--kernell", "a"], "No such option: --kernell"),
        (["validate", "w", "--kernel", "a", "--workers", "9"], "--repeat RUN and --workers N go together"),
        (["validate", "k.cu", "--kernel", "w.yaml"], "swapped: type `e2e validate w.yaml --kernel k.cu`"),
        (["validate", "k.py", "--kernel", "a.cpp"], "k.py is a kernel file, and a workload is a YAML file or a name"),
        (["validate", "w", "--kernel", "w.yml"], "a kernel is not: type `e2e validate w.yml --kernel FILE`"),
        (["selftest", "k.cpp"], "type `e2e validate WORKLOAD --kernel k.cpp`"),
        (["validate", "--repeat", "no-such-run", "--workers", "9"], "no run 'no-such-run'"),
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


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_or_cis_time_limit_keeps_the_result_and_ends_the_events(tmp_path: Path, how: signal.Signals) -> None:
    (tmp_path / "tmp").mkdir()
    arguments = ["tiny_llama_infer", "--kernel", "tests/kernels/never_ends.cpp", "--until", "build"]
    arguments += ["--out", str(tmp_path / "out"), "--events", str(tmp_path / "events"), "--json"]
    started = subprocess.Popen(
        [sys.executable, "-m", "e2e", "validate", *arguments],
        cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(tmp_path / "tmp"),
             "E2E_CACHE_DIR": str(tmp_path / "cache")},
    )  # fmt: skip
    assert started.stderr is not None
    next(line for line in started.stderr if "build:" in line)
    started.send_signal(how)
    out, err = started.communicate(timeout=20)
    assert (started.returncode, json.loads(out)["error"]["code"]) == (130, 130), err
    finished = json.loads((tmp_path / "events").read_text().splitlines()[-1])
    assert (finished["event"], finished["code"]) == ("finish", 130)
    assert store.load(tmp_path / "out" / finished["run"]).error is not None
    assert list((tmp_path / "tmp").iterdir()) == []


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


@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_a_stream_that_the_caller_closed_is_no_fault_of_e2e(closed: str) -> None:
    command = f"{shlex.quote(sys.executable)} -m e2e report results/h200-decode {closed}"
    assert 0 == subprocess.run(command, shell=True, cwd=REPOSITORY, stdin=subprocess.DEVNULL, check=False).returncode


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
