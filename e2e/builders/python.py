"""Python callables: plain torch, Triton, CuTe; nothing is compiled here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from e2e.builders._adapt import adapted
from e2e.builders._calls import BORROWED, Saving, bind_failed, entry_for, preparing
from e2e.builders._import import attribute, candidate_module, parsed
from e2e.protocols import BuildTarget, Built, Op
from e2e.schema.kernel import Kernel


class PythonBuilder:
    """Takes a function from a file or an installed module; it returns its output."""

    def build(self, kernel: Kernel, target: BuildTarget) -> Built:
        """See `parsed`: nothing is compiled."""
        return parsed(kernel, target, builder="python")

    def bind(self, built: Built, op: Op, dtype: str) -> Callable[..., Any]:
        """The function, taking the op's tensors and scalars in the manifest's order.

        Raises:
            CandidateError: `bind_failed`, with the line in the candidate; `dtype_not_supported`.
        """
        entry = entry_for(built, dtype)
        function = attribute(candidate_module(built), entry, built)
        if not callable(function):
            raise bind_failed(built, f"entry: {entry!r} is a {type(function).__name__}, not a function")
        forward, backward = adapted(function, op, built), built.kernel.manifest.backward
        if backward in (None, BORROWED):
            return forward
        return Saving(op, built, forward, _beside(built, "backward", str(backward)))

    def prepare(self, built: Built, op: Op, dtype: str) -> Callable[..., Any]:
        """See `preparing`."""
        return preparing(_beside(built, "prepare", str(built.kernel.manifest.prepare)), op, built)


def _beside(built: Built, field: str, name: str) -> Callable[..., Any]:
    """A further function of the candidate's module."""
    found: Callable[..., Any] = attribute(candidate_module(built), name, built)
    if not callable(found):
        raise bind_failed(built, f"{field}: {name!r} is a {type(found).__name__}, not a function")
    return found


PLUGIN = PythonBuilder()
