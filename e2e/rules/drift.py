"""How a right kernel's error grows on its way through the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from e2e.schema.evidence import LayerError, ModelCheck

_FEWEST_LAYERS = 3
"""With fewer a straight line says nothing."""
_JUMP = 2.0
"""Times the ratio before it, from which a layer is named."""


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
