"""CheckReport: what `e2e check` found of a kernel by itself, without a workload.

History of the schema:
    e2e.check/1  first version.
"""

from __future__ import annotations

from typing import Any, Literal

from e2e.schema.evidence import DeviceFacts, MutantCheck, OpCheck, SanitizerRun, TrainingCheck
from e2e.schema.kernel import Kernel
from e2e.schema.record import Record
from e2e.schema.verdict import Reason
from e2e.schema.words import Outcome
from e2e.schema.workload import DType
from e2e.units import Seconds


class TorchCheck(Record):
    """The kernel as a registered op, by torch's own check of such ops; None where that finds nothing."""

    called: str | None
    """Of the call against the op's schema: inputs changed, outputs that share their memory."""
    faked: str | None
    """Of what a compiler is told about the outputs against what they are."""


class DtypeCheck(Record):
    """The kernel in one dtype."""

    dtype: DType
    outcome: Outcome | None
    """None: it passed."""
    reasons: list[Reason]
    inputs: list[OpCheck]
    """The op's example, or what a model gave it, then edge inputs."""
    mutants: list[MutantCheck]
    gradients: TrainingCheck | None
    """Of every tensor of the example; None where the kernel declares no `backward`, or does not take the example."""
    sanitizers: list[SanitizerRun] = []
    """Where the check was asked for them."""
    torch: TorchCheck | None
    """None where the kernel does not take the example, or works in place."""


class CheckReport(Record):
    """Everything about one check. Outcome and reasons are those of the worst dtype."""

    schema_version: Literal["e2e.check/1"] = "e2e.check/1"
    created: str
    """UTC, ISO 8601."""
    seconds: Seconds
    command: list[str]
    again: str
    """The command that checks the same kernel on the same inputs, in the dtype that failed where one did."""
    captures: str | None = None
    """File of the inputs, which some workload's step gave; None for the op's own examples."""
    outcome: Outcome | None
    """None: it passed in every dtype."""
    reasons: list[Reason]
    kernel: Kernel
    device: DeviceFacts | None
    """None where nothing was run."""
    seed: int
    error_ratio: float
    """Largest allowed error, as a multiple of PyTorch's own, less what rounding alone may add."""
    dtypes: list[DtypeCheck]
    """In the order of the manifest; none where the kernel did not build."""
    method: str
    environment: dict[str, Any]
    unseen: list[str]
