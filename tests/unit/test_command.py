"""`task: command`: programs of a few lines, started as a user's would be, that are right, wrong, forged or broken."""

from __future__ import annotations

import json
import re
import struct
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import e2e
from e2e import external, registry
from e2e.adoption import adopt
from e2e.commands import MOST_LOG_BYTES, _numbers, difference, token
from e2e.configuration import load_workload
from e2e.errors import NoRoom, UsageError
from e2e.protocols import BuildTarget, Built
from e2e.reading import read_kernel
from e2e.reports.text import PLUGIN as TEXT
from e2e.schema.result import Result
from e2e.schema.words import Mode, Outcome, ReasonCode, Stage
from e2e.schema.workload import cells_of
from e2e.stages import command
from e2e.stages.command import _kernel
from e2e.stages.course import Course
from tests.fakes import policy

REPOSITORY = Path(__file__).parents[2]
KERNEL = """\
# /// e2e
# op: rms_norm
# entry: rms_norm
# device: cpu
# dtypes: [float32]
# ///
def rms_norm(x, weight, eps):
    return [value * 2.0 for value in x]
"""
PROGRAM = """\
import os, random
from e2e import external

plan = external.plan()
draw = random.Random(plan.seed)
x = [draw.random() for _ in range(8)]
norm = external.kernel() or (lambda x, weight, eps: [value * 2.0 for value in x])
y = norm(x, x, 1e-6)
seconds = {CANDIDATE} if plan.has_kernel else 1e-3
external.report(seconds * (1 + 1e-3 * draw.random()), {{"y": y}}, steps=4)
"""
PLAIN = PROGRAM.format(CANDIDATE="1e-3")


@dataclass(frozen=True)
class Case:
    """A folder with a workload, its program and a kernel."""

    folder: Path

    def run(self, program: str = PLAIN, *, until: str = "check", policy: str = "demo", **fields: Any) -> Result:
        (self.folder / "loop.py").write_text(program)
        (self.folder / "kernel.py").write_text(KERNEL)
        command = {"argv": ["python", "loop.py"], **fields.pop("command", {})}
        spec = {"name": "mine", "task": "command", "model": {"dtype": "float32"}, "command": command, **fields}
        (self.folder / "mine.yaml").write_text(json.dumps(spec))
        return e2e.validate(
            self.folder / "mine.yaml",
            self.folder / "kernel.py",
            until=until,
            policy=policy,
            device="cpu",
            out=self.folder / "results",
            quiet=True,
        )


