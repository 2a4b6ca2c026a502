"""Adoption: what a production process needs to run a kernel where a run confirmed it, and nowhere else."""

from __future__ import annotations

from typing import Any, Literal

from e2e.schema.kernel import Kernel
from e2e.schema.record import Record
from e2e.schema.words import Outcome
from e2e.schema.workload import Cell

FILE = "adoption.json"


class Adoption(Record):
    """`adoption.json`: beside it lie the kernel's sources."""

    schema_version: Literal["e2e.adoption/1"] = "e2e.adoption/1"
    run_id: str
    result_sha256: str
    """Of the run's result.json."""
    outcome: Outcome | None
    policy: str | None
    forced: str | None = None
    """Why it was written although the run is not CONFIRMED."""
    op: str
    op_sha256: str | None
    """Of the op's own file; None for one of e2e's."""
    kernel: Kernel | None
    """Its paths are relative to this folder; None where PyTorch's own path was adopted."""
    alternative: str | None
    """Name of PyTorch's own path."""
    mode: str | None
    """How the step was run where that was measured."""
    sites: list[str]
    calls: list[dict[str, int | str]]
    """Named dimensions and dtype of the calls that it was measured on; all others take the model's own code."""
    cells: list[Cell]
    device: str
    """`NVIDIA H200`; `CPU` stands for any."""
    environment: dict[str, Any]
    """The run's."""
    workload: str
    """As it was given to the run; the test opens it."""
    workload_sha256: str
    overrides: dict[str, Any]
