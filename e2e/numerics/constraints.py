"""Which calls a kernel's declared constraints exclude. Torch-free: both sides use it."""

from __future__ import annotations

from collections.abc import Sequence

from e2e.errors import UsageError
from e2e.schema.constraint import holds


def declined_by(constraints: Sequence[str], dims: dict[str, int | str]) -> str | None:
    """The first declared constraint that excludes a call of these dimensions."""
    for text in constraints:
        try:
            if not holds(text, dims):
                return text
        except ValueError as error:
            raise UsageError(f"the kernel's constraint {text!r} cannot be evaluated here: {error}") from error
    return None
