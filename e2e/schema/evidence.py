"""Evidence: what was observed, without opinion. `judge` reads nothing else."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from e2e.schema.command import CommandRun
from e2e.schema.precision import Precision
from e2e.schema.record import Record
from e2e.schema.words import Mode, ReasonCode, Role, Stage, Trust
from e2e.units import Bytes, Ratio, Seconds


class Where(Record):
    """Where something went wrong; absent parts are None."""

    file: str | None = None
    line: int | None = None
    site: str | None = None
    shape: str | None = None
    dtype: str | None = None
    parameter: str | None = None
    position: str | None = None


class Fault(Record):
    """Something that ended a part of the run."""

    code: ReasonCode
    message: str
    stage: Stage
    where: Where = Where()


class SanitizerFinding(Record):
    """One thing that a sanitizer saw in the kernel's own code."""

    file: str
    line: int
    message: str


class SanitizerRun(Record):
    """One sanitizer over a kernel's calls, in a process of its own."""

    tool: str
    """`asan+ubsan` of C++ on a CPU, or one of compute-sanitizer's tools."""
    version: str
    """Of the compiler that built it in, or of the tool."""
    kernel: str | None = None
    """Spec of the kernel, where several run together."""
    dtype: str
    calls: int
    """Inputs that the kernel took; by the word of the process that ran it."""
    declined: int
    """Inputs that it refused, by a constraint or aloud."""
    finished: bool
    """Whether it got through all of them."""
    findings: list[SanitizerFinding] = []


class BuildRecord(Record):
    """One kernel's build."""

    kernel: str
    """sha256 of the kernel."""
    seconds: Seconds
    cached: bool
    compiler: str | None = None
    """Its name and version; None where nothing was compiled."""
    command: str | None = None
    log: str = ""
    """What the compiler said, at most a few kilobytes."""
    resources: list[str] = []
    """Registers, spills and shared memory, as the compiler reports them."""


class SiteRecord(Record):
    """One place where the op happens in this model."""

    fqn: str
    owner: str
    """Class of the module that owns the site."""
    status: Literal["patched", "declined", "incompatible"]
    reason: str | None = None
    """Why it was not patched, in words."""
    unchecked: str | None = None
    """Why its outputs alone could not be compared, in words: only the model's say whether it is right."""
    dims: dict[str, int | str] = {}
    calls: int = 0
    """Calls of the kernel in one untimed step."""
    kernel: str | None = None
    """Which kernel, by its spec; None where the run has one only."""


class Engagement(Record):
    """Proof that the kernel ran where it should."""

    sites_found: int
    sites_patched: int
    sites_called: int
    calls: int
    """Calls of the kernel in one step."""
    coverage: Ratio | None
    """Share of the op's sites that run the kernel."""
    sites: list[SiteRecord]
    watermark_moved: bool | None = None
    """Whether replacing the kernel's output by a constant moved the model's output; of several kernels every one's."""
    unmoved: list[str] = []
    """Of several kernels those, by their specs, in whose place a constant moved nothing."""
    device_kernels: list[str] = []
    """Device kernels (or operators) present in the candidate's trace and absent from the baseline's."""
    proof: str = ""
    """How engagement was proven, in words."""


def engagement_at(sites: list[SiteRecord], *, proof: str = "", moved: bool | None = None) -> Engagement:
    """What those sites come to."""
    called = [site for site in sites if site.calls]
    return Engagement(
        sites_found=len(sites),
        sites_patched=sum(site.status == "patched" for site in sites),
        sites_called=len(called),
        calls=sum(site.calls for site in sites),
        coverage=len(called) / len(sites) if sites else None,
        sites=sites,
        watermark_moved=moved,
        proof=proof,
    )


