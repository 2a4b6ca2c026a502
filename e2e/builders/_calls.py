"""From the op's call to the entry's call: the order of arguments, and which entry serves a dtype."""

from __future__ import annotations

import difflib
import re

from e2e.errors import CandidateError, EnvironmentFault, UsageError
from e2e.protocols import BuildTarget, Built, Op
from e2e.schema.kernel import Kernel

OUT = "out"
"""Name of the preallocated output in a manifest's `args`."""


def require_device(kernel: Kernel, target: BuildTarget) -> None:
    """Refuse a kernel that cannot run on the run's device.

    Raises:
        EnvironmentFault: it needs CUDA, and this run has none.
        UsageError: it is for the CPU, and this run is on CUDA.
    """
    device = kernel.manifest.device
    if device == "cuda" and target.device != "cuda":
        raise EnvironmentFault(
            f"{kernel.spec} runs on CUDA, and this run is on the CPU (no CUDA device here, or --device cpu). "
            "Run it on a machine with a GPU, or try the CPU candidate kernels/rmsnorm.cpp; "
            "`e2e doctor` says what works here"
        )
    if device == "cpu" and target.device != "cpu":
        raise UsageError(f"{kernel.spec} runs on the CPU, and this run is on CUDA; pass --device cpu or a CUDA kernel")


def entry_for(built: Built, dtype: str) -> str:
    """Name of the function that serves `dtype`.

    Raises:
        CandidateError: `dtype_not_supported`.
    """
    entry = built.kernel.manifest.entry
    if isinstance(entry, str):
        return entry
    for known, name in entry.items():
        if known == dtype:
            return name
    stated = ", ".join(entry)
    raise CandidateError(f"{built.kernel.spec} has no entry for {dtype}, only for {stated}", code="dtype_not_supported")


def arguments(built: Built, op: Op) -> list[str] | None:
    """The manifest's `args`, or None when they are the op's own order followed by the output.

    Raises:
        CandidateError: `bind_failed`: `out` is missing, or named twice.
    """
    names = built.kernel.manifest.args
    if names is None or names == [*op.tensor_names, *op.scalar_names, OUT]:
        return None
    if names.count(OUT) != 1:
        raise bind_failed(built, "args: must name `out` once: the output is preallocated and passed in")
    return names


def unknown_argument(built: Built, name: str, known: list[str]) -> CandidateError:
    """The error for an entry of `args` that this op does not have."""
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
    return bind_failed(built, f"args: no {name!r} in this op; {hint}")


def bind_failed(built: Built, reason: str, *, line: int | None = None) -> CandidateError:
    """A `bind_failed` error about one kernel."""
    line = line or built.kernel.block_line
    where = f"{built.kernel.shown}:{line}" if line else built.kernel.shown
    return CandidateError(f"{where}: {reason}", code="bind_failed", line=line)


def scalar_types(op: Op) -> dict[str, str]:
    """Type of every scalar argument, from the op's schema: `{"eps": "float"}`."""
    inside = op.schema.partition("(")[2].rpartition("->")[0]
    found = re.findall(r"(float|int|bool)\??\s+(\w+)", inside)
    return {name: kind for kind, name in found}


def output_count(op: Op) -> int:
    """How many tensors the op returns."""
    return len(re.findall(r"\bTensor\b", op.schema.rpartition("->")[2]))
