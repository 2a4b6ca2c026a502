"""Whole runs of `e2e check`, and of kernels for an op from outside the package. Marked `slow`: each imports torch."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from e2e.schema.check import CheckReport
from tests import tiny

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
BAD = "tests/kernels/bad"
OP = "examples/swiglu_mlp.py:SwigluMlp"
OWN = "examples/swiglu_mlp_kernel.py"


@dataclass(frozen=True)
class Ended:
    """A finished command."""

    code: int
    out: str
    err: str

    @property
    def report(self) -> CheckReport:
        return CheckReport.model_validate(json.loads(self.out, parse_constant=pytest.fail))


def run(*arguments: str, scratch: Path) -> Ended:
    done = subprocess.run(
        [sys.executable, "-m", "e2e", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "NO_COLOR": "1", "TMPDIR": str(scratch)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert list(scratch.glob("e2e-*")) == [], "nothing is left behind"
    return Ended(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def scratch(tmp_path: Path, e2e_cache: Path) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


def test_a_right_kernel_passes_in_every_dtype_it_declares(scratch: Path) -> None:
    ended = run("check", "kernels/rmsnorm.cpp", "--seed", "5", "--json", scratch=scratch)
    assert 0 == ended.code
    report = ended.report
    assert (report.outcome, report.reasons, report.seed) == (None, [], 5)
    assert [item.dtype for item in report.dtypes] == ["float32", "float16", "bfloat16"]
    for item in report.dtypes:
        assert {check.status for check in item.inputs} == {"passed"}
        assert all(mutant.caught for mutant in item.mutants)
        assert item.torch is not None
        assert (item.torch.called, item.torch.faked) == (None, None)
    assert "check: rms_norm in bfloat16" in ended.err


def test_the_same_seed_draws_the_same_inputs(scratch: Path) -> None:
    typed = ("check", "tests/kernels/plain_norm.py", "--dtype", "float32", "--seed", "5", "--json")
    first, second = (run(*typed, scratch=scratch).report for _ in range(2))
    assert first.dtypes == second.dtypes


@pytest.mark.parametrize(
    ("kernel", "code", "reason"),
    [
        ("zeros.cpp", 12, "op_error_exceeded"),
        ("nan.py", 12, "nonfinite_output"),
        ("writes_input.py", 12, "inputs_changed"),
        ("static_buffer.py", 12, "wrong_output_layout"),
        ("aborts.cpp", 13, "candidate_crashed"),
        ("exits.cpp", 13, "candidate_exited"),
        ("raises.cpp", 13, "candidate_raised"),
        ("missing_entry.cpp", 13, "bind_failed"),
        ("leaves_on_import.py", 13, "candidate_exited"),
    ],
)
def test_a_bad_kernel_is_named_for_what_it_does(kernel: str, code: int, reason: str, scratch: Path) -> None:
    ended = run("check", f"{BAD}/{kernel}", "--dtype", "float32", "--device", "cpu", "--json", scratch=scratch)
    assert code == ended.code
    report = ended.report
    assert reason in [str(item.code) for item in report.reasons]
    assert report.again.startswith(f"e2e check {BAD}/{kernel} --dtype float32 --device cpu --seed ")


def test_a_crash_names_the_input_in_hand(scratch: Path) -> None:
    report = run("check", f"{BAD}/aborts.cpp", "--dtype", "float32", "--json", scratch=scratch).report
    assert "example" == report.reasons[0].where.position


def test_a_kernel_that_does_not_compile_fails_with_its_line(scratch: Path) -> None:
    ended = run("check", "tests/kernels/does_not_compile.cpp", scratch=scratch)
    assert 13 == ended.code
    assert "does_not_compile.cpp:" in ended.out
    assert "[build_failed]" in ended.out


def test_a_fault_in_one_dtype_leaves_the_others_checked(tmp_path: Path, scratch: Path) -> None:
    kernel = tmp_path / "k.py"
    kernel.write_text(
        "# /// e2e\n# op: rms_norm\n# entry: k\n# dtypes: [float16, float32]\n# ///\nimport os\nimport torch\n\n"
        "def k(x, weight, eps):\n    if x.dtype == torch.float16:\n        os._exit(0)\n"
        "    return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)\n"
    )
    report = run("check", str(kernel), "--json", scratch=scratch).report
    assert ["failed", None] == [item.outcome for item in report.dtypes]
    assert "--dtype float16" in report.again


def test_a_kernel_that_declines_the_example_proves_nothing(tmp_path: Path, scratch: Path) -> None:
    kernel = tmp_path / "k.py"
    source = (REPOSITORY / "tests" / "kernels" / "plain_norm.py").read_text()
    kernel.write_text(source.replace("# entry:", '# constraints: ["hidden == 7"]\n# entry:'))
    ended = run("check", str(kernel), "--json", scratch=scratch)
    assert 11 == ended.code
    assert ["check_no_power"] == [str(reason.code) for reason in ended.report.reasons]


def test_gradients_are_checked_where_a_backward_is_declared(tmp_path: Path, scratch: Path) -> None:
    kernel = tmp_path / "k.py"
    source = (REPOSITORY / "tests" / "kernels" / "plain_norm.py").read_text()
    kernel.write_text(source.replace("# entry:", "# backward: reference\n# entry:"))
    report = run("check", str(kernel), "--json", scratch=scratch).report
    gradients = report.dtypes[0].gradients
    assert gradients is not None
    assert ("passed", 2) == (gradients.status, gradients.with_gradient_candidate)


# ---- Ops from outside


def test_a_kernel_of_an_op_from_outside_is_checked_alone(scratch: Path) -> None:
    ended = run("check", OWN, "--op", OP, "--dtype", "float32", "--json", scratch=scratch)
    assert 0 == ended.code
    sha256 = hashlib.sha256((REPOSITORY / "examples" / "swiglu_mlp.py").read_bytes()).hexdigest()
    assert sha256 == ended.report.kernel.op_sha256
    assert f"--op {OP}" in ended.report.again


def validated(kernel: Path | str, workload: Path, policy: Path, out: Path, scratch: Path) -> tuple[int, dict[str, Any]]:
    typed = ["validate", str(workload), "--kernel", str(kernel), "--op", OP, "--until", "check", "--json"]
    ended = run(*typed, "--policy", str(policy), "--out", str(out), scratch=scratch)
    return ended.code, json.loads(ended.out)


def test_an_op_from_outside_is_found_and_judged_in_a_model(
    tiny_workload: Path, tiny_policy: Path, tmp_path: Path, scratch: Path
) -> None:
    code, result = validated(OWN, tiny_workload, tiny_policy, tmp_path / "out", scratch)
    assert (0, None) == (code, result["outcome"])
    assert tiny.LAYERS == result["engagement"]["sites_called"]
    assert OP == result["kernels"][0]["manifest"]["op"]
    assert result["kernels"][0]["op_sha256"] is not None


def test_a_wrong_kernel_of_an_op_from_outside_is_caught(
    tiny_workload: Path, tiny_policy: Path, tmp_path: Path, scratch: Path
) -> None:
    source = (REPOSITORY / OWN).read_text()
    kernel = tmp_path / "larger.py"
    kernel.write_text(source.replace("F.linear(x, gate)", "F.linear(x, 1.01 * gate)"))
    code, result = validated(kernel, tiny_workload, tiny_policy, tmp_path / "out", scratch)
    assert (12, "incorrect") == (code, result["outcome"])
