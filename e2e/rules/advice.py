"""What a reader should know about the numbers; never changes an outcome."""

from __future__ import annotations

from collections.abc import Iterator

from e2e import wording
from e2e.schema.verdict import Reason
from e2e.schema.words import ReasonCode
from e2e.weighing import Case, apart, fed_of

INPUT_RATIO = 0.1
"""Share of a fed step that it waits for its batch, beyond which it is said to be bound by its input. Chosen."""
BUSY_RATIO = 0.7
"""Device-busy share below which the device is said to wait for the host."""


def advice(case: Case) -> Iterator[Reason]:
    """Noise, a waiting device, and what could not be seen."""
    evidence, device = case.evidence, case.evidence.device
    half = case.half_width
    if half is not None and half > 2 * case.policy.margin:
        message = f"half width {wording.percent(half)}, margin {wording.percent(case.policy.margin)}"
        yield Reason(code=ReasonCode.NOISY, message=message)
    for row in case.against:
        ratio = apart(evidence, case.policy, row.arm, row.speedup)
        if row is not case.deciding and ratio is not None:
            message = f"{wording.arm(row.arm)}, which does not decide, takes {ratio:.2f}x as long beside the candidate"
            yield Reason(code=ReasonCode.OPPONENT_SLOWED, message=message)
    if device and device.kind == "cuda" and device.busy_ratio is not None and device.busy_ratio < BUSY_RATIO:
        idle = wording.percent(1 - device.busy_ratio)
        message = f"the device is idle for {idle} of the best baseline's step"
        yield Reason(code=ReasonCode.HOST_BOUND, message=message)
    if (fed := fed_of(evidence)) is not None and fed.waits > INPUT_RATIO:
        made, alone = wording.duration(fed.made_s, digits=3), wording.duration(fed.prepared_s, digits=3)
        message = f"the pipeline makes a batch in {made}, and a step from prepared batches, which the verdict is for, "
        message += f"takes {alone}"
        yield Reason(code=ReasonCode.INPUT_BOUND, message=message)
    if evidence.unseen:
        yield Reason(code=ReasonCode.CANNOT_SEE, message="; ".join(evidence.unseen))
    if evidence.guard:
        yield Reason(code=ReasonCode.GUARD_FINDING, message="; ".join(evidence.guard))
    if evidence.random_weights:
        message = "random weights: times hold, outputs mean little"
        yield Reason(code=ReasonCode.RANDOM_WEIGHTS, message=message)
