"""Policy: what must hold for which outcome. Its own file; a workload may name one, never contain one."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from e2e.schema.record import Record
from e2e.schema.words import MODES, WAIVABLE, Mode, ReasonCode, Stage
from e2e.units import Ratio, Seconds


def _known_opponent(value: str) -> str:
    if value in ("best_pytorch", "as_shipped") or value.removeprefix("kernel:") not in ("", value):
        return value
    raise ValueError(f"must be 'best_pytorch', 'as_shipped' or 'kernel:SPEC', not {value!r}")


Opponent = Annotated[str, AfterValidator(_known_opponent)]
"""`best_pytorch`, `as_shipped`, or `kernel:SPEC` for a kernel that was adopted already."""
FEWEST_WORKERS = 5
"""Worker processes that any verdict needs. Source: METHOD.md B7 (TOO_FEW)."""
MOST_WORKERS = 200
"""Worker processes that a repeat may ask for: hours at a minute each; what needs more is beyond this machine."""


class Numerics(Record):
    """Correctness thresholds: errors are compared with the baseline's own error (METHOD.md B3)."""

    error_ratio: float = Field(2.0, gt=0)
    """err(candidate, reference) at most this times err(baseline, reference), plus a floor from the dtype.
    Source: torch._dynamo.utils.same and FlashAttention's tests both use 2."""
    lossy_kl_nats: float = Field(0.01, ge=0)
    """Of a kernel that declares a lossy precision: what it may add to KL(reference || model), per token; about what
    weights of five to six bits do. Assumed, not measured."""
    lossy_nll_nats: float = Field(0.01, ge=0)
    """The same for the negative log-likelihood of the true next tokens: the upper 97.5 % bound of the paired difference
    from the baseline's, 1 % of perplexity. The form is METHOD.md B3.6's; its 0.002 needs more tokens than a run has."""
    command_error: float | None = Field(None, gt=0)
    """Of a `task: command`: most relative root-mean-square difference between its outputs with the kernel and its own
    without, from one seed. None: what `command_error_of` says of the dtype."""
    training_steps: int = Field(32, ge=1)
    """Steps of the loss paths that a kernel for training is followed on. Source: Liger's convergence tests."""
    model_tokens: int = Field(4096, ge=1)
    """Teacher-forced tokens of the model-level comparison, at most."""
    capture_bytes: int = Field(256 * 2**20, ge=1)
    """Most bytes of captured op inputs kept for the op-level comparison."""
    reuse: bool = True
    """Whether the model-level comparison may have an earlier run's inputs, and then what the reference and the baseline
    made of them; a part of it is always computed again."""

    def command_error_of(self, dtype: str) -> float:
        """What is allowed where the policy states nothing. Assumed, not measured: some roundings through a model."""
        if self.command_error is not None:
            return self.command_error
        return 1e-3 if dtype == "float32" else 0.03 if dtype == "bfloat16" else 0.01


class Budgets(Record):
    """Limits of time and memory, all in SI units."""

    cell_s: float = Field(900.0, gt=0)
    """Whole run of one cell."""
    build_s: float = Field(120.0, gt=0)
    """One compiler run."""
    import_s: float = Field(180.0, gt=0)
    """A worker's start: imports, device, model."""
    call_s: float = Field(120.0, gt=0)
    """Anything a worker is asked that runs the candidate, beyond the time the baseline needs."""
    compile_s: float = Field(300.0, gt=0)
    """torch.compile of one arm."""
    host_bytes: int = Field(0, ge=0)
    """Most host memory a candidate's process may take beyond its start; 0 means half of what is free."""


class Memory(Record):
    """Rules for a memory outcome; they count when the policy's objective is memory."""

    margin: float = Field(0.01, gt=0, lt=1)
    """Smallest saving worth adopting, as a share of the baseline's peak."""
    processes: int = Field(3, ge=3)
    """Fresh processes per arm."""
    noninferiority: float = Field(0.01, gt=0, lt=1)
    """Most the step may be slower, as a share, for a saving to count."""


