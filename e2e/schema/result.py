"""Result: everything about one run, as stored in `results/<run-id>/result.json`.

History of the schema:
    e2e.result/1  first version.
"""

from __future__ import annotations

from typing import Any, Literal

from e2e.schema.evidence import Cause, Engagement, Evidence
from e2e.schema.kernel import Claim, Kernel
from e2e.schema.policy import Policy
from e2e.schema.record import Record
from e2e.schema.selftest import SelftestNote
from e2e.schema.verdict import Ablated, Estimate, Latency, MemoryVerdict, NumericsVerdict, Reason, Verdict
from e2e.schema.words import Label, Outcome, ReasonCode, Stage
from e2e.schema.workload import Cell, Workload
from e2e.units import Ratio, Seconds

Standing = Literal["wins", "loses", "neither", "unknown"]
AttributedTo = Cause | Literal["promised", "unplaced", "plumbing", "clocks", "unexplained"]
SCHEMA = "e2e.result/1"
METHOD = "2"
"""Version of measuring and deciding; evidence of another version is stale."""
OLDER_METHODS = ("1",)
"""Versions whose runs can still be read."""


class SetUp(Record):
    """One-time costs of the candidate's best arm beside the strongest baseline's; inputs are on the device before."""

    build_s: Seconds | None = None
    """Of this run; of a kernel found in the cache the look-up."""
    bind_s: Seconds | None = None
    """Loading the built kernel in a process, imports of a Python one included."""
    prepare_s: Seconds | None = None
    """Preparing the parameters of all sites; None where the kernel prepares nothing."""
    first_step_s: Seconds | None = None
    """With all that is compiled, tuned or captured in it; None where a compile cache may have held some of it."""
    warm_step_s: Seconds | None = None
    baseline_first_step_s: Seconds | None = None
    baseline_warm_step_s: Seconds | None = None
    break_even_steps: int | None = None
    """Steps after which the candidate's extra one-time cost is repaid; None when it never is, or is not known."""


class TimeUse(Record):
    """What the run's own time went into, up to its verdict."""

    to_verdict_s: Seconds
    """From the start of the cell; memory and traces come later."""
    irreducible_s: Seconds
    """Loading the model once, building, compiling, and the timed blocks themselves."""
    overhead_ratio: Ratio
    """The first over the second."""


class ClaimRecord(Record):
    """What the author says, what the op alone shows, what the workload shows."""

    claimed: Claim | None
    isolated: Ratio | None
    in_context: Ratio | None


class AttributionLine(Record):
    """One part of the change of the step with the kernel; below 0 it saves time."""

    what: str
    microseconds_per_step: float
    note: str = ""
    """How much of what, in words."""
    cause: AttributedTo | None = None
    """`promised`: what the op's times alone say. `unplaced`: of that, what sites without the kernel cannot give.
    `plumbing`: e2e's own work around each call. `clocks`: the device ran slower or faster in this arm's segments."""


class ErrorRecord(Record):
    """Why the run itself ended early."""

    code: Literal[2, 6, 70, 130]
    message: str

    @property
    def is_resumable(self) -> bool:
        """Whether the same may end otherwise another time: not the caller's mistake."""
        return self.code != 2


class Resumption(Record):
    """When a run that had been stopped was taken up again, and what was complete by then."""

    at: str
    """UTC, ISO 8601."""
    cell: int
    """The cell at which it went on, from 0."""
    stage: Stage | None
    """Last stage finished in that cell."""
    workers_finished: int
    """Verdict workers finished in that cell."""


class PreviousAttempt(Record):
    """The finished run of the same op on the same workload before this one."""

    run: str
    outcome: Outcome | None
    ratio: Ratio | None
    """Against the opponent that decides."""


class Attempts(Record):
    """Finished runs of one op on one workload, in one folder of results: of 200 kernels one is lucky."""

    number: int
    """This run's, from 1."""
    confirmed: int
    """CONFIRMED ones up to and with this one."""
    previous: PreviousAttempt | None = None


class NextAction(Record):
    """What to do next."""

    kind: str
    why: str
    command: str | None = None
    seconds: Seconds | None = None


