"""One call of `e2e validate`: as it was typed, and with everything it names read."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e import sizing
from e2e.configuration import DEFAULT_POLICY, LoadedWorkload, load_policy
from e2e.errors import UsageError
from e2e.measure.devices import Device
from e2e.sanitizers import Sanitizers
from e2e.schema.evidence import ExamRecord, Origin
from e2e.schema.kernel import Kernel
from e2e.schema.policy import Policy
from e2e.schema.result import Result
from e2e.schema.words import Stage
from e2e.schema.workload import Cell
from e2e.unfinished import Unfinished


@dataclass(frozen=True)
class Repeat:
    """A stored run to be made once more, in a size fixed beforehand."""

    run: Result
    workers: int


@dataclass(frozen=True)
class Again:
    """A stored run whose kernel, workload and policy are measured in today's environment."""

    run: Result
    folder: Path
    """Where it is stored, with its kernel's sources."""


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
    sanitize: bool = False
    repeat: Repeat | None = None
    again: Again | None = None
    resume: Unfinished | None = None
    """The run to go on with: this is the request that it was started with."""
    command: tuple[str, ...] = ()


@dataclass(frozen=True)
class Loaded:
    """Everything the caller named, read and found to fit together."""

    request: Request
    workload: LoadedWorkload
    policy: Policy
    kernels: tuple[Kernel, ...]
    """What is validated; several stand in the model together."""
    device: Device
    seed: int
    adopted: tuple[Kernel, ...] = ()
    """Kernels that the policy names as opponents."""
    policy_overrides: dict[str, Any] = field(default_factory=dict)
    """As in `Result`."""
    sanitizers: tuple[Sanitizers, ...] = ()
    """Of every kernel, where they were asked for."""

    @property
    def sitting(self) -> int:
        """How often the run was taken up again."""
        return 0 if self.request.resume is None else 1 + len(self.request.resume.result.resumed)

    def exam_before(self, cell: Cell) -> ExamRecord | None:
        """The exam that an earlier process of this run drew for that cell."""
        cells = self.request.resume.result.cells if self.request.resume is not None else []
        return next((known.evidence.exam for known in cells if known.cell == cell), None)

    @property
    def origin(self) -> Origin:
        """What a policy may pin."""
        return Origin(
            workload_sha256=self.workload.sha256,
            weights=self.workload.workload.model.weights,
            seed_chosen=self.request.seed is not None,
            overrides=list(self.workload.overrides),
        )


def policy_of(request: Request, workload: LoadedWorkload) -> tuple[Policy, dict[str, Any]]:
    """The policy to run under, and what it would say by itself where the command line says otherwise.

    A repeat has the stored run's, with one look at the number of workers asked for; a run made again has just that.

    Raises:
        UsageError: no such policy, fields that do not fit, or a run that stored none.
    """
    if request.repeat is not None:
        policy, own = _presized(request.repeat)
    elif request.again is not None:
        policy, own = _stored(request.again.run)
    else:
        policy = load_policy(request.policy, workload=workload)
        usual = workload.workload.policy or DEFAULT_POLICY
        own = {**_changeable(policy), **({} if request.policy in (None, usual) else {"name": usual})}
    if request.budget_s is not None:
        budgets = policy.budgets.model_copy(update={"cell_s": request.budget_s})
        policy = policy.model_copy(update={"budgets": budgets})
    now = _changeable(policy)
    return policy, {name: value for name, value in own.items() if now.get(name) != value}


def _presized(repeat: Repeat) -> tuple[Policy, dict[str, Any]]:
    """The stored run's policy in the new size, and what that policy's file says."""
    stored, own = _stored(repeat.run)
    sizes = [sizing.repeat_seconds(cell.evidence, stored, workers=repeat.workers) for cell in repeat.run.cells]
    policy = sizing.presized(stored, workers=repeat.workers, budget_s=max(sizes))
    return policy, own


def _stored(run: Result) -> tuple[Policy, dict[str, Any]]:
    """A stored run's policy, and what that policy's file says.

    Raises:
        UsageError: it stored none.
    """
    if run.policy is None:
        raise UsageError(f"run {run.run_id} stored no policy, so it cannot be repeated")
    return run.policy, {**_changeable(run.policy), **run.policy_overrides}


def _changeable(policy: Policy) -> dict[str, Any]:
    """What the command line can change of a policy."""
    return {"looks": policy.looks, "level": policy.level, "budgets.cell_s": policy.budgets.cell_s}
