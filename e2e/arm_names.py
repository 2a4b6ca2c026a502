"""Names of arms: `role:mode` or `role:mode+alternative`, such as `baseline:eager+F.rms_norm`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from e2e.schema.words import Mode, Role


@dataclass(frozen=True)
class ArmName:
    """One way to run the step, as a value."""

    role: Role
    mode: Mode
    alternative: str | None = None
    """Name of the PyTorch alternative put at the sites, if any."""

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


AS_SHIPPED = str(ArmName(Role.BASELINE, Mode.EAGER))
"""Eager, unpatched: what a user has who did nothing."""