NOT_CALLED = "it is not called in this step"
"""Why a site that a module declares is none."""
CAPTURED, EXAMPLE = "captured", "example"
UNUSUAL = ("a NaN", "an infinity", "numbers below the least normal one")
"""Labels of inputs that ask how the op passes on what is hardly a number."""
TYPICAL = (CAPTURED, EXAMPLE)
"""Labels of inputs that a kernel must take: a model's own, and the op's example where there is no model."""


class OpCheck(Record):
    """The kernel against the reference on one input."""

    site: str
    label: str
    """`captured` or `example`, else the name of the edge input."""
    shape: str
    stride: str
    dtype: str
    status: Literal["passed", "wrong", "lossy", "declined", "raised"]
    """`lossy`: beyond what the op rule allows, by a kernel that declares it."""
    error_candidate: float | None
    """Relative root-mean-square error against the reference."""
    error_baseline: float | None
    worst_row_candidate: float | None = None
    worst_row_baseline: float | None = None
    worst_tile_candidate: float | None = None
    """Of 64 rows and columns; smaller ones count as if they were as large as the others."""
    worst_tile_baseline: float | None = None
    allowed: float | None = None
    """Largest error that would have passed."""
    code: ReasonCode | None = None
    message: str = ""
    repeats: bool | None = None
    """Whether two calls gave the same bits."""
    spread: float | None = None
    """Relative distance of the two, where they did not; None too where it cannot be told."""
    position: str | None = None
    """Of a wrong output, where it is wrong first, and how the wrong numbers lie."""
    kernel: str | None = None
    """As in `SiteRecord`."""


class MutantCheck(Record):
    """A wrong kernel made on purpose, put through the same check."""

    name: str
    caught: bool
    kernel: str | None = None
    """For the op of which kernel; as in `SiteRecord`."""


class Answer(Record):
    """What the model check compares."""

    what: str = "logits"
    per: str = "token"
    """Of what there is one answer each: `token`, `image`."""
    is_distribution: bool = True
    """Whether an answer is a row of logits: then KL and the most likely class are compared too."""
    has_labels: bool = True
    """Whether it is known what should have been answered, as of a text its next tokens are."""
    width: int | None = None
    """Numbers in an answer."""
    tokens: int = 1
    """Tokens of the model that one answer costs: an image's patches."""


class ModelFacts(Record):
    """The model and the data that the workload's words led to."""

    model_class: str
    parameters: int
    dtypes: dict[str, int]
    """Elements of what the model stores, by dtype; packed ones of a quantised checkpoint among them."""
    quantization: str | None = None
    """How its checkpoint packs weights, as it says itself; None: it does not."""
    attention_asked: str | None = None
    attention: str | None = None
    """The implementation that the model says it uses."""
    layers: int | None = None
    hidden: int | None = None
    vocabulary: int | None = None
    data: str
    """What the inputs are, in words."""
    is_synthetic: bool = False
    """Inputs were drawn, not read."""
    drawn: list[str] = []
    """Weights that the checkpoint lacks, and that were therefore drawn."""
    uncompiled: list[str] = []
    """Modules that the factory had compiled, and that arms compile in modes of their own instead; the model as a whole
    has no name."""
    code_sha256: str | None = None
    """Hash of code that came with the model (`trust_remote_code`)."""


class Generation(Record):
    """What a user of the model waits for, with one arm; measured in the pilot, by that process's own clock."""

    arm: str
    first_token_s: Seconds
    """From the prompt to the first token of every row."""
    step_s: Seconds
    """All tokens of every row."""
    tokens: int
    """Per row."""
    rows: int

    @property
    def per_token_s(self) -> Seconds | None:
        """Between one token of a row and the next; None where there is only one."""
        return (self.step_s - self.first_token_s) / (self.tokens - 1) if self.tokens > 1 else None

    @property
    def tokens_per_s(self) -> float:
        """Of all rows."""
        return self.rows * self.tokens / self.step_s


class LayerError(Record):
    """Hidden states as one layer leaves them, against one precision higher."""

    layer: str
    """Its module's name."""
    error_candidate: float | None
    """Relative root-mean-square error; None where it is not finite, or of another shape than the baseline's."""
    error_baseline: float


