"""The closed vocabularies: stages, outcomes, labels, modes, roles and reason codes (DESIGN.md 2, 3 and 6)."""

from __future__ import annotations

from enum import StrEnum


class Stage(StrEnum):
    """How far a run goes; a later stage runs only if the earlier passed."""

    BUILD = "build"
    CHECK = "check"
    SCREEN = "screen"
    VERDICT = "verdict"

    @property
    def rank(self) -> int:
        """Position in the order of stages, from 0."""
        return list(Stage).index(self)


class Outcome(StrEnum):
    """What a run says about the kernel in this workload."""

    CONFIRMED = "confirmed"
    REFUTED = "refuted"
    INCONCLUSIVE = "inconclusive"
    INCORRECT = "incorrect"
    FAILED = "failed"
    NOT_APPLICABLE = "not_applicable"


EXIT_CODES = {
    Outcome.CONFIRMED: 0,
    Outcome.REFUTED: 10,
    Outcome.INCONCLUSIVE: 11,
    Outcome.INCORRECT: 12,
    Outcome.FAILED: 13,
    Outcome.NOT_APPLICABLE: 14,
}


class Label(StrEnum):
    """A sub-label of an outcome."""

    MATCHED_BY_PYTORCH = "matched_by_pytorch"
    REGRESSION = "regression"
    BELOW_MARGIN = "below_margin"
    NO_HEADROOM = "no_headroom"
    PROMISING = "promising"


class Role(StrEnum):
    """Why an arm exists."""

    BASELINE = "baseline"
    CANDIDATE = "candidate"
    PART = "part"
    """Only some of several kernels, the others left out."""
    SHAM = "sham"
    HEADROOM = "headroom"
    PLANTED = "planted"
    """Identical code that `e2e selftest` slows down by a known time, or not at all."""


class Trust(StrEnum):
    """What the candidate's own host code could reach, the least first."""

    RAW = "raw device code"
    """It brings none: e2e launches its device code."""
    SANDBOXED = "sandboxed"
    """Files read-only but for a few folders of its own, no network, a PID namespace."""
    SAME_USER = "same user"
    """Whatever the user's processes can."""


class Mode(StrEnum):
    """How an arm runs its step."""

    EAGER = "eager"
    COMPILE = "compile"
    REDUCE_OVERHEAD = "reduce-overhead"
    CUDA_GRAPH = "cuda-graph"
    """Eager code, captured once in a CUDA graph and replayed."""
    MAX_AUTOTUNE = "max-autotune"
    COMMAND = "command"
    """As the user's own program runs it (`task: command`); no policy can ask for it."""

    @property
    def rank(self) -> int:
        """Simplicity, from 0 (simplest); ties in the tournament go to the simpler mode."""
        return list(Mode).index(self)

    @property
    def is_compiled(self) -> bool:
        """Whether torch.compile makes its code."""
        return self in (Mode.COMPILE, Mode.REDUCE_OVERHEAD, Mode.MAX_AUTOTUNE)

    @property
    def is_graphed(self) -> bool:
        """Whether its steps are replays of a CUDA graph, which only a CUDA device has."""
        return self in (Mode.REDUCE_OVERHEAD, Mode.CUDA_GRAPH, Mode.MAX_AUTOTUNE)


MODES = tuple(mode for mode in Mode if mode is not Mode.COMMAND)
"""Modes in which e2e itself runs a step."""


class ReasonKind(StrEnum):
    """What a reason does to the verdict, in order of precedence (DESIGN.md 6)."""

    INCORRECT = "incorrect"
    FAILED = "failed"
    NOT_APPLICABLE = "not_applicable"
    NO_HEADROOM = "no_headroom"
    BLOCKING = "blocking"
    INTERVAL = "interval"
    ADVICE = "advice"


