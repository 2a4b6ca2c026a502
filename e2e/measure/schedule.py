"""Which arm runs when: random mirrored blocks, planned by the parent before anything is timed."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from e2e.units import Seconds

MAX_STEPS = 4000
"""Steps in one segment, at most: one fingerprint slot each."""


@dataclass(frozen=True)
class Turn:
    """One segment to be: an arm, its place in the block, and the first of its consecutive input seeds."""

    arm: str
    position: int
    steps: int
    settle: int
    seed: int

    @property
    def seeds(self) -> list[int]:
        """One seed per step, the uncounted settle steps first."""
        return list(range(self.seed, self.seed + self.settle + self.steps))


class SeedSource:
    """Seeds that never repeat within a run, so that no timed step ever sees an input again."""

    def __init__(self, start: int) -> None:
        self._next = start

    def take(self, count: int) -> int:
        """The first of `count` fresh consecutive seeds."""
        first = self._next
        self._next += count
        return first


def steps_for(step_s: Seconds, *, segment_s: Seconds, min_steps: int) -> int:
    """Steps in a segment, from a *baseline's* step time: a candidate's own speed never chooses its plan."""
    return max(min_steps, min(MAX_STEPS, math.ceil(segment_s / max(step_s, 1e-9))))


def block(arms: Mapping[str, int], *, settle: int, rng: random.Random, seeds: SeedSource) -> list[Turn]:
    """A random order of all arms, followed by its mirror: each arm twice, drift cancels in every contrast.

    In each half all arms get the same input values, so that inputs cancel too; no arm sees one twice.

    Units:
        arms: counted steps per segment, by arm.
    """
    order = list(arms)
    rng.shuffle(order)
    longest = max(arms.values()) + settle
    halves = [seeds.take(longest), seeds.take(longest)]
    turns: list[Turn] = []
    for half, names in enumerate((order, order[::-1])):
        for name in names:
            turns.append(Turn(name, len(turns), arms[name], settle, halves[half]))
    return turns


def pick_strongest(step_s: Mapping[str, Seconds], simplicity: Sequence[str], *, tie: float) -> str:
    """The fastest arm of a pilot; arms within `tie` of it yield to the simplest of them.

    Units:
        step_s: median seconds per step; tie: ratio, such as 0.01.
    """
    best = min(step_s.values())
    tied = [name for name in simplicity if name in step_s and step_s[name] <= best * (1 + tie)]
    return tied[0]
