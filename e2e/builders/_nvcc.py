"""The part of nvcc's command line that all CUDA builds share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from e2e.builders._flags import checked_flags, target_architectures
from e2e.builders._toolchain import Compiler, cuda_compiler
from e2e.errors import UsageError
from e2e.protocols import BuildTarget
from e2e.schema.kernel import Kernel

_READ_BY_SHELLS = frozenset('$`"\\\n')
"""nvcc hands its tools' command lines to a shell, in double quotes; a folder's name could run a program."""


@dataclass(frozen=True)
class Nvcc:
    """A command line up to what is built, and what stands behind it."""

    compiler: Compiler
    argv: tuple[str, ...]
    headers: tuple[Path, ...]
    """Header folders that the compiler's identity stands for."""


def nvcc_command(kernel: Kernel, target: BuildTarget, *, standard: str = "c++17") -> Nvcc:
    """Nvcc with optimisation, dialect, architecture, resource report and the manifest's flags.

    Raises:
        UsageError: a flag that a manifest may not hold, or a path that nvcc cannot take.
        CandidateError: `build_failed`: the manifest's architectures do not run on this device.
        EnvironmentFault: no CUDA toolkit.
    """
    compiler = cuda_compiler()
    for path in (kernel.path or kernel.spec, str(target.cache)):
        if found := set(path) & _READ_BY_SHELLS:
            raise UsageError(f"nvcc cannot take the path {path!r}: a shell reads {min(found)!r}; rename it")
    flags = checked_flags(kernel, nvcc=True)
    stated = target_architectures(kernel, target)
    argv = [
        *compiler.argv,
        *([] if any(flag.startswith("-O") for flag in flags) else ["-O3"]),
        *([] if any(flag.startswith("-std=") for flag in flags) else [f"-std={standard}"]),
        *_generated(kernel.manifest.arch or ([f"sm_{target.arch}"] if target.arch and not stated else [])),
        *("-Xptxas", "-v"),
        *flags,
    ]
    root = compiler.toolkit
    headers = (root / "include", root / "targets") if root else ()
    return Nvcc(compiler, tuple(argv), headers)


def _generated(architectures: list[str]) -> list[str]:
    """Flags for machine code of each; none leave it to nvcc what to build for."""
    pairs = [f"arch={name.replace('sm', 'compute')},code={name}" for name in architectures]
    return [word for pair in pairs for word in ("-gencode", pair)]
