"""Phrases that several rules use."""

from __future__ import annotations

from collections.abc import Sequence

from e2e import wording
from e2e.schema.evidence import Evidence


def error_words(error: float | None, allowed: float | None) -> str:
    """`error 0.031, allowed 0.0024`."""
    return f"error {wording.small(error)}, allowed {wording.small(allowed)}"


def culprits(evidence: Evidence) -> str:
    """Which of several kernels that fail together do so with fewer; begins with a semicolon, or is empty."""
    alone = {subset.kernels[0] for subset in evidence.subsets if len(subset.kernels) == 1}
    if not alone or alone != set(evidence.kernels):  # the time may end before all are tried
        return ""
    failing = [subset.kernels for subset in evidence.subsets if subset.code is not None]
    fewest = min(map(len, failing), default=len(evidence.kernels))
    if fewest == 1:
        guilty = [kernels[0] for kernels in failing if len(kernels) == 1]
        return f"; without the others {' and '.join(guilty)} {'fails' if len(guilty) == 1 else 'fail'} as well"
    smallest = [kernels for kernels in failing if len(kernels) == fewest] or [evidence.kernels]
    sets = ", or ".join(" with ".join(kernels) for kernels in smallest)
    return f"; each kernel passes alone, and what fails is {sets}"


def some(items: Sequence[str], most: int = 3) -> str:
    """`a, b, c and 4 more`."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more
