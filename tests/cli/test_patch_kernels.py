"""Whole runs of `e2e validate` with kernels that change the model by themselves. Marked `slow`: each imports torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.schema.result import Result
from tests import tiny

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
SITES = tiny.SITES + 2 * tiny.LAYERS
"""Norms, and an MLP and an attention in every layer."""


def validate(kernel: str, folder: Path) -> tuple[int, Result, str]:
    """Exit code, result and report of a run up to `check` on the tiny Llama."""
    workload = tiny.write_workload(folder)
    policy = tiny.write_policy(folder / "policy.yaml")
    typed = [
        "validate",
        str(workload),
        "--policy",
        str(policy),
        "--kernel",
        kernel,
        "--until",
        "check",
        "--device",
        "cpu",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "e2e", *typed, "--json", "--out", str(folder / "results")],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "Traceback" not in done.stderr
    (report,) = (folder / "results").glob("*/report.md")
    return done.returncode, Result.model_validate(json.loads(done.stdout)), report.read_text()


@pytest.mark.usefixtures("e2e_cache")
def test_a_right_patch_passes_at_every_module_it_changes(tmp_path: Path) -> None:
    kernel = tmp_path / "k.py"
    kernel.write_text(
        "# /// e2e\n# kind: patch\n# entry: patch\n# ///\nfrom tests.patches import llama\n\n\n"
        "def patch(model):\n    llama.on_model(model)\n"
    )
    code, result, report = validate(str(kernel), tmp_path)
    assert (0, None, []) == (code, result.outcome, result.reasons)
    seen = result.engagement
    assert seen is not None
    assert (SITES,) * 4 == (seen.sites_found, seen.sites_patched, seen.sites_called, seen.calls)
    assert seen.watermark_moved is True
    assert {"LlamaAttention"} == {site.owner for site in seen.sites if site.unchecked}
    assert "by the model's outputs only: it is called with more than one tensor" in report
    evidence = result.cells[0].evidence
    assert {"passed"} == {check.status for check in evidence.op_checks}
    assert evidence.model_check is not None and "passed" == evidence.model_check.status


@pytest.mark.usefixtures("e2e_cache")
def test_a_patch_that_only_the_models_outputs_can_check_passes_by_them(tmp_path: Path) -> None:
    code, result, _ = validate("patch:tests.patches.llama:rope_only", tmp_path)
    assert (0, None, []) == (code, result.outcome, result.reasons)
    evidence = result.cells[0].evidence
    assert [] == evidence.op_checks == evidence.mutants
    assert evidence.model_check is not None and tiny.LAYERS <= (evidence.model_check.kernel_calls or 0)


@pytest.mark.usefixtures("e2e_cache")
@pytest.mark.parametrize(
    ("entry", "code", "reason", "said"),
    [
        ("wrong", 12, "op_error_exceeded", "op checks"),
        ("nothing", 14, "no_sites", "changed no module of this model"),
        ("raises", 13, "candidate_raised", "ValueError: this architecture is not supported (llama.py:"),
        ("needs_more", 13, "bind_failed", "requires the arguments model, level"),
        ("everywhere", 13, "bind_failed", "it also changed torch.nn.functional.silu"),
    ],
)
def test_a_bad_patch_is_named_for_what_it_does(entry: str, code: int, reason: str, said: str, tmp_path: Path) -> None:
    ended, result, _ = validate(f"patch:tests.patches.llama:{entry}", tmp_path)
    assert code == ended
    assert reason in [str(item.code) for item in result.reasons]
    assert said in " ".join(item.message for item in result.reasons)
