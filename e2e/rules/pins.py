"""Whether the run is what the policy pins."""

from __future__ import annotations

from collections.abc import Iterator

from e2e.rules._words import some
from e2e.schema.evidence import Evidence
from e2e.schema.policy import Pins
from e2e.schema.verdict import Reason
from e2e.schema.words import ReasonCode
from e2e.weighing import Case


def policy_not_met(case: Case) -> Iterator[Reason]:
    """The run differs from what the policy pins, or did not record whether it does."""
    missed = pins_missed(case.evidence, case.policy.pins)
    if case.policy.pins.devices and case.evidence.device is None:
        missed.append("the run did not record its device, which the policy pins")
    if missed:
        yield Reason(code=ReasonCode.POLICY_NOT_MET, message="; ".join(missed))


def pins_missed(evidence: Evidence, pins: Pins) -> list[str]:
    """One phrase for every pin that does not hold; known before anything runs."""
    asked, origin, missed = evidence.stage_asked, evidence.origin, []
    if pins.devices and evidence.device is not None and evidence.device.name not in pins.devices:
        missed.append(f"the device is {evidence.device.name}, and the policy pins {' or '.join(pins.devices)}")
    if pins.stage is not None and asked.rank < pins.stage.rank:
        missed.append(f"only the stage {asked} was asked for, and the policy pins {pins.stage}")
    if origin is None:
        is_pinned = pins.workload_sha256 or pins.weights or pins.fresh_seed or pins.no_overrides
        return [*missed, "the run did not record what the policy pins"] if is_pinned else missed
    if pins.workload_sha256 not in (None, origin.workload_sha256):
        pinned = f"the policy pins {str(pins.workload_sha256)[:12]}"
        missed.append(f"the workload file's hash is {origin.workload_sha256[:12]}, and {pinned}")
    if pins.weights not in (None, origin.weights):
        missed.append(f"the weights are {origin.weights}, and the policy pins {pins.weights}")
    if pins.fresh_seed and origin.seed_chosen:
        missed.append("the caller chose the seed, and the policy wants a fresh one")
    if pins.fresh_seed and evidence.exam is not None and evidence.exam.run > 1:
        missed.append("the model's outputs were checked on an earlier run's inputs, and the policy wants fresh ones")
    if pins.no_overrides and origin.overrides:
        missed.append(f"--set changed {some(origin.overrides)}, and the policy wants the file as it is")
    return missed