class Pins(Record):
    """What a run must be for its verdict to count under this policy; None asks for nothing."""

    workload_sha256: str | None = Field(None, pattern="^[0-9a-f]{64}$")
    """Hash of the workload file, as `result.json` has it under `environment`."""
    weights: Literal["pretrained", "random"] | None = None
    stage: Stage | None = None
    """The last stage that must have been asked for."""
    fresh_seed: bool = False
    """Refuses a seed that the caller chose, and model-level inputs that an earlier run had."""
    no_overrides: bool = False
    """Refuses `--set`."""

    devices: list[str] = []
    """Names of devices, as reports have them, on one of which it must have been made; none asks for nothing."""


class Limits(Record):
    """Bounds on what the objective does not ask for; None asks for nothing.

    Beyond one a kernel is REFUTED; where the quantity was not seen, INCONCLUSIVE.
    """

    build_s: Seconds | None = Field(None, gt=0)
    """Most for the kernel's build."""
    first_step_s: Seconds | None = Field(None, gt=0)
    """Most for the first step of the kernel's best arm, with all that is compiled in it."""
    coverage: Ratio | None = Field(None, gt=0, le=1)
    """Least share of the op's sites that run the kernel."""
    memory_ratio: Ratio | None = Field(None, gt=0)
    """Most peak memory over the strongest baseline's."""
    model_error_ratio: Ratio | None = Field(None, gt=0)
    """Most error of the model's outputs over the baseline's own."""
    kl: float | None = Field(None, gt=0)
    """Most mean KL divergence from the reference, nats per token."""
    top1: Ratio | None = Field(None, gt=0, le=1)
    """Least share of tokens whose most likely next token is the reference's."""
    op_spread: float | None = Field(None, ge=0)
    """Most that two calls of the op on the same input may differ, over the size of what they give; 0: the same bits."""
    split_spread: float | None = Field(None, ge=0)
    """Most that a row's answers may move when it comes alone instead of among others; 0: batch invariance."""


class Waiver(Record):
    """A reason that `gate` overlooks until a day, because somebody answers for it."""

    code: ReasonCode
    reason: str = Field(min_length=8)
    """Why, for whoever reads it later."""
    until: date
    """The last day on which it counts."""
    kernel: str | None = Field(None, pattern="^[0-9a-f]{64}$")
    """SHA-256 of the only kernel that it is for."""

    @field_validator("code")
    @classmethod
    def _can_be_waived(cls, value: ReasonCode) -> ReasonCode:
        if value not in WAIVABLE:
            raise ValueError(f"{value} cannot be waived, only {', '.join(WAIVABLE)}")
        return value