class ReasonCode(StrEnum):
    """Stable codes; `e2e list reasons` prints them with their sentences."""

    # incorrect
    OP_ERROR_EXCEEDED = "op_error_exceeded"
    MODEL_ERROR_EXCEEDED = "model_error_exceeded"
    PRECISION_DOWNGRADED = "precision_downgraded"
    LOSSY_BUDGET_EXCEEDED = "lossy_budget_exceeded"
    NONFINITE_OUTPUT = "nonfinite_output"
    WRONG_OUTPUT_LAYOUT = "wrong_output_layout"
    INPUTS_CHANGED = "inputs_changed"
    UNDEFINED_BEHAVIOUR = "undefined_behaviour"
    GRADIENTS_MISSING = "gradients_missing"
    GRADIENT_ERROR_EXCEEDED = "gradient_error_exceeded"
    LOSS_PATH_LEFT = "loss_path_left"
    STALE_OUTPUT = "stale_output"
    PREPARED_STALE = "prepared_stale"
    CONTAMINATED_BASELINE = "contaminated_baseline"
    REPLAYED_OUTPUT = "replayed_output"
    WORK_OUTSIDE_STEP = "work_outside_step"
    SETTINGS_CHANGED = "settings_changed"
    TAMPERED = "tampered"
    # failed
    BUILD_FAILED = "build_failed"
    BIND_FAILED = "bind_failed"
    CANDIDATE_RAISED = "candidate_raised"
    CANDIDATE_CRASHED = "candidate_crashed"
    CANDIDATE_EXITED = "candidate_exited"
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    NEVER_CALLED = "never_called"
    PARTLY_APPLIED = "partly_applied"
    NO_BACKWARD = "no_backward"
    DTYPE_NOT_SUPPORTED = "dtype_not_supported"
    # not applicable
    NO_SITES = "no_sites"
    SITES_INCOMPATIBLE = "sites_incompatible"
    # no headroom
    NO_HEADROOM = "no_headroom"
    # blocking
    NO_ROOM = "no_room"
    UNVERIFIED_OUTPUTS = "unverified_outputs"
    CHECK_NO_POWER = "check_no_power"
    NOT_ON_PATH = "not_on_path"
    RECOMPILED = "recompiled"
    IDENTICAL_CODE_DIFFERS = "identical_code_differs"
    CEILING_EXCEEDED = "ceiling_exceeded"
    TOO_FEW_WORKERS = "too_few_workers"
    THROTTLED = "throttled"
    BASELINE_UNFAIR = "baseline_unfair"
    POLICY_NOT_MET = "policy_not_met"
    STALE_EVIDENCE = "stale_evidence"
    BUDGET_EXHAUSTED = "budget_exhausted"
    RUN_INCOMPLETE = "run_incomplete"
    # interval
    GAIN_CONFIRMED = "gain_confirmed"
    MATCHED_BY_PYTORCH = "matched_by_pytorch"
    REGRESSION = "regression"
    BELOW_MARGIN = "below_margin"
    INTERVAL_STRADDLES = "interval_straddles"
    MEMORY_REDUCED = "memory_reduced"
    MEMORY_NOT_REDUCED = "memory_not_reduced"
    MEMORY_UNCERTAIN = "memory_uncertain"
    LIMIT_EXCEEDED = "limit_exceeded"
    PROMISING = "promising"
    # advice
    NOISY = "noisy"
    NOT_STEADY = "not_steady"
    CLOCK_CONFOUND = "clock_confound"
    CARRY_OVER = "carry_over"
    TIMER_DISAGREES = "timer_disagrees"
    ALLOCATOR_CHURN = "allocator_churn"
    ENVIRONMENT_CHANGED = "environment_changed"
    MEMORY_DISAGREES = "memory_disagrees"
    MEMORY_GROWS = "memory_grows"
    OPPONENT_SLOWED = "opponent_slowed"
    HOST_BOUND = "host_bound"
    INPUT_BOUND = "input_bound"
    CONTENTION = "contention"
    CANNOT_SEE = "cannot_see"
    RANDOM_WEIGHTS = "random_weights"
    DECLARED_LOSSY = "declared_lossy"
    GUARD_FINDING = "guard_finding"
    DRIFT = "drift"


