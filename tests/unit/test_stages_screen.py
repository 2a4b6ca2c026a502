"""Who is blamed for what an arm's preparation ends in, with a pilot that needs no process."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from e2e.errors import E2EError, NoRoom
from e2e.processes import WorkerFault
from e2e.schema.evidence import Fault
from e2e.schema.words import ReasonCode, Stage
from e2e.stages.screen import _roofline, collected
from e2e.workers import CandidateFault
from tests.fakes import CANDIDATE, EAGER, policy

PREPARED = {"first_step_s": 0.1, "graph_breaks": False, "prepare_s": None, "regions": None, "kernel_calls": None}


class FullPilot:
    """Runs out of memory while it prepares some arms."""

    def __init__(self, *full: str, names: list[str]) -> None:
        self._full, self._names = full, list(names)

    def answer(self, do: str, *, timeout_s: float) -> dict[str, Any]:
        name = self._names.pop(0)
        if name in self._full:
            raise WorkerFault(f"CUDA out of memory in {name}", kind="raised", code="out_of_memory")
        return PREPARED


class BlamingCrew:
    """Blames the candidate for whatever it is told."""

    members: tuple[Any, ...] = ()

    def blame(self, fault: WorkerFault, *, stage: Stage, worker: object) -> CandidateFault:
        return CandidateFault(Fault(code=ReasonCode(str(fault.reason)), message=fault.message, stage=stage))


def course(*full: str, names: list[str]) -> Any:
    return SimpleNamespace(
        pilot=FullPilot(*full, names=names),
        crew=BlamingCrew(),
        policy=policy(),
        progress=SimpleNamespace(advance=lambda *_: None),
        evidence=SimpleNamespace(engagement=None),
        first_steps={},
        compiles=lambda arm: False,
        know_first_step=lambda *_, clean: None,
        learn=lambda **_: None,
        folder=Path(),
    )


def test_a_kernel_is_not_blamed_for_memory_that_the_model_lacks_without_it() -> None:
    names = [EAGER, CANDIDATE]
    with pytest.raises(NoRoom, match="as shipped and with the kernel"):
        collected(course(EAGER, CANDIDATE, names=names), {}, names)


def test_a_kernel_is_blamed_for_memory_that_only_it_lacks() -> None:
    names = [EAGER, CANDIDATE]
    with pytest.raises(CandidateFault, match="out of memory in candidate"):
        collected(course(CANDIDATE, names=names), {}, names)


# ---- The op's limits


class Clean:
    """A process without the candidate that answers at once, or not at all."""

    def __init__(self, answer: dict[str, Any] | E2EError) -> None:
        self._answer = answer

    def require(self, worker: Any, do: str, **fields: Any) -> dict[str, Any]:
        assert do == "roofline"
        if isinstance(self._answer, E2EError):
            raise self._answer
        return self._answer


def limits_of(answer: dict[str, Any] | E2EError, folder: Path) -> tuple[Any, list[str]]:
    crew = Clean(answer)
    crew.cell, crew.device = SimpleNamespace(dtype="float32"), "cpu"  # type: ignore[attr-defined]
    seen: list[str] = []
    course = SimpleNamespace(
        clean=object(),
        crew=crew,
        evidence=SimpleNamespace(device=None, unseen=seen),
        calls_path=lambda member: folder / "calls",
        learn=lambda unseen: seen.extend(unseen),
    )
    return _roofline(course, object(), 0), seen


def test_the_ops_limits_are_those_that_the_clean_process_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("E2E_CACHE_DIR", str(tmp_path))
    answer = {"bytes": 4096, "flops": None, "copy_bytes_per_s": 2e9, "matmul_flops_per_s": 3e9}
    found, unseen = limits_of(answer, tmp_path)
    assert (found.bytes, found.flops, found.copy_bytes_per_s) == (4096, None, 2e9)
    assert unseen == []


def test_limits_that_cannot_be_measured_cost_no_run(tmp_path: Path) -> None:
    found, unseen = limits_of(E2EError("out of memory"), tmp_path)
    assert found is None
    assert unseen == ["roofline: out of memory"]
