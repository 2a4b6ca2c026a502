"""What a cold build costs: the shipped norms, and the same maths through `torch/extension.h`, in one run.

    python -m tests.cold_builds

Prints seconds of the clock and of processors, and ratios; exit code 1 when a shipped kernel's build takes longer than
its bound. The clock is only worth reading where the machine is quiet.
"""

from __future__ import annotations

import importlib.util
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from e2e import registry
from e2e.errors import E2EError
from e2e.measure.devices import cuda_devices
from e2e.protocols import BuildTarget
from e2e.reading import read_kernel

REPOSITORY = Path(__file__).parents[1]
PAIRS = (
    ("kernels/rmsnorm.cpp", "tests/kernels/torch_norm.cpp", 2.0),
    ("kernels/rmsnorm.cu", "tests/kernels/torch_norm.cu", 5.0),
)
"""A shipped kernel, its twin through torch's headers, and the most seconds that the first may take."""


class Cost(NamedTuple):
    """Of one build, in seconds."""

    clock_s: float
    processors_s: float


def main() -> int:
    """Every pair; says which bound was missed."""
    missed = 0
    print(f"{'kernel':<34}{'clock':>9}{'processors':>12}{'bound':>8}{'times the shipped':>20}")
    for shipped, twin, bound in PAIRS:
        own = built(shipped)
        if isinstance(own, str):
            print(f"{shipped:<34}{own}")
            continue
        missed += own.clock_s > bound
        print(f"{shipped:<34}{own.clock_s:>7.1f} s{own.processors_s:>10.1f} s{bound:>6.0f} s")
        other = built(twin)
        if isinstance(other, str):
            print(f"{twin:<34}{other}")
            continue
        ratio = other.processors_s / own.processors_s
        print(f"{twin:<34}{other.clock_s:>7.1f} s{other.processors_s:>10.1f} s{ratio:>27.1f}x")
    return 1 if missed else 0


def built(name: str) -> Cost | str:
    """One build into an empty cache; or why there is none."""
    kernel = read_kernel(str(REPOSITORY / name), op=None)
    is_cuda = kernel.manifest.device == "cuda"
    if is_cuda and kernel.manifest.binding == "torch" and not _has_torch_for_cuda():
        return "needs a torch with CUDA"
    devices = cuda_devices() if is_cuda else []
    with tempfile.TemporaryDirectory(prefix="e2e-cold-") as folder:
        arch = devices[0].arch if devices else None
        target = BuildTarget("cuda" if is_cuda else "cpu", arch, Path(folder), 600.0)
        start, before = time.perf_counter(), _children_s()
        try:
            registry.load("builders", kernel.manifest.binding).build(kernel, target)
        except E2EError as error:
            return error.message
        return Cost(time.perf_counter() - start, _children_s() - before)


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _has_torch_for_cuda() -> bool:
    spec = importlib.util.find_spec("torch")
    return spec is not None and spec.origin is not None and (Path(spec.origin).parent / "lib/libtorch_cuda.so").exists()


if __name__ == "__main__":
    sys.exit(main())