class LegalChange(Record):
    """The baseline, changed in a way that nobody could call wrong."""

    name: str
    error: float
    """Relative root-mean-square error of the answers."""
    apart: float
    """Distance from the baseline as it is, relative to the reference's size; 0 where every bit is the same."""
    kl: float | None = None
    top1: Ratio | None = None


class Envelope(Record):
    """What legal changes do to this model's answers; within it nothing is drift."""

    answers: int
    """Compared for it, fewer than for the candidate."""
    error_baseline: float
    """Of the baseline as it is, over those."""
    changes: list[LegalChange]


class Fed(Record):
    """Batches made from raw data, while they are needed; measured in the pilot, by that process's own clock."""

    arm: str | None
    """Which takes a step with each of them; None: they are only made."""
    batch_s: Seconds
    """Per batch, and step: the quicker of two times, since whatever else runs beside the pipeline only adds."""
    spread_ratio: Ratio
    """How much longer the other one took."""


class OtherChoices(Record):
    """Answers whose most likely class is another one than the baseline's: where text chosen by it would part ways."""

    count: int
    first: int | None = None
    """Number of the first of them, from 0."""
    first_margin: float | None = None
    """By how many nats the baseline prefers its own choice there: little, where rounding decides."""
    widest_margin: float | None = None
    """The same where it is most sure."""


class ConditionCheck(Record):
    """The model's outputs on calls unlike the step's own, against one precision higher."""

    name: str
    tokens: int
    error_candidate: float | None = None
    error_baseline: float
    allowed: float
    status: Literal["passed", "wrong", "declined"]
    """Declined: the kernel refused these calls aloud."""
    code: ReasonCode | None = None
    first: list[int] | None = None
    """Row and place of the first answer that is wrong."""


class ModelCheck(Record):
    """The model's outputs with the kernel, against one precision higher."""

    reference: str
    """Precision of the reference."""
    answer: Answer = Answer()
    tokens: int
    """Answers that were compared, one per token or image."""
    error_candidate: float | None
    """Relative root-mean-square error of the answers."""
    error_baseline: float | None
    allowed: float | None
    kl_candidate: float | None
    """Mean KL(reference || candidate), nats per answer; None where an answer is no distribution."""
    kl_baseline: float | None
    kl_tail_candidate: float | None = None
    """The 99.9th percentile over answers of what `kl_candidate` is the mean of."""
    kl_tail_baseline: float | None = None
    top1_candidate: Ratio | None
    """Share of answers whose most likely class (next token) is the reference's."""
    top1_baseline: Ratio | None
    nll_difference: float | None = None
    """Of the true next tokens: negative log-likelihood less the baseline's, nats per token."""
    nll_lower: float | None = None
    """Lower 97.5 % bound of it."""
    nll_upper: float | None = None
    """Upper 97.5 % bound of it."""
    depth: list[LayerError] = []
    """Layer by layer, in the order in which they run; empty where the model has no row of like layers."""
    other_choices: OtherChoices | None = None
    """Shown, and never decides: near ties fall either way. None where an answer is no distribution."""
    conditions: list[ConditionCheck] = []
    """Empty where the task knows of none, or PyTorch itself refuses them."""
    envelope: Envelope | None = None
    """None in runs that did not measure it."""
    split_candidate: float | None = None
    """How far the first row's answers move when it comes alone instead of among others, or the other way round;
    relative to the reference's size, 0 where every bit is the same."""
    split_baseline: float | None = None
    precision: Precision | None = None
    """The lossy precision that the kernel declares: then the policy's budget decides, not `allowed`."""
    status: Literal["passed", "wrong"]
    code: ReasonCode | None = None
    kernel_calls: int | None = None
    """Calls of the kernel in it; 0 when its constraints exclude them all, and then the check says nothing. Of several
    kernels the fewest of any."""
    mutates: list[str] = []
    """Tensors that the kernel declares to write to."""


