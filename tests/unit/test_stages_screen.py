"""Who is blamed for what an arm's preparation ends in, with a pilot that needs no process."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from e2e.errors import NoRoom
from e2e.processes import WorkerFault
from e2e.schema.evidence import Fault
from e2e.schema.words import ReasonCode, Stage
from e2e.stages.screen import collected
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
