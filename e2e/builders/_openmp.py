"""Whether the C++ compiler can build with OpenMP."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from e2e.builders._compile import run_compiler
from e2e.builders._toolchain import Compiler
from e2e.errors import EnvironmentFault

OPENMP = "-fopenmp"
_TIMEOUT_S = 60.0
_PROBE = "#include <omp.h>\nint probe() { return omp_get_max_threads(); }\n"


def has_openmp(compiler: Compiler, cache: Path) -> bool:
    """Whether a library builds with OpenMP; tried once per compiler, since it costs a compilation.

    Raises:
        EnvironmentFault: the cache cannot be written.
    """
    memory = cache / "index" / "openmp.json"
    try:
        known = json.loads(memory.read_text(encoding="utf-8"))
        if known.get("compiler") == compiler.identity:
            return bool(known["works"])
    except (OSError, ValueError, KeyError, AttributeError, RecursionError):
        pass  # not asked yet, or damaged: ask now
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as name:
            works = _builds(compiler, Path(name))
            new = Path(name) / "new"
            new.write_text(json.dumps({"compiler": compiler.identity, "works": works}), encoding="utf-8")
            os.replace(new, memory)
    except OSError as error:
        raise EnvironmentFault(
            f"the build cache {cache} cannot be used: {error}; set E2E_CACHE_DIR to a writable folder"
        ) from error
    return works


def _builds(compiler: Compiler, folder: Path) -> bool:
    source = folder / "probe.cpp"
    source.write_text(_PROBE, encoding="utf-8")
    argv = [*compiler.argv, "-shared", "-fPIC", OPENMP, "-o", str(folder / "probe.so"), str(source)]
    code, _ = run_compiler(argv, folder=folder, timeout_s=_TIMEOUT_S)
    return code == 0