class SubsetCheck(Record):
    """Some of the kernels without the others, put through the check that all of them failed together."""

    kernels: list[str]
    """Their specs."""
    code: ReasonCode | None
    """Why they fail as well; None: they pass."""
    message: str = ""


class ExamRecord(Record):
    """Inputs of the model-level check, and which answers to them an earlier run knew."""

    seed: int
    """Draws them; and the weights where they are random, and a decode step's context."""
    run: int = 1
    """Of the runs that share the seed, which one this is, from 1."""
    kept: list[str] = []
    """Answers of reference and baseline (`logits`, `steps`) that were an earlier run's, and what changes do to the
    baseline's (`envelope`)."""
    rows: int = 0
    """Rows of text in them."""
    rows_again: int = 0
    """How many of those this run's clean process computed again; they came out the same, bit for bit."""
    rejected: list[str] = []
    """Answers of an earlier run of which a part did not come out the same again: thrown away, and computed afresh."""


class LossPath(Record):
    """Losses of consecutive steps with the candidate, beside the baseline's on the same data."""

    optimizer: str
    steps: int
    loss_first: float
    """The baseline's own."""
    loss_last: float
    losses: list[float] = []
    """The baseline's own, step by step; empty in runs that did not record them."""
    losses_candidate: list[float | None] = []
    """None where one is not finite."""
    envelope: float
    """Largest distance of a baseline's path that only rounds otherwise."""
    allowed: float
    apart: float | None = None
    """Largest distance of the candidate's; None where its losses are not finite."""
    bias: float | None = None
    """How far it lies above the baseline's on average at the end."""
    bias_allowed: float
    code: ReasonCode | None = None


class TrainingCheck(Record):
    """One training step, arm against arm."""

    parameters: int
    with_gradient_baseline: int
    with_gradient_candidate: int
    missing: list[str]
    """Parameters that lost their gradient."""
    worst_parameter: str | None = None
    worst_error_candidate: float | None = None
    worst_error_baseline: float | None = None
    loss_baseline: float | None = None
    loss_candidate: float | None = None
    paths: list[LossPath] = []
    error_baseline: float | None = None
    """Relative error of what the eager baseline's steps leave as fingerprints; None where none was to be timed."""
    status: Literal["passed", "wrong"]
    code: ReasonCode | None = None


class ArmRecord(Record):
    """One way to run the step, tried in the pilot."""

    name: str
    role: Role
    mode: Mode
    alternative: str | None = None
    """Name of the PyTorch alternative put at the sites, if any."""
    status: Literal["ok", "failed", "void", "skipped", "left_out"]
    """Left out: an earlier run's pilot on the same workload found its mode far behind."""
    reason: str | None = None
    """Why it failed, is void (ran eagerly while called compiled), was skipped or left out."""
    first_step_s: Seconds | None = None
    """First step of the first process that ran the arm, with all that it compiles; None where a compile cache may
    have held some of that from before."""
    step_s: Seconds | None = None
    """Median pilot step; chooses the mode, and is never part of an interval."""
    compiled_regions: int | None = None
    """Compiled regions entered in one step; None for eager arms."""
    kernel_calls: int | None = None
    """Nodes (compiled) or calls (eager) of the kernel in one step."""


class Segment(Record):
    """Consecutive timed steps of one arm, stamped by the parent around whole device syncs."""

    phase: Literal["pilot", "ceiling", "verdict"]
    worker: int
    block: int
    position: int
    """Place in its block, from 0."""
    arm: str
    steps: int
    seconds: Seconds
    seed: int
    """Seed of the inputs."""
    clock_hz: float | None = None
    """Mean clock of the device's processors while it ran; None where it cannot be seen."""
    throttled: bool | None = None
    """Whether the device slowed itself down meanwhile, for heat or for want of power beyond its normal cap."""
    device_s: Seconds | None = None
    """The same steps by the device's own clock, as the worker says; None on a CPU."""