class Policy(Record):
    """What must hold for which outcome: opponents, margin, schedule, budgets."""

    name: str
    margin: float = Field(0.01, ge=0.001, lt=1)
    """Smallest gain worth adopting: CONFIRMED needs a speed-up above 1 + margin."""
    objective: Literal["latency", "memory"] = "latency"
    opponents: list[Opponent] = ["best_pytorch", "as_shipped"]
    decides: Opponent = Field("best_pytorch", validate_default=True)
    modes: list[Mode] = Field(list(MODES), min_length=1)
    """Modes of baseline and candidate arms; one that cannot run here is shown with its reason."""
    required_modes: list[Mode] = Field(default=[])
    """Baseline modes without which there is no verdict; any other that cannot run here is merely shown."""
    wins: Literal["any", "all"] = "any"
    """Cells of a sweep that must show a gain; none may lose more than the margin either way."""
    alternative_modes: list[Mode] = Field(default=list(MODES))
    """Modes in which the op's PyTorch alternatives compete; a compiler often makes them the same code anyway."""
    looks: list[int] = Field([5, 8, 12], min_length=1)
    """Worker processes at which the interval is looked at."""
    level: float = Field(0.9779, ge=0.8, lt=1)
    """Nominal two-sided confidence at each look. Source: Pocock's constant for three looks, 95 % overall."""
    blocks: int = Field(8, ge=4)
    """Mirrored blocks per worker, at least (METHOD.md, correction 3)."""
    warm_steps: int = Field(10, ge=1)
    """Steps of every arm in every worker before timing, at least."""
    warm_s: float = Field(1.0, ge=0)
    """Seconds of warm-up per arm, at least."""
    warm_most_s: float = Field(20.0, gt=0)
    """Seconds of warm-up per arm after which it is given up as not steady."""
    max_blocks: int = Field(60, ge=4, validate_default=True)
    """Mirrored blocks per worker, at most: noisy cells get more, as far as the budget allows."""
    segment_s: float = Field(0.25, gt=0)
    """Target length of one timed segment."""
    min_steps: int = Field(3, ge=1)
    """Steps in a segment, at least."""
    settle_steps: int = Field(1, ge=0)
    """Steps run after every switch of arm, fingerprinted but not counted."""
    ceiling_workers: int = Field(2, ge=2)
    """Workers that must time the headroom arm before the ceiling may decide."""
    ceiling_level: float = Field(default=0.99, gt=0.5, lt=1)
    """Two-sided confidence of each worker's ceiling: it may end a run early, so it errs on the side of going on.
    Source: METHOD.md B5.20."""
    ceiling_s: float = Field(default=16.0, ge=0)
    """Seconds per worker that blocks go on for while the ceiling is near the margin. Twelve blocks or more let the
    99 % interval of a median pass over one spike; with 8 every spike counts, and 4 s found 58 % of the ceilings of
    1.000 on a GPU's noise, where 16 s find 97 % (docs/calibration.md)."""
    audit_fraction: float = Field(0.05, gt=0, le=1)
    """Share of timed steps replayed in another process."""
    traces: bool = True
    sandbox: bool = True
    """Whether candidates live without a network and with read-only files, where the machine can do that."""
    memory: Memory = Memory()
    pins: Pins = Pins()
    limits: Limits = Limits()
    waivers: list[Waiver] = []
    """Heeded by `gate` only, and only those of the file that it is given."""
    numerics: Numerics = Numerics()
    budgets: Budgets = Budgets()

    # One validator per field, so that a mistake is reported on its line: a field that is wrong itself is absent in
    # `info.data`, and one left at its default has no line, so these messages name it.

    @field_validator("decides")
    @classmethod
    def _is_an_opponent(cls, value: str, info: ValidationInfo) -> str:
        if value not in info.data.get("opponents", [value]):
            raise ValueError(f"`decides` must be one of `opponents`, and {value!r} is not")
        return value

    @field_validator("modes", "alternative_modes")
    @classmethod
    def _are_e2es_own(cls, value: list[Mode]) -> list[Mode]:
        if Mode.COMMAND in value:
            raise ValueError(f"must be among {', '.join(MODES)}; `command` is how a program of your own runs")
        return value

    @field_validator("required_modes")
    @classmethod
    def _are_modes(cls, value: list[Mode], info: ValidationInfo) -> list[Mode]:
        left = [mode for mode in value if mode not in info.data.get("modes", value)]
        if left:
            raise ValueError(f"must be among `modes`, and {', '.join(left)} is not")
        return value

    @field_validator("looks")
    @classmethod
    def _rise(cls, value: list[int]) -> list[int]:
        if value != sorted(set(value)) or value[0] < FEWEST_WORKERS:
            raise ValueError(f"must rise, and a verdict needs at least {FEWEST_WORKERS} worker processes")
        return value

    @field_validator("max_blocks")
    @classmethod
    def _is_no_less_than_blocks(cls, value: int, info: ValidationInfo) -> int:
        if value < info.data.get("blocks", value):
            raise ValueError(f"`max_blocks` ({value}) is below `blocks` ({info.data['blocks']})")
        return value
