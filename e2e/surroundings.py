"""Where a run happens, as far as it can be seen without torch; and whether that is where another one happened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from e2e.measure.devices import cuda_devices, driver_version
from e2e.schema.kernel import Kernel
from e2e.sources import digest

PACKAGES = ("torch", "transformers", "triton", "apache-tvm-ffi", "numpy")
_DECIDING = ("torch", "transformers", "triton")
"""Packages whose other version makes evidence stale."""


@dataclass(frozen=True)
class Surroundings:
    """What is installed and plugged in here."""

    packages: Mapping[str, str] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    driver: str | None = None
    kernels: Mapping[str, str] = field(default_factory=dict)
    """Hash by spec of those of a run's kernels whose sources are here."""


@dataclass(frozen=True)
class Comparison:
    """A stored environment beside this one."""

    changed: tuple[str, ...] = ()
    """`torch 2.11.0 -> 2.12.0`."""
    unseen: str | None = None
    """What could not be compared, and why."""


def surroundings(kernels: Sequence[Kernel] = ()) -> Surroundings:
    """What this machine shows, and those kernels as they are here; takes milliseconds without a CUDA driver."""
    gpus = tuple(device.model for device in cuda_devices() if device.model)
    hashes = {kernel.spec: found for kernel in kernels if (found := _digest(kernel)) is not None}
    return Surroundings(packages(), gpus, driver_version(), hashes)


def changed_kernels(stored: Sequence[Kernel], here: Surroundings) -> list[str]:
    """Kernels whose sources are here, and are not what was measured."""
    pairs = [(kernel, here.kernels.get(kernel.spec, kernel.sha256)) for kernel in stored]
    return [f"{kernel.spec} ({kernel.sha256[:12]} -> {now[:12]})" for kernel, now in pairs if now != kernel.sha256]


def _digest(kernel: Kernel) -> str | None:
    """None where a source is not here, or the kernel is one of several in its file."""
    if kernel.path is None or kernel.inside is not None:
        return None
    try:
        return digest(kernel.path, kernel.others)
    except (OSError, ValueError):
        return None


def packages() -> dict[str, str]:
    """Versions of the packages that decide how a step runs, where installed."""
    return {name: found for name in PACKAGES if (found := _version(name)) is not None}


def compare(stored: Mapping[str, Any], here: Surroundings) -> Comparison:
    """Differences that make evidence stale. What either side does not show is no difference.

    A run on a GPU is compared only where there is one: a CI job without can hold a verdict, not reproduce it.
    """
    is_gpu_run = stored.get("arch") is not None
    if is_gpu_run and not here.gpus:
        return Comparison(unseen="no CUDA device here")
    then = stored.get("packages")
    then = then if isinstance(then, dict) else {}
    pairs = [(name, then.get(name), here.packages.get(name)) for name in _DECIDING]
    if is_gpu_run:
        name = stored.get("device")
        pairs.append(("GPU", name, name if name in here.gpus else here.gpus[0]))
        pairs.append(("driver", stored.get("driver"), here.driver))
    known = [(what, before, now) for what, before, now in pairs if before is not None]
    changed = [f"{what} {before} -> {now}" for what, before, now in known if now not in (None, before)]
    hidden = [what for what, _, now in known if now is None]
    why = f"{', '.join(hidden)} cannot be seen here" if hidden else None if known else "the run stored none"
    return Comparison(tuple(changed), why)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