class MemoryRecord(Record):
    """Memory of one arm, alone in a process of its own."""

    arm: str
    process: int = 0
    """Number of the process, from 0; every one is fresh and holds this arm alone."""
    peak_allocated_bytes: Bytes | None = None
    peak_reserved_bytes: Bytes | None = None
    device_used_delta_bytes: Bytes | None = None
    host_high_water_bytes: Bytes | None = None
    pinned_bytes: Bytes | None = None
    """Most page-locked host memory held by torch."""
    growth_bytes: Bytes | None = None
    """How much more was in use after the last step than after the first."""
    steps: int | None = None
    first_step_s: Seconds | None = None
    """First step of this process, which ran no other arm before it; compile caches are warm by then."""


class Steadiness(Record):
    """One worker's warm-up: until nothing is compiled, captured or taken from the driver, and times have settled."""

    worker: int
    arm: str
    steps: int
    seconds: Seconds
    is_steady: bool
    change_ratio: Ratio | None
    """Relative change of the median step between the last two windows."""


class Allocations(Record):
    """Takes from and returns to the driver, by torch's allocator, in an arm's timed segments."""

    arm: str
    count: int


Part = Literal[
    "build",
    "load",
    "check",
    "compile",
    "start",
    "prepare",
    "warm-up",
    "timed",
    "audit",
    "afterwards",
    "other",
]
"""`load`: the first process's imports and model. `compile`: waiting for the pilot's arms. `start`, `prepare`: the
same again in verdict workers. `timed`: blocks, settle steps included. `afterwards`: memory and traces."""


class Spent(Record):
    """Where the run's own time went."""

    part: Part
    seconds: Seconds


class StageEnd(Record):
    """When a stage was finished."""

    stage: Stage
    seconds: Seconds
    """Since the cell began."""


class Audit(Record):
    """Timed steps replayed in another process; their fingerprints compared."""

    steps_timed: int
    steps_committed: int
    """Timed steps that committed a fingerprint of their outputs."""
    steps_audited: int
    mismatches: list[str]
    """`arm: n of m`, for arms whose replay did not match."""
    steps_compared: int = 0
    """Timed candidate steps whose outputs were compared with the baseline's on the same input."""
    disagreements: list[str] = []
    """`arm: n of m`, for arms whose timed outputs are further from the baseline's than rounding explains."""
    baseline_repeats: bool | None
    """Whether the baseline repeats itself bit for bit in another process."""
    spread_ratio: Ratio | None = None
    """Largest relative distance between two runs of one baseline step, where it does not repeat itself; arms may
    then differ as much, and a mismatch is what differs more."""


class Roofline(Record):
    """What one call of the op needs at least, and what this device does in a second, measured."""

    bytes: Bytes
    """Of its tensors, each read or written once."""
    flops: float | None
    """Of its matrix products; None where they could not be counted."""
    copy_bytes_per_s: float
    """Of a large copy, read and written; the best that any run on this device saw."""
    matmul_flops_per_s: float
    """Of a large product in the cell's dtype; likewise."""

    @property
    def least_s(self) -> Seconds:
        """No call can take less, unless its tensors are in a cache."""
        return max(self.bytes / self.copy_bytes_per_s, (self.flops or 0.0) / self.matmul_flops_per_s)


class Isolated(Record):
    """The op alone, at this workload's shapes, warm where nothing else is said; for explanation only."""

    shape: str
    calls_per_step: int
    eager_s: Seconds
    """The model's own module."""
    alternative: str | None
    alternative_s: Seconds | None
    candidate_s: Seconds
    kernel: str | None = None
    """As in `SiteRecord`."""
    plumbing_s: Seconds | None = None
    """Host time per call that e2e puts between a module and the kernel, in eager inference; none in a CUDA graph."""
    eager_cold_s: Seconds | None = None
    """One call, by itself, after other work has filled the caches; likewise the next two."""
    alternative_cold_s: Seconds | None = None
    candidate_cold_s: Seconds | None = None
    roofline: Roofline | None = None


