"""SelftestReport: what a machine can tell apart, and what slips through, as `e2e selftest` found it.

History of the schema:
    e2e.selftest/1  first version.
"""

from __future__ import annotations

from typing import Any, Literal

from e2e.schema.evidence import DeviceFacts, Telemetry
from e2e.schema.policy import Policy
from e2e.schema.record import Record
from e2e.schema.verdict import Estimate
from e2e.schema.words import Outcome, ReasonCode
from e2e.units import Ratio, Seconds


class Trial(Record):
    """One planted effect in one run: what was true, and what the judge made of it."""

    run: int
    planted: Ratio
    """Share of the step by which the candidate was made faster (above 0) or slower; 0 is identical code."""
    true_speedup: Ratio
    """From the step and the pause as the run's own workers measured them."""
    speedup: Estimate | None
    sham: Estimate | None
    outcome: Outcome | None
    codes: list[ReasonCode]
    """Every reason of the verdict, flags included."""

    @property
    def is_quiet(self) -> bool:
        """Whether the machine was ours: what a pause costs is not known where others take turns with it."""
        return ReasonCode.CONTENTION not in self.codes

    @property
    def is_covered(self) -> bool:
        """Whether the interval contains the truth."""
        return self.speedup is not None and self.speedup.lower_bound <= self.true_speedup <= self.speedup.upper_bound


class Effect(Record):
    """All trials of one planted effect."""

    planted: Ratio
    runs: int
    true_speedup: Ratio
    """Mean over runs."""
    mean_estimate: Ratio
    covered: int
    """Runs whose interval contains the truth."""
    quiet_runs: int
    """Runs during which no other process was seen to use the machine."""
    quiet_covered: int
    confirmed: int
    refuted: int
    inconclusive: int
    other: int
    """Any other outcome; identical code is neither wrong nor failing, so this should be 0."""


class FalseAlarm(Record):
    """A flag raised over identical code."""

    code: ReasonCode
    runs: int
    """Runs of identical code that raised it."""


class NoiseFloor(Record):
    """How far identical code differs from itself here."""

    block_sd: Ratio | None
    """Standard deviation of one mirrored block's contrast, within a process."""
    worker_sd: Ratio
    """Standard deviation of a process's median contrast, between processes."""
    half_width: Ratio
    """Of the interval that a first look gives, from `workers` processes."""
    workers: int
    seconds_per_worker: Seconds
    """What one process of a verdict would take: its start, and four of the self-test's arms."""


class Resolvable(Record):
    """The smallest true effect that so much time finds in nine runs of ten."""

    minutes: float
    workers: int
    effect: Ratio


class Catch(Record):
    """One planted kernel and what became of it."""

    op: str
    kernel: str
    kind: Literal["wrong", "honest"]
    stage: Literal["check", "timing"]
    """Where it is to be noticed: on captured inputs, or by its timed outputs."""
    outcome: Outcome | None
    """None: it passed."""
    codes: list[ReasonCode]

    @property
    def is_right(self) -> bool:
        """Wrong kernels must be caught, honest ones must pass."""
        is_caught = self.outcome in (Outcome.INCORRECT, Outcome.FAILED)
        return is_caught if self.kind == "wrong" else self.outcome is None


class SelftestReport(Record):
    """Everything about one self-test."""

    schema_version: Literal["e2e.selftest/1"] = "e2e.selftest/1"
    created: str
    """UTC, ISO 8601."""
    seconds: Seconds
    command: list[str]
    workload: str
    cell: str
    """The cell in words."""
    policy: Policy
    overrides: dict[str, Any]
    method: str
    seed: int
    device: DeviceFacts
    environment: dict[str, Any]
    step_s: Seconds | None
    """The workload's eager step."""
    runs_asked: int
    runs_done: int
    is_interrupted: bool
    identical: Effect | None
    """Identical code as the candidate; None when no run was finished."""
    effects: list[Effect]
    """Planted gains and losses."""
    trials: list[Trial]
    alarms: list[FalseAlarm]
    noise: NoiseFloor | None
    resolvable: list[Resolvable]
    catches: list[Catch]
    absent_ops: list[str]
    """Shipped ops that do not occur in this workload."""
    telemetry: list[Telemetry]
    """The machine during each run."""
    unseen: list[str]
    faults: list[str]
    """What must not happen and did: e2e is not to be trusted here. Empty is good."""
    doubts: list[str]
    """What could not be shown on this machine in this time."""


class SelftestNote(Record):
    """The newest self-test of a machine, as later results quote it."""

    created: str
    workload: str
    runs: int
    confirmed: int
    """Runs of identical code that were confirmed as a gain; should be 0."""
    half_width: Ratio
    workers: int
    smallest_effect: Ratio
    """Smallest effect that as many processes find in nine runs of ten."""
    wrong_caught: int
    wrong: int
    faults: int
