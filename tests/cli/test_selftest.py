"""Whole runs of `e2e selftest` on the tiny workload, as a user starts them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from e2e.schema.selftest import SelftestReport
from tests import tiny

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]


OPS = ("--op", "rms_norm", "--op", "module:LlamaRMSNorm")


def begin(folder: Path, cache: Path, workload: Path, *arguments: str) -> subprocess.Popen[str]:
    (folder / "tmp").mkdir()
    policy = tiny.write_policy(folder / "policy.yaml")
    command = [sys.executable, "-m", "e2e", "selftest", str(workload), "--policy", str(policy), "--device", "cpu"]
    return subprocess.Popen(
        [*command, "--out", str(folder / "out"), "--json", *arguments],
        cwd=REPOSITORY,
        env={
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
            "TMPDIR": str(folder / "tmp"),
            "NO_COLOR": "1",
            "E2E_CACHE_DIR": str(cache),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_self_test_finds_what_was_planted_and_is_remembered(tmp_path: Path, tiny_workload: Path) -> None:
    started = begin(tmp_path, tmp_path / "cache", tiny_workload, "--runs", "1", "--budget", "240", *OPS)
    out, err = started.communicate(timeout=400)
    report = SelftestReport.model_validate_json(out, strict=True)
    assert started.returncode in (0, 11), err  # a machine that others use may show no power, but no fault either
    assert [] == report.faults
    assert 0 == (report.identical.confirmed if report.identical else 0)
    assert {"rms_norm", "module:LlamaRMSNorm"} == {catch.op for catch in report.catches}
    assert {"check", "timing"} == {catch.stage for catch in report.catches if catch.kind == "wrong"}
    assert all(catch.is_right for catch in report.catches)
    assert 7 * report.runs_done == len(report.trials)
    (stored,) = (tmp_path / "out").iterdir()
    assert report == SelftestReport.model_validate_json(stored.read_text(), strict=True)
    assert report.runs_done == 0 or len(list((tmp_path / "cache" / "selftest").iterdir())) == 1
    assert [] == list((tmp_path / "tmp").iterdir())


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_or_cis_time_limit_ends_it_with_what_is_known(
    tmp_path: Path, tiny_workload: Path, how: signal.Signals
) -> None:
    started = begin(tmp_path, tmp_path / "cache", tiny_workload, "--runs", "20", "--budget", "240", *OPS)
    assert started.stderr is not None
    for line in started.stderr:
        if "the step alone" in line:
            break
    time.sleep(0.2)
    started.send_signal(how)
    out, err = started.communicate(timeout=60)
    assert 130 == started.returncode, err
    report = SelftestReport.model_validate_json(out, strict=True)
    assert report.is_interrupted
    assert report.catches
    assert report.doubts == ["no run was finished before the interrupt"]
    assert "Traceback" not in err
    assert [] == list((tmp_path / "tmp").iterdir())
