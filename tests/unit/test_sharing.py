from __future__ import annotations

import pytest

from e2e import registry
from e2e.schema.evidence import BuildRecord, Where
from e2e.schema.policy import Policy
from e2e.schema.result import CellResult, Result
from e2e.schema.verdict import Reason
from e2e.schema.words import ReasonCode
from e2e.sharing import shareable
from tests import results

SECRET = ("acme", "/home", "annika", "gpu-rack-7", "customers")
"""Parts of names in `private` that nobody else should read."""


def private() -> Result:
    """A run that says in every way where it was made."""
    kernel = results.kernel().model_copy(
        update={"spec": "acme/norm.cu", "path": "/home/annika/acme/norm.cu", "others": ["/home/annika/acme/norm.h"]}
    )
    build = BuildRecord(
        kernel="0" * 64,
        seconds=1.0,
        cached=False,
        command="/usr/local/cuda/bin/nvcc -I/home/annika/include -o norm.so /home/annika/acme/norm.cu",
        log="/home/annika/acme/norm.cu(12): warning; see ../acme/notes/norm.txt on gpu-rack-7",
    )
    adopted = "kernel:acme/older.cu"
    told = results.verdict()
    best, shipped = told.latency.against
    rows = [best, shipped.model_copy(update={"opponent": adopted, "arm": f"baseline:eager+{adopted}"})]
    told = told.model_copy(update={"latency": told.latency.model_copy(update={"against": rows})})
    cell = CellResult(cell=results.cell(), evidence=results.evidence(builds=[build]), verdict=told)
    workload = results.workload()
    data = workload.data.model_copy(update={"path": "customers/prompts.jsonl"})
    model = workload.model.model_copy(update={"id": "/home/annika/models/acme"})
    return results.result(
        [cell],
        kernels=[kernel],
        workload=workload.model_copy(update={"data": data, "model": model.model_copy(update={"id": "~/acme/model-7"})}),
        policy=Policy(name="standard", opponents=["best_pytorch", adopted]),
        command=["e2e", "validate", "acme/infer.yaml", "--kernel", "acme/norm.cu", "--out", "/home/annika/runs"],
        overrides={"data.path": "customers/prompts.jsonl"},
        environment={"platform": "Linux-6.8", "variables": {"HOME": "/home/annika"}, "node": "gpu-rack-7"},
        reasons=[
            Reason(
                code=ReasonCode.CANDIDATE_RAISED,
                message="raised in acme/norm.cu:12, from /home/annika/acme/norm.h",
                where=Where(file="acme/norm.cu", line=12),
            )
        ],
    )


@pytest.mark.parametrize("style", registry.names("reports"))
def test_a_shared_report_says_nothing_of_where_it_was_made(style: str) -> None:
    text = registry.load("reports", style).render(shareable(private(), ["gpu-rack-7"]))
    assert not [part for part in SECRET if part in text]
    assert "norm.cu" in text


def test_the_last_part_of_a_path_stays_with_its_line() -> None:
    shared = shareable(private(), ["gpu-rack-7"])
    assert "raised in norm.cu:12, from norm.h" == shared.reasons[0].message
    assert ("norm.cu", "norm.cu", ["norm.h"]) == (
        shared.kernels[0].spec,
        shared.kernels[0].path,
        shared.kernels[0].others,
    )
    build = shared.cells[0].evidence.builds[0]
    assert "nvcc -Iinclude -o norm.so norm.cu" == build.command
    assert "norm.cu(12): warning; see norm.txt on ..." == build.log
    assert shared.workload is not None
    assert ("prompts.jsonl", "model-7") == (shared.workload.data.path, shared.workload.model.id)
    assert shared.policy is not None
    assert shared.policy.opponents[1] == "kernel:older.cu" == shared.cells[0].verdict.latency.against[1].opponent


def test_what_was_measured_stays() -> None:
    stored = results.result(environment={"platform": "Linux"})
    shared = shareable(stored)
    assert stored.latency == shared.latency
    assert stored.cells[0].evidence.segments == shared.cells[0].evidence.segments
    assert stored.cells[0].evidence.arms == shared.cells[0].evidence.arms
    assert stored.workload is not None and shared.workload is not None
    assert "meta-llama/Llama-3.2-1B" == shared.workload.model.id, "a hub's name is no path"


@pytest.mark.parametrize(
    "text", ["ratio 3/4", "https://a.b/c/d", "33 of 33 sites", "1.3 GB/s", "torch/nn/functional.py", "a / b", "root"]
)
def test_what_is_no_path_stays(text: str) -> None:
    stored = results.result(reasons=[Reason(code=ReasonCode.NOISY, message=text)])
    assert text == shareable(stored, ["b", "of"]).reasons[0].message
