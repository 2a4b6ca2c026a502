"""Names of arms: `role:mode` or `role:mode+alternative`, such as `baseline:eager+F.rms_norm`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Self

from e2e.schema.words import Mode, Role


@dataclass(frozen=True)
class ArmName:
    """One way to run the step, as a value."""

    role: Role
    mode: Mode
    alternative: str | None = None
    """Name of what is put at the sites: of a PyTorch alternative, or several (see `alternatives_of`); of an arm with
    some of the kernels, which."""

    def __str__(self) -> str:
        tail = f"+{self.alternative}" if self.alternative else ""
        return f"{self.role}:{self.mode}{tail}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The arm of that name.

        Raises:
            ValueError: not the name of an arm.
        """
        role, _, rest = text.partition(":")
        mode, _, alternative = rest.partition("+")
        return cls(Role(role), Mode(mode), alternative or None)


ADOPTED = "kernel:"
"""Start of an opponent's name, and of an arm's alternative, that is a kernel adopted earlier."""


def is_adopted(alternative: str | None) -> bool:
    """Whether an alternative is a kernel adopted earlier, not a path of PyTorch's own."""
    return alternative is not None and alternative.startswith(ADOPTED)


WITH_KERNELS = (Role.CANDIDATE, Role.PART)
"""Roles of arms in which the candidate stands, or a part of it."""
_AND = "+"
"""Between alternatives that stand together, and kernels that do."""


def alternatives_of(offered: Sequence[Collection[str]]) -> list[str]:
    """Baselines' alternatives, where several ops have some: each by itself wherever it is offered, and together the
    first of every op.
    """
    firsts = dict.fromkeys(name for own in offered for name in list(own)[:1])
    together = [_AND.join(firsts)] if len(firsts) > 1 else []
    return [*dict.fromkeys(name for own in offered for name in own), *together]


def alternative_for(offered: Collection[str], alternative: str) -> str | None:
    """Which of an op's alternatives stands at its sites in an arm of that name's; None: its own code."""
    return next((name for name in (alternative, *alternative.split(_AND)) if name in offered), None)


def some_kernels(mode: Mode, places: Sequence[int]) -> ArmName:
    """The arm with only those of the run's kernels, numbered from 0; names count from 1."""
    return ArmName(Role.PART, mode, _AND.join(str(place + 1) for place in places))


def places_of(arm: ArmName) -> list[int] | None:
    """Which of the run's kernels stand in the arm, numbered from 0; None: all of them."""
    if arm.role is not Role.PART or arm.alternative is None:
        return None
    return [int(number) - 1 for number in arm.alternative.split(_AND)]


AS_SHIPPED = str(ArmName(Role.BASELINE, Mode.EAGER))
"""Eager, unpatched: what a user has who did nothing."""