class KernelTime(Record):
    """One row of the profiler's kernel table, summed over the profiled steps."""

    name: str
    calls: int
    """Per step."""
    baseline_s: Seconds | None
    candidate_s: Seconds | None


class TraceRecord(Record):
    """One untimed, profiled pass of one arm."""

    arm: str
    path: str
    """Relative to the run folder."""
    events: int
    device_events: int
    steps: int
    memory_bytes: list[Bytes] = []
    """Allocated by torch beyond what was there when the first profiled step began: the most in each of as many equal
    slices of it, on the device where there is one; empty where the trace shows no allocation."""


Cause = Literal[
    "op",
    "neighbours",
    "calls",
    "copies",
    "fusion",
    "algorithm",
    "overlap",
    "syncs",
    "allocator",
    "host_per_call",
    "idle",
    "host",
]
"""`op`: the op's own kernels, or its calls on a CPU. `neighbours`: what both arms run as often, longer or shorter.
`calls`: what both run, more or less often. `copies`: copies and casts, more or fewer. `fusion`: what a compiler made
for one arm only. `algorithm`: other kernels or operators that one arm runs only. `overlap`: what ran beside other work
on the device. `syncs`, `allocator`, `host_per_call`, `idle`: the device ran nothing, while the host came back from a
wait for it, was in the driver's allocator, in a call of the op, or elsewhere. `host`: on a CPU, outside operators."""


class TraceChange(Record):
    """One part of what the candidate's profiled step takes beyond another arm's."""

    cause: Cause
    seconds: Seconds
    """Per step; below 0 it saves time."""
    note: str = ""
    """How much of what, in words."""


class TraceDifference(Record):
    """The candidate's profiled step beside another arm's; the changes add up to what parts the two."""

    arm: str
    """The other arm."""
    step_s: Seconds
    """Its profiled step: longer than one that is timed."""
    candidate_step_s: Seconds
    spread_s: Seconds = 0.0
    """What the profiled steps of one arm differ by, the wider of both: changes of less may be chance."""
    idle_ratio: Ratio | None = None
    """Share of its step in which the device ran nothing; None without device events."""
    candidate_idle_ratio: Ratio | None = None
    op_s: Seconds | None = None
    """Per step in the op at its sites; None where the trace does not show which part that is."""
    candidate_op_s: Seconds | None = None
    changes: list[TraceChange] = []


class CleanTime(Record):
    """A baseline's step in a process that never held the candidate."""

    arm: str
    step_s: Annotated[Seconds, Field(gt=0)]
    worker: int | None = None
    """The worker after whose blocks it was timed; None: after all of them, beside the losers of the tournament."""


class DeviceFacts(Record):
    """Where the run happened."""

    kind: Literal["cpu", "cuda"]
    name: str
    count_threads: int
    total_memory_bytes: Bytes | None = None
    busy_ratio: Ratio | None = None
    """Device-busy share of the best baseline's step, from its trace; None where it cannot be seen."""


class Origin(Record):
    """What was asked to run, as far as a policy can pin it."""

    workload_sha256: str
    """Of the workload file, before overrides."""
    weights: Literal["pretrained", "random"]
    seed_chosen: bool
    """Whether the caller chose the seed."""
    overrides: list[str] = []
    """Dotted fields that `--set` laid over the workload."""


class Telemetry(Record):
    """The machine during timing; None where it cannot be seen."""

    cpu_pressure_ratio: Ratio | None = None
    steal_ratio: Ratio | None = None
    sm_clock_min_hz: float | None = None
    sm_clock_max_hz: float | None = None
    power_max_w: float | None = None
    temperature_max_c: float | None = None
    throttle_reasons: list[str] = []
    foreign_processes: int | None = None
    """Most other processes seen on the device at once; the run's own workers are not counted."""
    samples: int = 0
    """Readings of the device, ten a second."""
    changed: list[str] = []
    """Settings of the machine that were not the same at the end: `power limit 700 W -> 500 W`."""


