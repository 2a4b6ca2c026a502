"""Result: everything about one run, as stored in `results/<run-id>/result.json`.

History of the schema:
    e2e.result/1  first version.
"""

from __future__ import annotations

from typing import Any, Literal

from e2e.schema.evidence import Engagement, Evidence
from e2e.schema.kernel import Claim, Kernel
from e2e.schema.policy import Policy
from e2e.schema.record import Record
from e2e.schema.selftest import SelftestNote
from e2e.schema.verdict import Latency, MemoryVerdict, NumericsVerdict, Reason, Verdict
from e2e.schema.words import Label, Outcome, Stage
from e2e.schema.workload import Cell, Workload
from e2e.units import Ratio, Seconds

SCHEMA = "e2e.result/1"
METHOD = "1"
"""Version of measuring and deciding; a verdict of another version is stale."""


class SetUp(Record):
    """One-time costs."""

    build_s: Seconds | None = None
    first_step_s: Seconds | None = None
    """Candidate's best arm, compilation included."""
    warm_step_s: Seconds | None = None
    break_even_steps: int | None = None
    """Steps after which the candidate's extra one-time cost is repaid; None when it never is."""


class ClaimRecord(Record):
    """What the author says, what the op alone shows, what the workload shows."""

    claimed: Claim | None
    isolated: Ratio | None
    in_context: Ratio | None


class ErrorRecord(Record):
    """Why the run itself ended early (exit codes 2, 6, 70, 130)."""

    code: int
    message: str


class NextAction(Record):
    """What to do next."""

    kind: str
    why: str
    command: str | None = None
    seconds: Seconds | None = None


class Feedback(Record):
    """What a kernel author or agent needs to act."""

    fault: Literal["kernel", "environment", "e2e"] | None
    retryable: bool
    left_to_win: Ratio | None
    """Upper bound of the ceiling."""
    lost_to: list[str]
    next_actions: list[NextAction]


class CellResult(Record):
    """One cell: what was observed and what it means."""

    cell: Cell
    evidence: Evidence
    verdict: Verdict


class Result(Record):
    """Everything about one run. The top-level blocks repeat the deciding cell's."""

    schema_version: Literal["e2e.result/1"] = "e2e.result/1"
    run_id: str
    created: str
    """UTC, ISO 8601."""
    seconds: Seconds
    """Wall time of the run."""
    command: list[str]
    outcome: Outcome | None
    label: Label | None
    stage: Stage | None
    reasons: list[Reason]
    latency: Latency | None
    memory: MemoryVerdict | None
    numerics: NumericsVerdict | None
    engagement: Engagement | None
    set_up: SetUp
    claim: ClaimRecord | None
    cells: list[CellResult]
    kernels: list[Kernel]
    workload: Workload | None
    policy: Policy | None
    overrides: dict[str, Any]
    method: str = METHOD
    seed: int
    environment: dict[str, Any]
    unseen: list[str]
    feedback: Feedback | None
    error: ErrorRecord | None
    selftest: SelftestNote | None = None
    """The newest self-test of this machine; None where there was none."""
    samples_sha256: str | None = None
    """Of samples.csv, so that an edited file is noticed."""
    random_weights: bool = False
