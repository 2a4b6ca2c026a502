"""What makes a build show memory errors and undefined behaviour when it runs, with file and line."""

from __future__ import annotations

from e2e.protocols import BuildTarget

HOST = (
    *("-fsanitize=address,undefined", "-fsanitize-recover=address,undefined", "-fno-omit-frame-pointer", "-g"),
    *("-U_FORTIFY_SOURCE", "-fno-sanitize=vptr"),
)
"""For g++ and clang++; `vptr` needs types that other libraries hide."""
NVCC = ("-lineinfo",)
"""Compute-sanitizer looks at the machine code as it is; only its lines are missing."""


def sanitizing(target: BuildTarget, *, cuda: bool) -> list[str]:
    """Flags that stand last, where the manifest cannot undo them; none in an ordinary build."""
    return [*(NVCC if cuda else HOST)] if target.sanitize else []
