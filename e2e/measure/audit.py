"""Commit, then audit: timed steps replayed in another process, and what a difference means. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from e2e.arm_names import ArmName
from e2e.schema.evidence import Audit
from e2e.schema.words import Mode, Role

EPSILON = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""Spacing of each dtype at 1."""
SPREAD = 4.0
"""An arm may differ from itself by this many times the largest difference seen between two baseline runs."""
APART = 32.0
"""Two right arms' outputs may be this many times the baseline's own error apart: each errs by up to twice that
error, four projections of one row estimate a distance within a factor of a few, and compiled modes round otherwise."""
FAR = 0.5
"""Relative distance beyond which outputs are wrong, however rough the baseline."""
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
    is_clean: bool = False
    """Whether the process that replayed it never held the candidate."""

    @property
    def repeats(self) -> bool:
        """Bit for bit."""
        return self.replayed is not None and self.committed.checksum == self.replayed.checksum

    @property
    def distance(self) -> float:
        """Relative distance; infinite when the replay gave nothing."""
        return math.inf if self.replayed is None else self.committed.distance(self.replayed)


@dataclass(frozen=True)
class Tolerance:
    """How far a replay may be from what was committed, where bits may differ for an honest reason."""

    rounding: float = 0.0
    """The eager baseline's own relative error: what another order of the same sums changes."""
    candidate_repeats: bool = True
    """Whether the kernel gave the same bits when the op check called it twice."""

    def of(self, arm: str, spread: float | None, *, repeatable: bool) -> float:
        """Largest distance allowed to an arm; 0 demands the same bits.

        Eager arms repeat themselves in any process, if the strongest baseline does. Compiled ones may have been
        tuned otherwise there, and a kernel that was seen not to repeat itself cannot be held to bits; a stale output
        differs far more.
        """
        name = ArmName.parse(arm)
        varies = not repeatable or name.mode is not Mode.EAGER
        varies = varies or (name.role is Role.CANDIDATE and not self.candidate_repeats)
        return min(MOST, max(SPREAD * (spread or 0.0), SPREAD * self.rounding if varies else 0.0))


def allowed_apart(rough: float | None, dtype: str) -> float:
    """How far two right arms' answers to one input may be from each other; `rough` is the baseline's own error."""
    return min(FAR, APART * ((rough or 0.0) + EPSILON[dtype] / 4))


def disagreements(
    committed: Mapping[tuple[str, int], Fingerprint], *, candidate: str, baseline: str, allowed: float
) -> tuple[int, int]:
    """How many of the candidate's timed steps differ from the baseline's on the same input, and of how many.

    A replay by the candidate's own code says that it repeats itself, not that it is right: a kernel that is wrong
    from its hundredth call on is wrong in the replay too. All arms of a half block get the same inputs, and every
    step left its projections, so the baseline's answer to the very input is there.
    """
    pairs = [
        (mine, committed[(baseline, seed)])
        for (arm, seed), mine in committed.items()
        if arm == candidate and (baseline, seed) in committed
    ]
    return sum(not theirs.distance(mine) <= allowed for mine, theirs in pairs), len(pairs)


def agreement(
    committed: Mapping[tuple[str, int], Fingerprint],
    *,
    candidate: str,
    baseline: str,
    rounding: float | None,
    dtype: str,
) -> dict[str, Any]:
    """`disagreements` as fields of an Audit; `rounding` is the baseline's own error in the model check."""
    allowed = allowed_apart(rounding, dtype)
    return compared(candidate, *disagreements(committed, candidate=candidate, baseline=baseline, allowed=allowed))


def compared(candidate: str, wrong: int, count: int) -> dict[str, Any]:
    """How many timed steps disagree, as fields of an Audit."""
    return {"steps_compared": count, "disagreements": [f"{candidate}: {wrong} of {count}"] if wrong else []}


def conclude(
    replays: Sequence[Replay], *, run: int, committed: int, baseline: str | None, tolerance: Tolerance
) -> Audit:
    """All replays of a run as one record.

    The baseline's spread comes from processes that hold the candidate, as do the arms it is allowed to. A replay
    in the clean process is measured by its own arm's spread, or a contaminated baseline would excuse itself.
    """
    like = [replay for replay in replays if not replay.is_clean and _is_like(replay.arm, baseline)]
    repeats = all(replay.repeats for replay in like) if like else None
    spread = None if repeats is not False else _spread(like)
    counts: dict[str, tuple[int, int]] = {}
    for replay in replays:
        same = [other for other in replays if other.arm == replay.arm and not other.is_clean]
        own = _spread(same) if replay.is_clean else spread
        allowed = tolerance.of(replay.arm, own, repeatable=repeats is not False)
        differs = not (replay.repeats or replay.distance <= allowed)  # NaN is not within anything
        name = f"{replay.arm} in a clean process" if replay.is_clean else replay.arm
        wrong, total = counts.get(name, (0, 0))
        counts[name] = (wrong + differs, total + 1)
    return Audit(
        steps_timed=run,
        steps_committed=committed,
        steps_audited=sum(not replay.is_clean for replay in replays),
        mismatches=[f"{arm}: {wrong} of {total}" for arm, (wrong, total) in counts.items() if wrong],
        baseline_repeats=repeats,
        spread_ratio=spread,
    )


def _spread(replays: Sequence[Replay]) -> float | None:
    """Largest distance between two runs of one step; None where a replay gave nothing to compare."""
    worst = max((replay.distance for replay in replays if not replay.repeats), default=0.0)
    return worst if math.isfinite(worst) else None


def _is_like(arm: str, baseline: str | None) -> bool:
    """The chosen baseline, or the sham, which is the same code."""
    if baseline is None:
        return False
    name, own = ArmName.parse(arm), ArmName.parse(baseline)
    same = (name.mode, name.alternative) == (own.mode, own.alternative)
    return same and name.role in (Role.BASELINE, Role.SHAM)
