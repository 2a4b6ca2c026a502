"""Verdict: outcome and reasons; a pure function of Evidence and Policy."""

from __future__ import annotations

from e2e.schema.evidence import Where
from e2e.schema.policy import Opponent
from e2e.schema.record import Record
from e2e.schema.words import Label, Outcome, ReasonCode
from e2e.units import Bytes, Ratio, Seconds


class Estimate(Record):
    """A ratio with its interval; above 1 the candidate (or the arm named) is faster."""

    point_estimate: Ratio
    lower_bound: Ratio
    upper_bound: Ratio
    confidence_level: float
    look: int | None
    """Worker processes behind it."""


class Against(Record):
    """The best candidate arm against one opponent."""

    opponent: Opponent
    arm: str
    """The opponent's arm."""
    arm_step_s: Seconds
    candidate_step_s: Seconds
    speedup: Estimate
    outcome: Outcome


class Latency(Record):
    """The latency verdict and what it rests on."""

    outcome: Outcome | None
    against: list[Against]
    sham: Estimate | None
    """Identical code: the winning baseline's code through the same site swap."""
    ceiling: Estimate | None
    """The most any kernel for this op could win."""
    half_width: Ratio | None
    """Of the deciding interval; what this run could resolve."""
    detectable_ratio: Ratio | None = None
    """Smallest gain that as many workers, as spread as these, would find in nine runs of ten; 0.01 is one per cent."""
    blocks: int
    processes: int


class Ablated(Record):
    """Some of several kernels without the others, or all of them."""

    kernels: list[str]
    """Their specs."""
    against: list[Against] = []
    """As for the candidate; empty where the arm was not timed in enough workers."""
    code: ReasonCode | None = None
    """Where all of them fail together: why these do; None if they pass."""


class MemoryUse(Record):
    """One arm alone in a process: each figure's median over the processes; None where it cannot be seen."""

    processes: int
    peak_allocated_bytes: Bytes | None = None
    """By torch, weights included."""
    peak_reserved_bytes: Bytes | None = None
    device_used_delta_bytes: Bytes | None = None
    """What the arm took from the device and still held after its last step, whoever asked for it."""
    host_high_water_bytes: Bytes | None = None
    pinned_bytes: Bytes | None = None
    growth_bytes: Bytes | None = None


class MemoryVerdict(Record):
    """Memory of the strongest baseline and the best candidate arm."""

    outcome: Outcome | None
    """Of the figures alone; None unless the policy's objective is memory."""
    baseline: MemoryUse | None
    candidate: MemoryUse | None
    reduction_ratio: Ratio | None
    """The candidate's saving as a share of the baseline's peak, by the source that shows the least of it."""
    range_ratio: Ratio | None
    """Range over that source's processes, the wider of both arms', as the same share; None with one process."""
    measure: str
    """The source of the two ratios, or what is in the way of them."""


class NumericsVerdict(Record):
    """Drift beside the baseline's own."""

    outcome: Outcome | None
    op_checks: int
    worst_op_ratio: Ratio | None
    """Largest err(candidate) / err(baseline) over captured inputs."""
    model_ratio: Ratio | None
    """err(candidate) / err(baseline) of the model's outputs."""
    depth_slope: float | None = None
    """How often err(candidate) / err(baseline) doubles from the first layer to the last, by a straight line through
    all of them; below 0 it falls. None with fewer than three layers."""
    depth_jump: str | None = None
    """The layer behind which that ratio is more than twice what it was before it; None where there is none."""
    mutants_caught: int
    mutants: int


class Reason(Record):
    """One reason; the first is the headline."""

    code: ReasonCode
    message: str
    where: Where = Where()


class Verdict(Record):
    """What the evidence means under the policy."""

    outcome: Outcome | None
    """None: an earlier stage was asked for and passed."""
    label: Label | None
    reasons: list[Reason]
    latency: Latency
    memory: MemoryVerdict
    numerics: NumericsVerdict
    ablation: list[Ablated] = []
    """Of several kernels: each alone, then all together; or which of them fail."""
    interaction: Estimate | None = None
    """Of several kernels: what they win together over the product of what each wins alone, against the opponent that
    decides."""
