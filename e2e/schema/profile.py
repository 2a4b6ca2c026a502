"""ProfileReport: where a workload's step goes, and the most that a kernel for each op could win.

History of the schema:
    e2e.profile/1  first version.
"""

from __future__ import annotations

from typing import Any, Literal

from e2e.schema.evidence import ArmRecord, DeviceFacts, ModelFacts, TraceRecord
from e2e.schema.policy import Policy
from e2e.schema.record import Record
from e2e.schema.result import ErrorRecord
from e2e.schema.verdict import Estimate
from e2e.schema.workload import Cell, Workload
from e2e.units import Bytes, Ratio, Seconds

SCHEMA = "e2e.profile/1"
Worth = Literal["yes", "maybe", "no"]
"""Whether a kernel can win the policy's margin: for certain, perhaps, or not."""


class TimeRow(Record):
    """One operator or device kernel, per step."""

    name: str
    calls: float
    seconds: Seconds
    """Of an operator its own time, without that of operators inside it: of the kernels that it launched where there are
    device events, else of the host."""
    share_ratio: Ratio | None
    """Of all rows of its kind."""


class ModuleRow(Record):
    """Modules of one name but for its numbers, per step."""

    name: str
    """`model.layers.*.mlp`."""
    owner: str
    """Class of the modules."""
    calls: float
    own_s: Seconds
    """Without what modules inside it took: of kernels where there are device events, else of the host."""
    total_s: Seconds
    share_ratio: Ratio | None
    """Of all modules' own time."""


class StepProfile(Record):
    """One way to run the whole step."""

    arm: str
    step_s: Seconds | None
    """Not profiled, by the parent's clock; None where it was not timed."""
    trace: TraceRecord | None
    """One profiled, untimed pass."""
    busy_s: Seconds | None
    """Time per step in which a device kernel ran; None without device events."""
    idle_ratio: Ratio | None
    """Share of the step, as timed, in which the device waited; None where either is unknown, never 0 for that."""
    operators: list[TimeRow]
    kernels: list[TimeRow] | None
    """None without device events: unknown, not none."""
    modules: list[ModuleRow]
    """Of the eager step; a compiled one has no modules. In training of its forward, and its optimizer."""
    phases: list[TimeRow] = []
    """Of a training step: forward and the rest, backward, optimizer; in inference none."""


class StepMemory(Record):
    """Memory of one eager step; None is what cannot be seen."""

    parameters_bytes: Bytes
    buffers_bytes: Bytes
    held_bytes: Bytes | None
    """Allocated by torch before the step: weights, buffers, inputs, caches."""
    peak_bytes: Bytes | None
    """Allocated by torch at the step's peak."""
    host_high_water_bytes: Bytes | None
    """Resident, of the whole process, imports included."""


class TensorForm(Record):
    """How one tensor of a call lies in memory."""

    shape: list[int]
    stride: list[int]
    dtype: str


class CallForm(Record):
    """Calls of one form, which take the same way through a kernel."""

    calls: int
    """Per step."""
    tensors: list[TensorForm | list[TensorForm] | None]
    """In the order of the op's names, a list where the op takes one; None where an optional one is absent."""
    scalars: list[Any]


class SiteGroup(Record):
    """Sites that cannot take a kernel, for one reason."""

    reason: str
    sites: list[str]


class Alternative(Record):
    """A PyTorch path that computes the op, put at all of its sites."""

    name: str
    arm: str
    speedup: Estimate | None
    """Of the whole step, against the same mode without it; None where it failed, or there was no time."""
    reason: str | None = None
    """Why there is none."""


class Capture(Record):
    """The op's own inputs on disk; see `e2e check --captures`."""

    path: str | None
    """Relative to the run's folder; None where nothing was stored."""
    calls: int
    bytes: Bytes
    reason: str | None = None
    """Why nothing was stored."""


class OpProfile(Record):
    """One op of the registry in this workload."""

    op: str
    status: Literal["measured", "not_measured", "incompatible", "not_looked_at"]
    reason: str | None = None
    """Why it is not `measured`, in words."""
    sites: int = 0
    """Sites that compute the op; a kernel can stand there."""
    not_sites: list[SiteGroup] = []
    """Where something like it happens that no kernel for the op can replace."""
    calls: int = 0
    """Calls per step, at those sites."""
    forms: list[CallForm] = []
    """Shapes, strides and dtypes seen, most frequent first."""
    stopwatch_ratio: Ratio | None = None
    """Share of an eager step by a stopwatch around every call: only orders what is measured."""
    share: Estimate | None = None
    """Share of the eager step: what is saved when the op's outputs are replayed instead of computed."""
    strongest: str | None = None
    """Fastest PyTorch arm of those tried for this op."""
    strongest_s: Seconds | None = None
    ceiling: Estimate | None = None
    """The strongest arm's time over that of the op replaced by nothing: no kernel for this op can win more."""
    ceiling_reason: str | None = None
    """Why there is none."""
    twice_as_fast_ratio: Ratio | None = None
    """Step ratio against the strongest arm if the op took half its time there."""
    worth: Worth | None = None
    alternatives: list[Alternative] = []
    capture: Capture | None = None
    arms: list[ArmRecord] = []


class ProfileReport(Record):
    """Everything about one profile."""

    schema_version: Literal["e2e.profile/1"] = "e2e.profile/1"
    run_id: str
    created: str
    """UTC, ISO 8601."""
    seconds: Seconds
    command: list[str]
    error: ErrorRecord | None
    """Why it ended early, with what was known by then."""
    workload: Workload
    cell: Cell
    cells: int
    """Cells of the workload; the first one is profiled."""
    overrides: dict[str, Any]
    policy: Policy
    random_weights: bool
    seed: int
    method: str
    device: DeviceFacts
    model: ModelFacts | None
    modes: list[ArmRecord]
    """The model as it is, in every mode tried."""
    strongest: str | None
    """Fastest of them."""
    steps: list[StepProfile]
    """As shipped, then in the strongest mode where that is another."""
    memory: StepMemory | None
    ops: list[OpProfile]
    """By what any kernel could win, largest first; what was not measured comes last."""
    absent: list[str]
    """Ops that do not occur in this step."""
    next: list[str]
    """Commands, most promising first."""
    environment: dict[str, Any]
    unseen: list[str]
