"""What a worker that holds a candidate may answer, request by request; anything else is nonsense.

Such a process may say whatever the candidate makes it say. What it says is checked for its form here, once, and for
its truth by the clean worker and the audit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from e2e.schema.record import Record

REACHED = ".reached"
"""Suffix of the file in which a candidate's process names the input in hand."""
_MOST = 2**62
_Count = Annotated[int, Field(ge=0, le=_MOST)]
_Seconds = Annotated[float, Field(ge=0, le=1e9)]
_Bytes = Annotated[int, Field(ge=-_MOST, le=_MOST)]


class Answer(Record):
    """Strict: a number in quotes is no number."""

    model_config = ConfigDict(strict=True)


class Nothing(Answer):
    """Done, and nothing to say."""


class Remark(Answer):
    """On one call of the kernel; what applies is set."""

    declined: str | None = None
    problem: str | None = None
    inputs_changed: bool = False
    repeats: bool | None = None
    spread: Annotated[float, Field(ge=0)] | None = None
    aliased: bool = False
    layout: str | None = None


class Remarks(Answer):
    """On every captured call."""

    remarks: list[Remark]


class TorchProblems(Answer):
    """What torch's own check of a registered op finds; None where it passes."""

    called: str | None
    """Of the call against the op's schema: inputs changed, outputs that share their memory."""
    faked: str | None
    """Of what a compiler is told about the outputs against what they are."""


class Engaged(Answer):
    """Counted calls by site, and for every kernel whether a constant in its place moved the outputs."""

    calls: dict[str, _Count]
    watermark_moved: list[bool]


class Calls(Answer):
    """Calls of the kernels, by site."""

    calls: dict[str, _Count]


class Gradients(Answer):
    """One training step."""

    loss: float
    with_gradient: list[str]
    parameters: _Count
    calls: dict[str, _Count]


class Prepared(Answer):
    """An arm after its first steps."""

    first_step_s: _Seconds
    graph_breaks: bool
    prepare_s: _Seconds | None
    regions: _Count | None
    kernel_calls: list[_Count] | None
    """Of every kernel."""


class Warm(Answer):
    """An arm after its warm-up."""

    steps: _Count
    seconds: _Seconds
    is_steady: bool
    change_ratio: _Seconds | None


class Room(Answer):
    """Memory where the model lives: what this process holds, and what is free."""

    held_bytes: _Count
    free_bytes: _Count | None


class Ran(Answer):
    """A timed segment."""

    digests: list[Any]
    device_s: _Seconds | None
    allocations: _Count | None
    recompiled: bool


class Digests(Answer):
    """Fingerprints of replayed steps."""

    digests: list[Any]


class OpTimes(Answer):
    """The op alone."""

    eager: Annotated[float, Field(gt=0)]
    candidate: Annotated[float, Field(gt=0)]
    alternative: Annotated[float, Field(gt=0)] | None = None


class Isolated(Answer):
    """The op alone, and what a call costs beside it."""

    seconds: OpTimes
    cold: OpTimes | None = None
    plumbing_s: float | None


class Generated(Answer):
    """A step that generates, and its first token; None where that cannot be told apart."""

    first_token_s: _Seconds | None
    step_s: _Seconds | None


class FedBatches(Answer):
    """Batches made as they are needed."""

    batch_s: Annotated[float, Field(gt=0, le=1e9)]


class Traced(Answer):
    """A trace was written."""

    steps: Annotated[int, Field(gt=0, le=_MOST)]


class Memory(Answer):
    """One arm's figures."""

    steps: _Count
    first_step_s: _Seconds
    growth_bytes: _Bytes | None
    host_high_water_bytes: _Bytes | None
    peak_allocated_bytes: _Bytes | None = None
    peak_reserved_bytes: _Bytes | None = None
    device_used_delta_bytes: _Bytes | None = None
    pinned_bytes: _Bytes | None = None


class Scouted(Answer):
    """Modules that a patch changed."""

    fqns: list[str]


class Pause(Answer):
    """What a planted pause takes."""

    pause_s: _Seconds


ANSWERS: Mapping[str, type[Answer]] = {
    "bind": Nothing,
    "scout": Scouted,
    "arena": Nothing,
    "settle": Nothing,
    "stage": Nothing,
    "step_output": Nothing,
    "probes": Nothing,
    "loss_paths": Nothing,
    "plant": Nothing,
    "run_ops": Remarks,
    "opcheck": TorchProblems,
    "op_gradients": Nothing,
    "engage": Engaged,
    "logits": Calls,
    "gradients": Gradients,
    "prepare": Prepared,
    "room": Room,
    "warm_up": Warm,
    "go": Ran,
    "digests": Digests,
    "isolated": Isolated,
    "generation": Generated,
    "feed": FedBatches,
    "trace": Traced,
    "memory": Memory,
    "pause": Pause,
}


def checked(do: str, reply: dict[str, Any]) -> dict[str, Any]:
    """The answer's fields, those not given as None.

    Raises:
        ValidationError: it is not what that request is answered with.
    """
    kind = ANSWERS.get(do)
    return reply if kind is None else kind.model_validate(reply).model_dump()
