"""Python functions that change a model by themselves; nothing is compiled here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from e2e.builders._calls import bind_failed, entry_for
from e2e.builders._import import attribute, candidate_module, parsed
from e2e.protocols import BuildTarget, Built, Op
from e2e.schema.kernel import PATCH, Kernel


class PatchBuilder:
    """Takes a function from a file or an installed module; what it does to a model, the scout finds out."""

    def build(self, kernel: Kernel, target: BuildTarget) -> Built:
        """See `parsed`: nothing is compiled."""
        built = parsed(kernel, target, builder="patch")
        return built.model_copy(update={"artifact": built.artifact.removeprefix(PATCH)})

    def bind(self, built: Built, op: Op, dtype: str) -> Callable[..., Any]:
        """The function as it is.

        Raises:
            CandidateError: `bind_failed`, with the line in the candidate.
        """
        entry = entry_for(built, dtype)
        function: Any = attribute(candidate_module(built), entry, built)
        if not callable(function):
            raise bind_failed(built, f"entry: {entry!r} is a {type(function).__name__}, not a function")
        return function  # type: ignore[no-any-return]


PLUGIN = PatchBuilder()
