"""Compilers and packages that builds need: found by running them, never by importing them."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from e2e.errors import EnvironmentFault

_ENVIRONMENT = (
    *("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX"),
    *("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN"),
)
"""Variables that change what a compiler makes of the same command line."""
_PROBE_TIMEOUT_S = 20.0
_USUAL_NVCC = Path("/usr/local/cuda/bin/nvcc")
_DOCTOR = "then see `e2e doctor`"


@dataclass(frozen=True)
class Compiler:
    """A compiler that runs here."""

    argv: tuple[str, ...]
    """How to start it; more than one word with `CXX='ccache g++'`."""
    identity: str
    """Version and variables; two compilers with one identity make the same of the same input."""
    toolkit: Path | None = None
    """Root of the CUDA toolkit, for nvcc."""


@dataclass(frozen=True)
class TvmFfi:
    """The installed tvm-ffi package."""

    include: Path
    lib: Path
    """Folder that holds libtvm_ffi."""
    version: str


def host_compiler() -> Compiler:
    """`CXX`, else the first of g++, clang++ and c++ on PATH.

    Raises:
        EnvironmentFault: there is none, or it does not run.
    """
    if stated := shlex.split(os.environ.get("CXX", "")):
        return Compiler(tuple(stated), _host_identity(stated))
    found = next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))), None)
    if found is None:
        raise EnvironmentFault(
            "no C++ compiler: neither CXX is set nor g++ or clang++ on PATH; "
            f"install one (Debian, Ubuntu: apt install g++), {_DOCTOR}"
        )
    return Compiler((found,), _host_identity([found]))


def find_nvcc() -> Path | None:
    """The one of CUDA_HOME, PATH or /usr/local/cuda."""
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    places = [Path(home) / "bin" / "nvcc" for home in homes if home]
    on_path = shutil.which("nvcc")
    places += [Path(on_path)] if on_path else []
    places.append(_USUAL_NVCC)
    return next((place for place in places if os.access(place, os.X_OK)), None)


def cuda_compiler() -> Compiler:
    """Nvcc, asked where its toolkit is: it may be a wrapper script.

    Raises:
        EnvironmentFault: there is none, or it does not run.
    """
    nvcc = find_nvcc()
    if nvcc is None:
        raise EnvironmentFault(
            "no CUDA compiler: nvcc is neither in CUDA_HOME nor on PATH; "
            f"install the CUDA toolkit (12.4 or newer) or set CUDA_HOME, {_DOCTOR}"
        )
    # A dry run names the toolkit and the exact build without compiling anything.
    said = ask([str(nvcc), "--dryrun", "-x", "cu", os.devnull, "-o", os.devnull])
    top = re.search(r"^#\$ TOP=(.+)$", said, re.MULTILINE)
    toolkit = Path(top[1].strip()).resolve() if top else nvcc.resolve().parent.parent
    version = ".".join(re.findall(r"-D__CUDACC_VER_(?:MAJOR|MINOR|BUILD)__=(\d+)", said)[:3])
    # nvcc hands host code to the first g++ on PATH, whose version is part of the output.
    host = shutil.which("g++")
    host_identity = _host_identity([host]) if host else "no g++"
    return Compiler((str(nvcc),), f"nvcc {version or said} in {toolkit}; {host_identity}", toolkit)


def tvm_ffi() -> TvmFfi:
    """Headers and library of the installed tvm-ffi, without importing it (it would import torch).

    Raises:
        EnvironmentFault: not installed.
    """
    spec = importlib.util.find_spec("tvm_ffi")
    if spec is None or spec.origin is None:
        raise EnvironmentFault(f"the package apache-tvm-ffi is missing: pip install apache-tvm-ffi, {_DOCTOR}")
    root = Path(spec.origin).parent
    return TvmFfi(root / "include", root / "lib", importlib.metadata.version("apache-tvm-ffi"))


def cpu_identity() -> str:
    """What `-march=native` means on this machine."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    kept = re.findall(r"^(?:vendor_id|cpu family|model|flags|Features|CPU part)\s*:.*$", text, re.MULTILINE)
    # Every core repeats the lines; one set of them is enough, and hybrid parts keep their differences.
    return hashlib.sha256("\n".join(sorted(set(kept))).encode()).hexdigest()


def _host_identity(argv: list[str]) -> str:
    said = ask([*argv, "--version"]).split("\n", 1)[0]
    variables = [f"{name}={os.environ[name]}" for name in _ENVIRONMENT if os.environ.get(name)]
    return "; ".join([said, str(Path(shutil.which(argv[-1]) or argv[-1]).resolve()), *variables])


def ask(argv: list[str]) -> str:
    """Both output streams of a compiler asked about itself.

    Raises:
        EnvironmentFault: it does not run, or runs and fails.
    """
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        ran = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROBE_TIMEOUT_S,
            env=environment,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentFault(f"the compiler {argv[0]} does not run: {error}; {_DOCTOR}") from error
    text = (ran.stdout + ran.stderr).decode("utf-8", errors="replace").strip()
    if ran.returncode != 0:
        reason = text.split("\n", 1)[0][:200] or f"it ends with code {ran.returncode}"
        raise EnvironmentFault(f"the compiler {argv[0]} does not run: {reason}; {_DOCTOR}")
    return text
