"""A whole run of `e2e profile` on the tiny workload, and what is made of it. Marked `slow`: it imports torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.schema.check import CheckReport
from e2e.schema.profile import ProfileReport
from tests import tiny

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
NORM, WRONG = "tests/kernels/plain_norm.py", "tests/kernels/bad/nan.py"


def run(*arguments: str, scratch: Path) -> subprocess.CompletedProcess[str]:
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
    return done


def test_a_profile_names_what_is_worth_a_kernel_and_keeps_the_inputs_that_a_check_runs_on(
    tmp_path: Path, tiny_workload: Path, tiny_policy: Path, e2e_cache: Path
) -> None:
    scratch, out = tmp_path / "tmp", tmp_path / "out"
    scratch.mkdir()
    ops = ("--op", "rms_norm", "--op", "linear", "--op", "gelu")
    typed = ("profile", str(tiny_workload), "--policy", str(tiny_policy), "--device", "cpu", "--seed", "5", *ops)
    done = run(*typed, "--out", str(out), "--json", scratch=scratch)
    assert done.returncode == 0, done.stderr
    report = ProfileReport.model_validate(json.loads(done.stdout, parse_constant=pytest.fail))
    (folder,) = out.iterdir()
    assert list(scratch.iterdir()) == [], "nothing is left behind"

    norm, linear = (next(op for op in report.ops if op.op == name) for name in ("rms_norm", "linear"))
    assert report.absent == ["gelu"]
    assert (norm.sites, norm.calls, linear.sites) == (tiny.SITES, tiny.SITES, 7 * tiny.LAYERS + 1)
    assert [form.calls for form in norm.forms] == [tiny.SITES]
    assert norm.forms[0].tensors[0] is not None
    assert norm.forms[0].tensors[0].shape == [1, 32, tiny.HIDDEN]
    assert norm.status == linear.status == "measured"
    assert linear.ceiling is not None
    assert linear.ceiling.point_estimate > 1.0, "a step without its matrix products is faster on any machine"
    (step,) = report.steps
    assert step.kernels is None, "a CPU has no device events: unknown, not none"
    assert any(row.name == "aten::mm" for row in step.operators)
    assert any(row.owner == "LlamaRMSNorm" and row.calls == 2 * tiny.LAYERS / 2 for row in step.modules)
    assert {path.name for path in (folder / "captures").iterdir()} == {"linear.safetensors", "rms_norm.safetensors"}

    shown = run("report", str(folder), scratch=scratch)
    assert "Ops worth a kernel" in shown.stdout
    refused = run("gate", str(folder), scratch=scratch)
    assert (refused.returncode, "is a profile" in refused.stderr) == (2, True)

    right = run("check", NORM, "--captures", str(folder), "--json", scratch=scratch)
    checked = CheckReport.model_validate_json(right.stdout)
    assert (right.returncode, checked.outcome, [item.dtype for item in checked.dtypes]) == (0, None, ["float32"])
    captured = [item for item in checked.dtypes[0].inputs if item.label == "captured"]
    assert {item.shape for item in captured} == {f"1 x 32 x {tiny.HIDDEN}"}
    assert len({item.site for item in captured}) > 1
    wrong = run("check", WRONG, "--captures", str(folder), scratch=scratch)
    assert wrong.returncode == 12, wrong.stdout + wrong.stderr