class Evidence(Record):
    """Everything observed for one cell. Parts that were not reached are None or empty."""

    origin: Origin | None = None
    """None in runs that did not record it."""
    stage_asked: Stage
    stage_finished: Stage | None
    """Last stage whose work was completed; None when even the build was not."""
    device: DeviceFacts | None = None
    builds: list[BuildRecord] = []
    kernels: list[str] = []
    """Specs of the kernels that run together, in their order; empty where there is one only."""
    bind_s: Seconds | None = None
    """Loading and binding what was built, in the first process that did, by the parent's clock."""
    prepare_s: Seconds | None = None
    """What the kernel's `prepare` took, over all sites, in the pilot; None where it prepares nothing."""
    engagement: Engagement | None = None
    op_checks: list[OpCheck] = []
    failing_inputs: list[str] = []
    """Files of inputs on which a kernel was wrong, or died, relative to the run folder; see `e2e check --captures`."""
    mutants: list[MutantCheck] = []
    sanitizers: list[SanitizerRun] = []
    """Where the run was asked for them."""
    guard: list[str] = []
    """What kernelguard's rules match in the kernels' sources, where that package is installed."""
    model_check: ModelCheck | None = None
    subsets: list[SubsetCheck] = []
    """Of several kernels that are wrong together: which of them are wrong by themselves."""
    exam: ExamRecord | None = None
    """None in runs of before it was recorded: their exam had the run's own seed."""
    training: TrainingCheck | None = None
    arms: list[ArmRecord] = []
    baseline: str | None = None
    """Strongest baseline arm, chosen from pilots."""
    candidate: str | None = None
    """Best candidate arm, chosen from pilots."""
    adopted: dict[str, str] = {}
    """Fastest arm of every opponent that is a kernel adopted earlier, chosen from pilots; by opponent."""
    isolated: Isolated | None = None
    isolated_others: list[Isolated] = []
    """Of several kernels those after the first."""
    generations: list[Generation] = []
    """Of the strongest baseline and of the best candidate arm, where the step generates."""
    fed: list[Fed] = []
    """With `include: [data]`: the pipeline alone, then the strongest baseline and the best candidate fed by it."""
    segments: list[Segment] = []
    """Stored in samples.csv, not in result.json."""
    command_runs: list[CommandRun] = []
    """Every process of a `task: command`, in their order."""
    clean_times: list[CleanTime] = []
    clean_works: list[str] = []
    """Baseline arms that failed beside the candidate, and work in the process that never held it."""
    steadiness: list[Steadiness] = []
    allocations: list[Allocations] = []
    spent: list[Spent] = []
    stage_ends: list[StageEnd] = []
    workers_finished: int = 0
    """Workers that completed every verdict block."""
    memory: list[MemoryRecord] = []
    audit: Audit | None = None
    kernel_times: list[KernelTime] = []
    traces: list[TraceRecord] = []
    trace_differences: list[TraceDifference] = []
    """The strongest baseline and eager as shipped, each against the candidate."""
    recompiles: list[str] = []
    """Arms in which a timed segment compiled something."""
    telemetry: Telemetry = Telemetry()
    unseen: list[str] = []
    """What this machine does not show, each in one phrase."""
    trust: Trust | None = None
    """None in runs that did not record it, and where no process held the candidate."""
    faults: list[Fault] = []
    no_room: str | None = None
    """What ran out of memory with or without the kernel, in a sweep, where other cells may fit; None: nothing did."""
    budget_exhausted: bool = False
    random_weights: bool = False
    model: ModelFacts | None = None
    """None in runs that did not record it."""