class ReasonText(StrEnum):
    """One sentence per reason code, under the same name."""

    OP_ERROR_EXCEEDED = (
        "on inputs of this model, the op's error against the reference exceeds what the baseline's own error allows"
    )
    MODEL_ERROR_EXCEEDED = "the model's outputs move further from the reference than the baseline's own error allows"
    PRECISION_DOWNGRADED = "the op's error is that of a lower precision, which the kernel does not declare"
    LOSSY_BUDGET_EXCEEDED = "a kernel of a declared lossy precision moves the model beyond the policy's budget"
    NONFINITE_OUTPUT = "NaN or infinity stands elsewhere in the candidate's output than in the baseline's"
    WRONG_OUTPUT_LAYOUT = "the output's shape, dtype or aliasing differs from the baseline's"
    INPUTS_CHANGED = "the candidate changed its inputs"
    UNDEFINED_BEHAVIOUR = (
        "a sanitizer saw the kernel use memory that is not its own, race, or do what C++ leaves undefined"
    )
    GRADIENTS_MISSING = "parameters that receive a gradient in the baseline receive none in the candidate arm"
    GRADIENT_ERROR_EXCEEDED = "a parameter's gradient error exceeds what the baseline's own error allows"
    LOSS_PATH_LEFT = "in training, the loss leaves the way that it takes in the baseline, however that rounds"
    STALE_OUTPUT = "a timed step's output does not belong to that step's input"
    PREPARED_STALE = "parameters changed after the kernel had prepared them, and it went on with what it had"
    CONTAMINATED_BASELINE = "the baseline gives other outputs when the candidate shares its process"
    REPLAYED_OUTPUT = "the candidate answered new inputs with what it had returned for others"
    WORK_OUTSIDE_STEP = "the candidate's processes worked when nothing was asked of them"
    SETTINGS_CHANGED = "the candidate changed settings of the process, which every arm then ran with"
    TAMPERED = "the candidate replaced what is not its own, or its process did not hand back what it was asked for"
    BUILD_FAILED = "the kernel did not build"
    BIND_FAILED = "the built kernel could not be loaded, or its entry is missing"
    CANDIDATE_RAISED = "the kernel raised an error"
    CANDIDATE_CRASHED = "the kernel killed its process"
    CANDIDATE_EXITED = "the kernel ended its process"
    TIMED_OUT = "the kernel did not finish in its time"
    OUT_OF_MEMORY = "the kernel ran out of memory"
    NEVER_CALLED = "sites were patched, but the kernel was never called"
    PARTLY_APPLIED = "the kernel ran at only some of its sites, beyond its declared constraints"
    NO_BACKWARD = "the workload trains, and the kernel has no backward"
    DTYPE_NOT_SUPPORTED = "the kernel does not declare this workload's dtype"
    NO_SITES = "the op does not occur in this model"
    SITES_INCOMPATIBLE = "the op occurs, but no site means the same as the kernel's op"
    NO_HEADROOM = "no kernel for this op can win the margin here: the op's whole cost is smaller"
    NO_ROOM = "memory does not hold the workload in this cell, with or without the kernel"
    UNVERIFIED_OUTPUTS = "some timed steps' outputs could not be verified"
    CHECK_NO_POWER = "wrong kernels made on purpose passed the check, so the check proves nothing here"
    NOT_ON_PATH = "no proof that the kernel ran in the arm that was timed"
    RECOMPILED = "a timed segment contained a compilation"
    IDENTICAL_CODE_DIFFERS = "two arms with identical code differ, and the candidate does not stand out from that"
    CEILING_EXCEEDED = "the measured gain is larger than the op's whole cost"
    TOO_FEW_WORKERS = "fewer worker processes finished than a verdict needs"
    THROTTLED = "the device slowed itself down, for heat or power, more in one arm than in the others"
    BASELINE_UNFAIR = "a baseline was not what a user would have: not measured, thrown out, or slowed"
    POLICY_NOT_MET = "the run is not of the kind that the policy asks for"
    STALE_EVIDENCE = "the evidence was taken by another method, or in another environment"
    BUDGET_EXHAUSTED = "the time budget ended before the evidence sufficed"
    RUN_INCOMPLETE = "the run ended before the stage that was asked for"
    GAIN_CONFIRMED = "the gain's lower bound clears the margin and the identical-code control"
    MATCHED_BY_PYTORCH = "an existing PyTorch path is as fast"
    REGRESSION = "the step is slower with the kernel"
    BELOW_MARGIN = "the gain's upper bound lies below the margin"
    INTERVAL_STRADDLES = "the interval leaves open whether there is a gain worth adopting, or in a sweep a loss"
    MEMORY_REDUCED = "the step needs less memory, and is not slower"
    MEMORY_NOT_REDUCED = "the step needs no less memory"
    MEMORY_UNCERTAIN = "what was seen of the memory decides nothing"
    LIMIT_EXCEEDED = "something that the policy limits is beyond its limit"
    PROMISING = "a gain worth a full verdict is possible"
    NOISY = "the interval is wide compared with the margin"
    NOT_STEADY = "step times had not settled when timing began"
    CLOCK_CONFOUND = "counted in clock cycles instead of seconds, the interval says something else"
    CARRY_OVER = "an arm's time depends on which arm ran before it"
    TIMER_DISAGREES = "the device's own clock and the parent's disagree, in one arm more than in another"
    ALLOCATOR_CHURN = "device memory was taken from the driver, or given back, in timed segments"
    ENVIRONMENT_CHANGED = "the machine's settings changed during the run"
    MEMORY_DISAGREES = "the sources of memory figures disagree"
    MEMORY_GROWS = "memory in use grows from step to step"
    OPPONENT_SLOWED = "an opponent that does not decide is as fast as it is only beside the candidate, or without it"
    HOST_BOUND = "the device waits for the host"
    INPUT_BOUND = "the step waits for its data pipeline"
    CONTENTION = "other processes used the machine during timing"
    CANNOT_SEE = "this machine does not show a quantity that e2e wanted to read"
    RANDOM_WEIGHTS = "the model's weights are random, so its outputs mean little"
    DRIFT = "the model's outputs move further than any legal change moves them, and within what is allowed"
    DECLARED_LOSSY = "the kernel declares a lossy precision, in which the model answers a little differently"
    GUARD_FINDING = "kernelguard's rules match something in the kernel's source: worth a look, and decides nothing"