class FailingCase(Record):
    """The first input of the op on which the kernel is wrong: enough to make it again."""

    kernel: str | None
    """As in `SiteRecord`."""
    site: str
    label: str
    """`captured` or `example`, else the name of the edge input."""
    shape: str
    stride: str
    dtype: str
    code: ReasonCode | None
    position: str | None
    """First wrong index, and how the wrong numbers lie: a tail, a row, a tile, everywhere."""
    error: float | None
    error_baseline: float | None
    allowed: float | None
    message: str


class LostTo(Record):
    """An arm that the kernel does not beat by the margin."""

    arm: str
    microseconds_per_step: float
    """What the step takes with the kernel beyond that arm's; below 0 it is faster, and not by enough."""


class Feedback(Record):
    """What a kernel author or agent needs to act."""

    fault: Literal["kernel", "environment", "e2e"] | None
    retryable: bool
    left_to_win: Ratio | None
    """Upper bound of the ceiling."""
    lost_to: list[str]
    lost_by: list[LostTo] = []
    """The same arms, in microseconds."""
    failing_case: FailingCase | None = None
    next_actions: list[NextAction]


class CellResult(Record):
    """One cell: what was observed and what it means."""

    cell: Cell
    evidence: Evidence
    verdict: Verdict


class Region(Record):
    """One cell of a sweep, and what the kernel does there."""

    batch: int
    sequence: int
    rows: int
    """Tokens that go through the model in one step."""
    outcome: Outcome | None
    """Of the cell by itself."""
    speedup: Estimate | None
    """Against the opponent that decides."""
    standing: Standing
    """`wins` at the level that so many cells ask for; `neither` needs a gain and a loss worth the margin ruled out."""


class Regions(Record):
    """Where a kernel wins, and the dispatch rule that follows."""

    cells: list[Region]
    rule: str | None
    """A comparison as in a kernel's `constraints`; None where no single threshold parts wins from the rest."""
    limits: str | None
    """Where the rule rests on nothing measured."""


class Mix(Record):
    """Of a sweep whose workload says how often it runs each cell: what the kernel is worth on all of them together."""

    speedup: Estimate | None = None
    """Against the opponent that decides; None while a cell that counts has no time. It decides nothing."""
    baseline_step_s: Seconds | None = None
    """Mean over the steps that the workload runs."""
    candidate_step_s: Seconds | None = None
    missing: list[str] = []
    """Cells that count and have no time."""


class Result(Record):
    """Everything about one run. The top-level blocks repeat the deciding cell's.

    Outcome, label and reasons are the sweep's where there are several cells.
    """

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
    time_use: TimeUse | None = None
    claim: ClaimRecord | None
    attribution: list[AttributionLine] = []
    """Of the change against the opponent that decides; sums to it. Empty where nothing measured alone explains it."""
    cells: list[CellResult]
    regions: Regions | None = None
    """Of a sweep; None for a single cell."""
    mix: Mix | None = None
    """None for a single cell, and where the workload does not say how often it runs which."""
    kernels: list[Kernel]
    ablation: list[Ablated] = []
    """Of several kernels: each alone, then all together; or which of them fail."""
    interaction: Estimate | None = None
    """Of several kernels: what they win together over the product of what each wins alone."""
    workload: Workload | None
    policy: Policy | None
    overrides: dict[str, Any]
    policy_overrides: dict[str, Any] = {}
    """What `policy` would say by itself, by dotted field, where the command line says otherwise; `name` where
    `--policy` chose another than the workload's own."""
    attempts: Attempts | None = None
    """None when they could not be counted, no verdict was asked for, or the run ended early."""
    repeats: str | None = None
    """Id of the INCONCLUSIVE run that this one repeats; the two are never merged."""
    again: str | None = None
    """Id of the run whose kernel, workload and policy this one measures in another environment."""
    resumed: list[Resumption] = []
    """When it was stopped and went on; what was half done was thrown away each time."""
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

    @property
    def is_command(self) -> bool:
        """Whether a program of the user's own ran the step."""
        return self.workload is not None and self.workload.is_command
