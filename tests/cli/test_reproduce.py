"""`reproduce.py` run as its reader would: without e2e on its path, beside what e2e's own arms say."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import pytest
import torch

from e2e import building, registry
from e2e.arms import Arena
from e2e.bound import Candidate, Part, bound_to
from e2e.configuration import load_workload
from e2e.measure.devices import find_device
from e2e.protocols import Built
from e2e.reading import read_kernel
from e2e.reproduction import NAME, script
from e2e.schema.evidence import DeviceFacts, SiteRecord
from e2e.schema.result import CellResult
from e2e.schema.workload import cells_of
from tests import results

KERNEL = Path(__file__).parents[2] / "kernels" / "rmsnorm.cpp"
ARMS = ("candidate:eager", "baseline:eager")
ROUNDS = 12
AGREES = 1.05
"""Two processes may differ by this, beyond what their own blocks do: other work on the machine widens both."""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("ninja") is None, reason="tvm_ffi.cpp.load needs ninja")
def test_its_ratio_is_the_one_that_e2es_own_arms_show(tiny_workload: Path, tmp_path: Path) -> None:
    kernel = read_kernel(str(KERNEL), op=None)
    loaded = load_workload(str(tiny_workload))
    built = building.compiled(kernel, find_device("cpu", kernel_device="cpu"), timeout_s=120)
    assert isinstance(built, Built)
    (cell,) = cells_of(loaded.workload)
    session = registry.load("tasks", "causal-lm").open(
        loaded.workload, cell, root=loaded.path.parent, device="cpu", seed=1
    )
    op = registry.load("ops", "rms_norm")
    sites = op.find_sites(session.model)
    candidate = Candidate(bound_to(built, op, "float32"), frozenset(site.fqn for site in sites))
    low, high = ratios_of(Arena(session, [Part(op, sites, candidate)]))

    told = results.verdict()
    shipped = told.latency.against[1].model_copy(update={"arm": ARMS[1]})
    engagement = results.engagement().model_copy(
        update={"sites": [SiteRecord(fqn=site.fqn, owner="LlamaRMSNorm", status="patched", calls=1) for site in sites]}
    )
    seen = results.evidence(
        candidate=ARMS[0], engagement=engagement, device=DeviceFacts(kind="cpu", name="CPU", count_threads=1)
    )
    told = told.model_copy(update={"latency": told.latency.model_copy(update={"against": [shipped]})})
    result = results.result(
        [CellResult(cell=cell, evidence=seen, verdict=told)], kernels=[kernel], workload=loaded.workload
    )
    text, _ = script(result, f"{tiny_workload.parent}/")
    assert text is not None
    (tmp_path / "kernel").mkdir()
    shutil.copy(KERNEL, tmp_path / "kernel")
    (tmp_path / NAME).write_text(text.replace("BLOCKS, SEGMENT_S = 24, 0.1", "BLOCKS, SEGMENT_S = 12, 0.02"))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(
        [sys.executable, NAME], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    (printed,) = re.findall(r"^baseline:eager: .*of the blocks (\S+) to (\S+)\)", ended.stdout, re.MULTILINE)
    least, most = map(float, printed)
    assert least < high * AGREES, ended.stdout
    assert low < most * AGREES, ended.stdout


def ratios_of(arena: Any) -> tuple[float, float]:
    """The eager step over the candidate's, the middle half of mirrored blocks of ten steps."""
    torch.set_num_threads(1)
    for name in ARMS:
        arena.prepare(name, seed=3)
    contrasts = []
    for turn in range(ROUNDS):
        order = [*ARMS, *reversed(ARMS)] if turn % 2 else [*reversed(ARMS), *ARMS]
        logs = dict.fromkeys(ARMS, 0.0)
        for place, name in enumerate(order):
            logs[name] += math.log(median(arena.clocked(name, seed=100 * turn + 10 * place, count=10)))
        contrasts.append((logs[ARMS[1]] - logs[ARMS[0]]) / 2)
    low, _, high = quantiles(contrasts, n=4)
    return math.exp(low), math.exp(high)