_KIND_STARTS = {
    ReasonCode.OP_ERROR_EXCEEDED: ReasonKind.INCORRECT,
    ReasonCode.BUILD_FAILED: ReasonKind.FAILED,
    ReasonCode.NO_SITES: ReasonKind.NOT_APPLICABLE,
    ReasonCode.NO_HEADROOM: ReasonKind.NO_HEADROOM,
    ReasonCode.NO_ROOM: ReasonKind.BLOCKING,
    ReasonCode.GAIN_CONFIRMED: ReasonKind.INTERVAL,
    ReasonCode.NOISY: ReasonKind.ADVICE,
}


def kind_of(code: ReasonCode) -> ReasonKind:
    """The kind of a reason code: codes are declared kind by kind, in order of precedence."""
    kind = ReasonKind.INCORRECT
    for other in ReasonCode:
        kind = _KIND_STARTS.get(other, kind)
        if other is code:
            return kind
    raise ValueError(code)


WAIVABLE = (
    ReasonCode.POLICY_NOT_MET,
    ReasonCode.THROTTLED,
    ReasonCode.BASELINE_UNFAIR,
    ReasonCode.STALE_EVIDENCE,
    ReasonCode.LIMIT_EXCEEDED,
)
"""Reasons that a person may answer for: none of them says that the kernel is wrong, or that nothing was measured."""


def accusation(named: str | None) -> ReasonCode | None:
    """The code of that name, if a fault or a failed check can have it: a conclusion is not theirs to draw."""
    code = ReasonCode(named) if named in set(ReasonCode) else None
    return code if code and kind_of(code) in (ReasonKind.INCORRECT, ReasonKind.FAILED) else None


def sentence_of(code: ReasonCode) -> str:
    """The code's sentence, without a full stop."""
    return ReasonText[code.name].value
