"""One call of `e2e validate`: as it was typed, and with everything it names read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from e2e.configuration import LoadedWorkload
from e2e.measure.devices import Device
from e2e.schema.kernel import Kernel
from e2e.schema.policy import Policy
from e2e.schema.words import Stage


@dataclass(frozen=True)
class Request:
    """One call of `e2e validate`."""

    workload: str
    kernels: tuple[str, ...]
    until: Stage = Stage.VERDICT
    op: str | None = None
    overrides: tuple[str, ...] = ()
    policy: str | None = None
    device: str = "auto"
    budget_s: float | None = None
    seed: int | None = None
    out: Path = Path("results")
    traces: bool = True
    command: tuple[str, ...] = ()


@dataclass(frozen=True)
class Loaded:
    """Everything the caller named, read and found to fit together."""

    request: Request
    workload: LoadedWorkload
    policy: Policy
    kernel: Kernel
    device: Device
    seed: int
    adopted: tuple[Kernel, ...] = ()
    """Kernels that the policy names as opponents."""
