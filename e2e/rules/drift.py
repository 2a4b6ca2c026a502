"""How a right kernel's error grows on its way through the model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from e2e.schema.evidence import Envelope, LayerError, ModelCheck, OpCheck
from e2e.schema.verdict import Reason
from e2e.schema.words import ReasonCode
from e2e.weighing import Case

NOTED = 1.25
"""Times the widest legal change, from which a right kernel's error is remarked on. Chosen, not measured."""
_FEWEST_LAYERS = 3
"""With fewer a straight line says nothing."""
_JUMP = 2.0
"""Times the ratio before it, from which a layer is named. Chosen, not measured."""


def drifts(case: Case) -> Iterator[Reason]:
    """Right, and yet further from the reference than any legal change leaves this model."""
    check = case.evidence.model_check
    if check is None or check.envelope is None or check.precision is not None or check.status != "passed":
        return
    ratio, (widest, change) = model_ratio(check), widest_change(check.envelope)
    if ratio is None or ratio <= NOTED * widest:
        return
    message = f"error {ratio:.2f}x the baseline's own; legal changes leave {widest:.2f}x at most ({change})"
    rise, layer = slope(check.depth), jump(check.depth)
    message += f"; slope {rise:+.2f} doublings from the first layer to the last" if rise is not None else ""
    message += f"; it jumps at {layer}" if layer else ""
    yield Reason(code=ReasonCode.DRIFT, message=message)


def widest_change(envelope: Envelope) -> tuple[float, str]:
    """Of legal changes the error over the baseline's own that is largest, and which; 1 at least."""
    found = [(over(change.error, envelope.error_baseline), change.name) for change in envelope.changes]
    return max([(1.0, "none"), *((ratio, name) for ratio, name in found if ratio is not None)])


def op_spread(checks: Sequence[OpCheck]) -> float | None:
    """Largest distance of two calls of the op on the same input; 0 where every pair gave the same bits.

    None where no pair was compared, or where one is no number.
    """
    known = [check for check in checks if check.repeats is not None]
    if not known or any(check.repeats is False and check.spread is None for check in known):
        return None
    return max(check.spread or 0.0 for check in known)


def over(candidate: float | None, baseline: float | None) -> float | None:
    """err(candidate) / err(baseline), where both can be told."""
    return None if candidate is None or not baseline else candidate / baseline


def model_ratio(check: ModelCheck) -> float | None:
    """Of the model's outputs."""
    return over(check.error_candidate, check.error_baseline)


def ratios(depth: Sequence[LayerError]) -> list[tuple[str, float]]:
    """Layer and ratio, of those that have one."""
    found = [(layer.layer, over(layer.error_candidate, layer.error_baseline)) for layer in depth]
    return [(name, ratio) for name, ratio in found if ratio]


def slope(depth: Sequence[LayerError]) -> float | None:
    """See `NumericsVerdict.depth_slope`: least squares of the logarithm to base 2, over a depth of one."""
    known = [math.log2(ratio) for _, ratio in ratios(depth)]
    if len(known) < _FEWEST_LAYERS:
        return None
    middle, mean = (len(known) - 1) / 2, math.fsum(known) / len(known)
    spread = math.fsum((place - middle) ** 2 for place in range(len(known)))
    rise = math.fsum((place - middle) * (value - mean) for place, value in enumerate(known)) / spread
    return rise * (len(known) - 1)


def jump(depth: Sequence[LayerError]) -> str | None:
    """The layer with the largest step of the ratio, where that is one; before the first layer it is 1."""
    known = [("", 1.0), *ratios(depth)]
    steps = [(later / earlier, name) for (_, earlier), (name, later) in pairwise(known)]
    most, name = max(steps, default=(0.0, ""))
    return name if most > _JUMP else None
