"""Commit, then audit: timed steps replayed in another process, and what a difference means. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from e2e.arm_names import ArmName
from e2e.schema.evidence import Audit
from e2e.schema.words import Role

SPREAD = 4.0
"""An arm may differ from itself by this many times the largest difference seen between two baseline runs."""
MOST = 0.05
"""Relative distance beyond which two outputs never count as the same step's, whatever the baseline does."""


@dataclass(frozen=True)
class Fingerprint:
    """What one step committed: a checksum of every output, and projections of the first."""

    checksum: int
    sketch: tuple[float, ...]

    @classmethod
    def read(cls, value: Any) -> Fingerprint | None:
        """From a worker's message; None when it is not one."""
        try:
            checksum, sketch = value
            return cls(int(checksum), tuple(float(item) for item in sketch))
        except (TypeError, ValueError, OverflowError):
            return None

    def distance(self, other: Fingerprint) -> float:
        """Relative distance of the projections: about that of the outputs themselves."""
        size = math.hypot(*self.sketch)
        difference = math.dist(self.sketch, other.sketch) if len(self.sketch) == len(other.sketch) else math.inf
        return difference / size if size > 0 else (0.0 if difference == 0 else math.inf)


@dataclass(frozen=True)
class Replay:
    """One timed step, and the same step run elsewhere."""

    arm: str
    committed: Fingerprint
    replayed: Fingerprint | None

    @property
    def repeats(self) -> bool:
        """Bit for bit."""
        return self.replayed is not None and self.committed.checksum == self.replayed.checksum

    @property
    def distance(self) -> float:
        """Relative distance; infinite when the replay gave nothing."""
        return math.inf if self.replayed is None else self.committed.distance(self.replayed)


def conclude(replays: Sequence[Replay], *, run: int, committed: int, baseline: str | None) -> Audit:
    """All replays of a run as one record.

    Arms must repeat themselves bit for bit if the baseline does; otherwise within its own spread.
    """
    own = [replay for replay in replays if _is_like(replay.arm, baseline)]
    repeats = all(replay.repeats for replay in own) if own else None
    spread = None
    if repeats is False:
        spread = max(replay.distance for replay in own)
        spread = spread if math.isfinite(spread) else None
    allowed = 0.0 if spread is None else min(MOST, SPREAD * spread)
    counts: dict[str, tuple[int, int]] = {}
    for replay in replays:
        wrong, total = counts.get(replay.arm, (0, 0))
        within = spread is not None and replay.distance <= allowed  # false for NaN
        differs = not (replay.repeats or within)
        counts[replay.arm] = (wrong + differs, total + 1)
    return Audit(
        steps_timed=run,
        steps_committed=committed,
        steps_audited=len(replays),
        mismatches=[f"{arm}: {wrong} of {total}" for arm, (wrong, total) in counts.items() if wrong],
        baseline_repeats=repeats,
        spread_ratio=spread,
    )


def _is_like(arm: str, baseline: str | None) -> bool:
    """The chosen baseline, or the sham, which is the same code."""
    if baseline is None:
        return False
    name, own = ArmName.parse(arm), ArmName.parse(baseline)
    same = (name.mode, name.alternative) == (own.mode, own.alternative)
    return same and name.role in (Role.BASELINE, Role.SHAM)
