"""Warm-up that ends when steps are seen to be steady, not after a fixed number of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from e2e.units import MAD_TO_SD, MEDIAN_COST, Ratio, Seconds

WINDOW = 5
"""Steps of which a median is taken."""
STILL = 0.01
"""Relative change between the medians of two windows below which nothing moves. Source: METHOD.md B5.7."""


def until_steady(
    steps: Callable[[int], Sequence[Seconds]],
    disturbances: Callable[[], int],
    *,
    least_steps: int,
    least_s: Seconds,
    most_s: Seconds,
) -> dict[str, Any]:
    """Run windows of steps until two in a row agree and nothing was compiled or allocated in the last one.

    Two windows agree when their medians differ by less than 1 %, or by no more than their own scatter explains: a
    noisy host never gets below 1 %, and is as warm as it will be.

    Args:
        steps: runs so many steps and gives the seconds of each.
        disturbances: a counter that stands still once nothing is compiled, captured or taken from the driver.
        least_steps: steps, at least.
        least_s: seconds of steps, at least.
        most_s: seconds of steps after which it is given up.

    Returns:
        Fields of `Steadiness`, without worker and arm.
    """
    times: list[Seconds] = []
    while True:
        before = disturbances()
        times += steps(WINDOW)
        is_quiet = disturbances() == before
        is_enough = len(times) >= max(least_steps, 2 * WINDOW) and math.fsum(times) >= least_s
        change, explained = _change(times[-2 * WINDOW : -WINDOW], times[-WINDOW:])
        is_steady = is_enough and is_quiet and change is not None and change <= max(STILL, explained)
        if is_steady or math.fsum(times) >= most_s:
            return {"steps": len(times), "seconds": math.fsum(times), "is_steady": is_steady, "change_ratio": change}


def _change(earlier: Sequence[Seconds], later: Sequence[Seconds]) -> tuple[Ratio | None, Ratio]:
    """Relative change of the median, and how much of one the scatter within the windows explains."""
    if len(earlier) < WINDOW:
        return None, 0.0
    first, last = median(earlier), median(later)
    scatter = [abs(value - first) for value in earlier] + [abs(value - last) for value in later]
    error = MEDIAN_COST * MAD_TO_SD * median(scatter) * math.sqrt(2 / WINDOW)
    return abs(last - first) / first, 2 * error / first
