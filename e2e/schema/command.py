"""What a program of the user's own hands back after a run (`task: command`): its file, and what is kept of it."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from e2e.schema.record import Record
from e2e.units import Ratio, Seconds

REPORT = "report.json"
"""Its name, in the folder that `E2E_OUT` names."""
MUTANT = "mutant"
"""`E2E_ARM` of the run in which the loader puts zeros in the place of the kernel's outputs."""
_Name = Annotated[str, Field(min_length=1, max_length=200)]


class Receipt(Record):
    """That the kernel ran, as the program says."""

    calls: int = Field(ge=0, le=2**62)
    """In the whole run."""
    token: str = Field(max_length=200)
    """SHA-256 of the run's nonce and of the hash of the built kernel: whoever knows it has read both."""


class CommandReport(Record):
    """`report.json`, as `e2e.external.report` writes it."""

    model_config = ConfigDict(strict=True, allow_inf_nan=True)

    metric: float = Field(gt=0, allow_inf_nan=False)
    """Seconds per step, or a rate, as the workload's `command.metric` says."""
    steps: int | None = Field(None, ge=1, le=2**53)
    """Steps that were timed; None where a rate counts something else."""
    outputs: dict[_Name, list[float] | str] = {}
    """Numbers, or a digest of what must not differ at all."""
    file: str | None = Field(None, max_length=200)
    """Further outputs: a safetensors file beside this one."""
    receipt: Receipt | None = None
    """None in a run without the kernel."""
    zeroed: bool = False
    """Whether the kernel's outputs were replaced by zeros, as `E2E_ARM=mutant` asks."""


class CommandRun(Record):
    """One process of the command; all but its wall time is what the program says."""

    arm: str
    worker: int | None = None
    """The mirrored group that it belongs to, from 0; None: the check before them."""
    position: int
    """Place in its group, from 0."""
    seed: int
    metric: float
    steps: int | None
    wall_s: Seconds
    """From its start to its end, by e2e's clock."""
    calls: int | None = None
    """Of the kernel; None in a run without it."""
    difference: Ratio | None = None
    """Of its outputs from those of the first run without the kernel that had this seed; None for that run, and where
    it is no number."""
