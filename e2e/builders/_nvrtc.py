"""NVRTC's command line for bare kernels, where there is no nvcc: the library is in CUDA builds of torch."""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from e2e.builders import _nvrtc_program
from e2e.builders._flags import checked_flags, runs_on, target_architectures
from e2e.builders._toolchain import Compiler, ask
from e2e.errors import EnvironmentFault
from e2e.protocols import BuildTarget
from e2e.schema.kernel import Kernel

_HOMES = ("CUDA_HOME", "CUDA_PATH")
_USUAL_HOME = Path("/usr/local/cuda")
_NUMBERED = re.compile(r"libnvrtc\.so\.(\d+)(?:\.(\d+))?")
_OF_DEVICES = re.compile(
    r"-(?:std=|D|U|I)\S*|-[wG]|--?(?:use_fast_math|extra-device-vectorization|lineinfo|generate-line-info|restrict)"
    r"|--?(?:maxrregcount|ftz|prec-div|prec-sqrt|fmad|diag-suppress)=\S+"
)
"""Flags of nvcc that NVRTC knows as well. Others are about host code, linking or speed of compilation."""


@dataclass(frozen=True)
class Found:
    """An NVRTC, and CUDA's headers."""

    shared_object: Path
    headers: tuple[Path, ...]


def find_nvrtc() -> Found | None:
    """The newest libnvrtc of CUDA_HOME, of the `nvidia` packages that CUDA builds of torch bring, or of the system."""
    for folder in _folders():
        libraries = [path for path in folder.glob("libnvrtc.so.*") if _NUMBERED.fullmatch(path.name)]
        if libraries:
            return Found(max(libraries, key=_number), tuple(_headers()))
    named = ctypes.util.find_library("nvrtc")
    return Found(Path(named), tuple(_headers())) if named else None


def nvrtc_compiler(found: Found) -> Compiler:
    """How to start it, and what it calls itself.

    Raises:
        EnvironmentFault: it does not load.
    """
    argv = (sys.executable, "-P", str(Path(_nvrtc_program.__file__)), str(found.shared_object))
    said = ask([*argv, "--version"])
    return Compiler(argv, f"{said} in {found.shared_object}")


def nvrtc_command(kernel: Kernel, target: BuildTarget, compiler: Compiler, found: Found) -> list[str]:
    """NVRTC with dialect, architecture, headers and those of the manifest's flags that are about device code.

    Raises:
        UsageError: a flag that a manifest may not hold.
        CandidateError: `build_failed`: the manifest's architectures do not run on this device.
        EnvironmentFault: neither the manifest nor a device says what to build for; NVRTC builds for one.
    """
    stated = target_architectures(kernel, target)
    if target.arch is None and not stated:
        raise EnvironmentFault(
            f"{kernel.spec}: NVRTC builds for one device, and there is none here; "
            "say which in its block (`arch: sm_90`), or install the CUDA toolkit"
        )
    flags = list(_device_flags(checked_flags(kernel, nvcc=True)))
    return [
        *compiler.argv,
        f"-arch={_one_of(stated, target.arch)}",
        *([] if any(flag.startswith("-std=") for flag in flags) else ["-std=c++17"]),
        "-default-device",
        *("-Xptxas", "-v"),
        *(f"-I{path}" for path in found.headers),
        *flags,
    ]


def _one_of(stated: list[str], device: str | None) -> str:
    """The newest of the stated architectures that runs here."""
    if not stated:
        return f"sm_{device}"
    usable = [name for name in stated if device is None or runs_on([name], device)]
    return max(usable, key=lambda name: int(re.sub(r"\D", "", name))).replace("compute", "sm")


def _device_flags(flags: list[str]) -> Iterator[str]:
    words = iter(flags)
    for word in words:
        if word in ("-Xptxas", "--ptxas-options"):
            yield from ("-Xptxas", next(words))
        elif _OF_DEVICES.fullmatch(word):
            yield word


def _folders() -> Iterator[Path]:
    for home in _homes():
        yield from (home / name for name in ("lib64", "lib"))
        yield from home.glob("targets/*/lib")
    for root in _packages():
        yield from sorted(root.glob("*/lib"), reverse=True)


def _headers() -> Iterator[Path]:
    """Folders with CUDA's headers: what half-precision types are made of."""
    roots = [*(home / "include" for home in _homes())]
    roots += [path for root in _packages() for path in sorted(root.glob("*/include"), reverse=True)]
    for root in roots:
        yield from (path for path in (root, root / "cccl") if path.is_dir())


def _homes() -> list[Path]:
    stated = [Path(home) for name in _HOMES if (home := os.environ.get(name))]
    return [*stated, _USUAL_HOME]


def _packages() -> list[Path]:
    """Folders of the `nvidia` namespace, without importing anything."""
    spec = importlib.util.find_spec("nvidia")
    return [Path(path) for path in spec.submodule_search_locations or ()] if spec is not None else []


def _number(path: Path) -> tuple[int, int]:
    found = _NUMBERED.fullmatch(path.name)
    assert found is not None
    return int(found[1]), int(found[2] or 0)