@pytest.fixture
def case(tmp_path: Path, e2e_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    return Case(tmp_path)


def changed(old: str, new: str, program: str = PLAIN) -> str:
    assert old in program
    return program.replace(old, new)


def codes(result: Result) -> list[ReasonCode]:
    return [reason.code for reason in result.reasons]


# ---- What it comes to


def test_a_gain_is_confirmed_and_the_report_says_at_once_how_far_it_can_be_trusted(case: Case) -> None:
    result = case.run(PROGRAM.format(CANDIDATE="0.9e-3"), until="verdict")
    assert result.outcome is Outcome.CONFIRMED
    (row,) = result.cells[0].verdict.latency.against
    assert 1.11 == pytest.approx(row.speedup.point_estimate, abs=0.01)
    text = TEXT.render(result)
    first_screen = text.partition("Evidence")[0]
    assert "EXTERNAL, TRUST LIMITED" in first_screen
    assert "faster than the command as it is" in " ".join(first_screen.split())
    assert "PyTorch" not in first_screen
    assert "the strongest PyTorch path" in " ".join(text.split())  # among what was not seen
    with pytest.raises(UsageError, match="a program of your own, which loads the kernel itself"):
        adopt(case.folder, result, out=case.folder / "adopted", alternative=None, forced=None)


def test_processes_run_in_mirrored_order_on_one_seed_a_group_and_every_run_is_compared(case: Case) -> None:
    result = case.run(until="verdict")
    assert result.outcome is Outcome.REFUTED
    evidence = result.cells[0].evidence
    for worker in range(5):
        group = [run for run in evidence.command_runs if run.worker == worker]
        arms = [run.arm for run in sorted(group, key=lambda run: run.position)]
        assert arms == arms[::-1]
        assert {"baseline:command", "candidate:command", "sham:command"} == set(arms)
        assert len({run.seed for run in group}) == 1
        assert [run.difference for run in group].count(None) == 1  # what the others are compared with
    assert 30 == len(evidence.segments) == len({segment.seed for segment in evidence.segments}) * 6
    assert evidence.audit is not None
    assert (30, 15, 10) == (evidence.audit.steps_timed, evidence.audit.steps_audited, evidence.audit.steps_compared)


def test_a_check_has_proof_that_the_kernel_ran_and_that_the_outputs_depend_on_it(case: Case) -> None:
    result = case.run()
    assert result.outcome is None and result.error is None
    evidence = result.cells[0].evidence
    assert evidence.engagement is not None and evidence.engagement.watermark_moved is True
    assert "1 call in a run" in evidence.engagement.proof
    assert [mutant.caught for mutant in evidence.mutants] == [True]
    assert ["baseline:command", "candidate:command", "mutant", "baseline:command"] == [
        run.arm for run in evidence.command_runs
    ]


def test_what_e2e_cannot_see_of_a_command_is_said(case: Case) -> None:
    unseen = " ".join(case.run().unseen)
    assert "its own word" in unseen and "the op on this model's activations" in unseen and "the swap's own" in unseen
    assert "the swap's own" not in " ".join(case.run(command={"sham": True}).unseen)


def test_a_rate_is_the_better_the_higher_it_is(case: Case) -> None:
    program = changed(
        "external.report(seconds * ", "external.report(1 / seconds * ", PROGRAM.format(CANDIDATE="0.8e-3")
    )
    result = case.run(program, until="verdict", command={"metric": "rate"})
    assert result.outcome is Outcome.CONFIRMED


def test_a_sham_of_its_own_that_is_slow_drowns_a_gain_that_it_explains(case: Case) -> None:
    """Where the swap itself is what wins, the kernel did not."""
    program = changed("if plan.has_kernel", 'if plan.arm != "baseline"', PROGRAM.format(CANDIDATE="0.9e-3"))
    result = case.run(program, until="verdict", command={"sham": True})
    assert result.outcome is Outcome.INCONCLUSIVE
    assert ReasonCode.IDENTICAL_CODE_DIFFERS in codes(result)


# ---- What must not pass


FAILED: Mapping[str, tuple[str, str, Outcome, ReasonCode, str]] = {
    "no receipt": (
        "norm = external.kernel() or (",
        "os.environ.pop('E2E_KERNEL', 0); norm = (",
        Outcome.FAILED,
        ReasonCode.NEVER_CALLED,
        "handed back no receipt",
    ),
    "a kernel that is loaded and never called": (
        "y = norm(x, x, 1e-6)",
        "y = [value * 2.0 for value in x]",
        Outcome.FAILED,
        ReasonCode.NEVER_CALLED,
        r"its receipt \(0 calls\) does not fit",
    ),
    "a forged receipt": (
        "steps=4)",
        "steps=4)\nimport json\nplace = os.environ['E2E_OUT'] + '/report.json'\nsaid = json.load(open(place))\n"
        "if plan.has_kernel: said['receipt'] = {'calls': 5, 'token': 'f' * 64}\n"
        "open(place, 'w').write(json.dumps(said))",
        Outcome.FAILED,
        ReasonCode.NEVER_CALLED,
        r"its receipt \(5 calls\) does not fit",
    ),
    "other outputs": (
        "y = norm(x, x, 1e-6)",
        "y = norm(x, x, 1e-6)\nif plan.has_kernel: y = [value * 1.01 for value in y]",
        Outcome.INCORRECT,
        ReasonCode.MODEL_ERROR_EXCEEDED,
        "outputs over 8 numbers against the command as it is",
    ),
    "outputs of another form": (
        "y = norm(x, x, 1e-6)",
        "y = norm(x, x, 1e-6)\nif plan.has_kernel: y = y[1:]",
        Outcome.INCORRECT,
        ReasonCode.WRONG_OUTPUT_LAYOUT,
        "outputs over",
    ),
    "a crash": (
        "y = norm(x, x, 1e-6)",
        "y = norm(x, x, 1e-6)\nif plan.has_kernel: print('so it ends', flush=True); os.kill(os.getpid(), 11)",
        Outcome.FAILED,
        ReasonCode.CANDIDATE_CRASHED,
        "SIGSEGV; it printed: so it ends",
    ),
    "an error": (
        "y = norm(x, x, 1e-6)",
        "y = norm(x, x, 1e-6)\nif plan.has_kernel: raise SystemExit(3)",
        Outcome.FAILED,
        ReasonCode.CANDIDATE_EXITED,
        "exit status 3",
    ),
    "no report": (
        "external.report(",
        "plan.has_kernel or external.report(",
        Outcome.FAILED,
        ReasonCode.CANDIDATE_EXITED,
        "ended without a report",
    ),
    "more time than there was": (
        "steps=4)",
        "steps=10**9 if plan.has_kernel else 4)",
        Outcome.INCORRECT,
        ReasonCode.TAMPERED,
        "its process lived",
    ),
}


@pytest.mark.parametrize("name", FAILED)
def test_with_the_kernel_it_has_to_prove_itself(case: Case, name: str) -> None:
    old, new, outcome, code, words = FAILED[name]
    result = case.run(changed(old, new))
    assert (outcome, code) == (result.outcome, codes(result)[0]), result.reasons
    assert re.search(words, result.reasons[0].message)


def test_a_hang_ends_with_the_policys_time(case: Case) -> None:
    short = case.folder / "short.yaml"
    short.write_text("name: short\nbudgets: {import_s: 0.5, call_s: 0.5}\n")
    program = changed("y = norm", "if plan.arm == 'candidate': __import__('time').sleep(60)\ny = norm")
    result = case.run(program, policy=str(short))
    assert (Outcome.FAILED, ReasonCode.TIMED_OUT) == (result.outcome, codes(result)[0])


def test_outputs_that_do_not_depend_on_the_kernel_are_no_proof(case: Case) -> None:
    """It is called, and what it gives is thrown away."""
    program = changed("y = norm(x, x, 1e-6)", "norm(x, x, 1e-6); y = [value * 2.0 for value in x]")
    result = case.run(program, until="verdict")
    assert result.outcome is Outcome.INCONCLUSIVE
    assert {ReasonCode.NOT_ON_PATH, ReasonCode.CHECK_NO_POWER} & set(codes(result))


def test_a_command_that_loads_the_kernel_by_itself_can_compute_the_token_and_this_is_said(case: Case) -> None:
    program = changed("norm = external.kernel() or (", "norm = (")
    program = changed("steps=4)", "steps=4, calls=7 if plan.has_kernel else None)", program)
    result = case.run(program)
    assert result.outcome is None and result.error is None
    assert "does not load the kernel by `e2e.external.kernel()`" in " ".join(result.unseen)


def test_a_command_that_fails_without_its_kernels_outputs_goes_on_and_this_is_said(case: Case) -> None:
    """As one whose program knows no such arm; its runs are numbered on."""
    result = case.run(changed("y = norm", "assert plan.arm != 'mutant'\ny = norm"), until="verdict")
    assert result.outcome is Outcome.REFUTED
    assert "whether its outputs depend on the kernel's: with E2E_ARM=mutant it ended with" in " ".join(result.unseen)
    assert 34 == len(list((case.folder / "results").glob("*/command/*.log")))


BROKEN: Mapping[str, tuple[str, str, str]] = {
    "fails as it is": ("y = norm", "raise SystemExit('no such model')\ny = norm", "E2E_ARM=baseline: it ended with"),
    "hands over nothing": ('{"y": y}', "None", "hands over no outputs"),
    "draws without the seed": ("random.Random(plan.seed)", "random.Random()", "draw everything from that seed"),
    "is not finite": ("{", "{'z': [float('nan')], ", "its outputs are not finite"),
    "claims a receipt as it is": (
        "steps=4)",
        "steps=4)\nplace = os.environ['E2E_OUT'] + '/report.json'\n"
        'text = open(place).read().replace(\'{\', \'{"receipt": {"calls": 1, "token": ""}, \', 1)\n'
        "plan.has_kernel or open(place, 'w').write(text)",
        "E2E_ARM=baseline it hands back a receipt",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_without_the_kernel_is_the_callers_mistake(case: Case, name: str) -> None:
    old, new, words = BROKEN[name]
    result = case.run(changed(old, new))
    assert result.error is not None and 2 == result.error.code
    assert words in result.error.message


def test_secrets_reach_no_command(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_planted")
    result = case.run(changed("y = norm", "assert 'HF_TOKEN' not in os.environ\ny = norm"))
    assert result.outcome is None and result.error is None


def test_what_a_command_leaves_running_ends_with_it(case: Case) -> None:
    left = "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    assert case.run(changed("y = norm", left + "y = norm")).error is None
    assert not [process for process in Path("/proc").glob("[0-9]*/cmdline") if b"time.sleep(600)" in _read(process)]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_nothing_else_opens_a_command(case: Case) -> None:
    case.run(until="build")
    workload = load_workload(str(case.folder / "mine.yaml")).workload
    with pytest.raises(UsageError, match="e2e does not see into a program of your own"):
        registry.load("tasks", "command").open(workload, cells_of(workload)[0], root=case.folder, device="cpu", seed=0)


@pytest.mark.parametrize(("batches", "code"), [([1, 2], None), ([2], 6)], ids=["among others", "alone"])
def test_a_cell_that_memory_does_not_hold_ends_itself_and_not_the_sweep(
    case: Case, monkeypatch: pytest.MonkeyPatch, batches: list[int], code: int | None
) -> None:
    def check(course: Course) -> None:
        if course.crew.cell.batch == 2:
            raise NoRoom("CUDA out of memory")
        command.check(course)

    monkeypatch.setattr(command, "STAGES", ((Stage.CHECK, check),))
    result = case.run(cells={"batch": batches})
    assert code == (result.error.code if result.error else None)
    if code is None:
        assert [None, "CUDA out of memory"] == [cell.evidence.no_room for cell in result.cells]
        assert [None, Outcome.INCONCLUSIVE] == [cell.verdict.outcome for cell in result.cells]
        assert result.outcome is None and ReasonCode.NO_ROOM in codes(result)
        assert 4 == len(list((case.folder / "results").glob("*/command/forward-1x1-float32/*.log")))


# ---- The kernel


@pytest.mark.parametrize("source", ["kernels/rmsnorm.cpp", "tests/kernels/reordered.cpp"], ids=["last", "elsewhere"])
def test_a_built_library_is_loaded_counted_and_zeroed_where_its_outputs_are(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, e2e_cache: Path
) -> None:
    import torch

    monkeypatch.setattr(external, "_loaded", [])
    kernel = read_kernel(str(REPOSITORY / source), op="rms_norm")
    target = BuildTarget(device="cpu", arch=None, cache=e2e_cache / "kernels", timeout_s=240)
    asked = _kernel(registry.load("builders", kernel.manifest.binding).build(kernel, target), "float32")
    (tmp_path / "kernel.json").write_text(json.dumps({**asked, "nonce": "n"}))
    monkeypatch.setenv("E2E_KERNEL", str(tmp_path / "kernel.json"))
    monkeypatch.setenv("E2E_OUT", str(tmp_path))
    sums = {}
    for arm in ("candidate", "mutant"):
        monkeypatch.setenv("E2E_ARM", arm)
        call, out = external.kernel(), torch.ones(3, 5)
        assert call is not None
        x, weight = torch.full((3, 5), 2.0), torch.full((5,), 3.0)
        call(*((x, weight, 1e-6, out) if source.startswith("kernels") else (out, 1e-6, 5, 3, weight, x)))
        sums[arm] = float(out.abs().sum())
        external.report(1.0, {"y": out})
    assert sums["candidate"] > 0 == sums["mutant"]
    said = json.loads((tmp_path / "report.json").read_text())
    assert {"calls": 2, "token": token({**asked, "nonce": "n"})} == said["receipt"] and said["zeroed"]


def test_an_extension_of_torch_is_imported_under_the_name_that_it_was_built_for() -> None:
    kernel = read_kernel(str(REPOSITORY / "tests/kernels/torch_norm.cpp"), op="rms_norm")
    built = Built(kernel=kernel, builder="torch", artifact="kernel.so", seconds=0.0, cached=True)
    asked = _kernel(built, "float32")
    assert asked["module"] == registry.load("builders", "torch").module_name(kernel)
    assert isinstance(asked["module"], str) and asked["outputs"] == []


# ---- The file


def loaded(folder: Path, text: str) -> Any:
    (folder / "w.yaml").write_text(textwrap.dedent(text))
    return load_workload(str(folder / "w.yaml")).workload


def test_a_command_need_only_say_its_words_and_its_dtype(tmp_path: Path) -> None:
    workload = loaded(tmp_path, "{name: w, task: command, model: {dtype: bfloat16}, command: {argv: [vllm]}}")
    (cell,) = cells_of(workload)
    assert ("forward", 1, "bfloat16") == (cell.step, cell.batch, cell.dtype)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{name: w, task: command, model: {dtype: float32}}", "needs `command: {argv"),
        ("{name: w, task: command, model: {dtype: float32}, command: {argv: ['']}}", "program's name"),
        ("{name: w, task: command, command: {argv: [x]}}", "model"),
        (
            "{name: w, task: causal-lm, step: prefill, model: {id: x, dtype: float32}, data: {path: synthetic},"
            " cells: {batch: [1]}, command: {argv: [x]}}",
            "goes with `task: command`",
        ),
    ],
)
def test_a_command_that_is_not_whole_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words.replace("{", r"\{")):
        loaded(tmp_path, text)


def test_a_program_that_does_not_exist_is_the_callers_mistake(case: Case) -> None:
    with pytest.raises(UsageError, match="no program 'no-such-program' on the PATH"):
        case.run(command={"argv": ["no-such-program"]})


def test_no_policy_can_ask_for_the_mode_of_a_command() -> None:
    with pytest.raises(ValueError, match="must be among eager"):
        policy(modes=[Mode.COMMAND])


# ---- What is handed back


def test_outputs_are_compared_by_the_worst_of_them() -> None:
    base = {"a": [3.0, 4.0], "b": [1.0], "ids": "f0"}
    assert (0.0, None) == difference(dict(base), base)
    assert pytest.approx(0.2) == difference({**base, "a": [3.0, 5.0]}, base)[0]
    assert (None, ReasonCode.MODEL_ERROR_EXCEEDED) == difference({**base, "ids": "f1"}, base)
    assert (None, ReasonCode.NONFINITE_OUTPUT) == difference({**base, "b": [float("inf")]}, base)
    assert (None, ReasonCode.WRONG_OUTPUT_LAYOUT) == difference({"a": [3.0, 4.0]}, base)
    assert (None, ReasonCode.MODEL_ERROR_EXCEEDED) == difference({"a": [1e-9]}, {"a": [0.0]})


@pytest.mark.parametrize(
    ("dtype", "data"),
    [
        ("F32", struct.pack("<3f", 1, -2, 0.5)),
        ("F64", struct.pack("<3d", 1, -2, 0.5)),
        ("F16", struct.pack("<3e", 1, -2, 0.5)),
        ("BF16", b"".join(struct.pack("<f", value)[2:] for value in (1, -2, 0.5))),
    ],
)
def test_every_dtype_is_read_as_its_numbers(dtype: str, data: bytes) -> None:
    assert [1.0, -2.0, 0.5] == list(_numbers(memoryview(data), dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int64"])
def test_tensors_and_arrays_come_back_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    import torch
    from safetensors.torch import load_file

    monkeypatch.setenv("E2E_OUT", str(tmp_path))
    tensor = torch.arange(6).reshape(2, 3).to(getattr(torch, dtype)).T
    external.report(1.0, {"t": tensor, **({} if dtype == "bfloat16" else {"a": tensor.numpy()})})
    found = load_file(tmp_path / "outputs.safetensors")
    assert all(torch.equal(item, tensor) for item in found.values())


def test_a_tensor_of_flags_is_no_output(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import numpy as np

    monkeypatch.setenv("E2E_OUT", str(tmp_path))
    with pytest.raises(TypeError, match="of the dtype bool"):
        external.report(1.0, {"a": np.zeros(2, bool)})


def test_by_hand_a_program_runs_as_it_is_and_prints_its_report(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("E2E_OUT", "E2E_KERNEL", "E2E_ARM"):
        monkeypatch.delenv(name, raising=False)
    assert external.plan().arm == "baseline" and external.kernel() is None
    external.report(0.5, {"y": [1, 2]})
    assert 0.5 == json.loads(capsys.readouterr().out)["metric"]


def test_what_a_program_prints_without_end_is_kept_by_its_end(case: Case) -> None:
    result = case.run(changed("y = norm", f"print('x' * {2 * MOST_LOG_BYTES} + 'the end')\ny = norm"))
    assert result.error is None
    logs = sorted((case.folder / "results").glob("*/command/*.log"))
    assert ["001-baseline", "002-candidate", "003-mutant", "004-baseline"] == [log.stem for log in logs]
    assert all(log.stat().st_size == MOST_LOG_BYTES and log.read_text().endswith("the end\n") for log in logs)
