"""Which device a run uses, read from the driver itself: the parent has no torch to ask."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from e2e.errors import EnvironmentFault, UsageError

_MAJOR, _MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR in cuda.h."""


@dataclass(frozen=True)
class Device:
    """Where to run."""

    name: str
    """As torch takes it: `cpu` or `cuda:0`."""
    arch: str | None = None
    """Compute capability without the dot, such as `90`."""
    uuid: str | None = None
    model: str | None = None
    """Such as `NVIDIA H200`, in torch's words too."""


def find_device(asked: str, *, kernel_device: str | None) -> Device:
    """The device for `--device`, or for `auto` the one that the kernel declares.

    Raises:
        UsageError: not the name of a device, or not the kernel's kind.
        EnvironmentFault: there is no such device here.
    """
    kind, _, index = asked.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (index and not index.isdigit()):
        raise UsageError(f"--device {asked}: expected auto, cpu, cuda or cuda:N")
    devices = cuda_devices()
    if kind == "auto":
        kind = kernel_device or ("cuda" if devices else "cpu")
    if kernel_device is not None and kind != kernel_device:
        raise UsageError(f"the kernel runs on {kernel_device}, but --device says {kind}")
    if kind == "cpu":
        return Device("cpu")
    place = int(index or 0)
    if place >= len(devices):
        raise EnvironmentFault(
            f"this needs a CUDA device, and {'none is' if not devices else f'only {len(devices)} are'} visible here. "
            "On this machine try a CPU kernel, such as kernels/rmsnorm.cpp; `e2e doctor` says what works"
        )
    return devices[place]


def cuda_devices() -> list[Device]:
    """CUDA devices the driver shows (CUDA_VISIBLE_DEVICES is obeyed); empty without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []
    return [_describe(driver, index) for index in range(count.value)]


def _describe(driver: ctypes.CDLL, index: int) -> Device:
    handle, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    driver.cuDeviceGet(ctypes.byref(handle), index)
    driver.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, handle)
    driver.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, handle)
    uuid = (ctypes.c_ubyte * 16)()
    driver.cuDeviceGetUuid(ctypes.byref(uuid), handle)
    model = ctypes.create_string_buffer(256)
    driver.cuDeviceGetName(model, len(model), handle)
    name = model.value.decode("utf-8", "replace") or None
    return Device(f"cuda:{index}", f"{major.value}{minor.value}", bytes(uuid).hex(), name)


def driver_version() -> str | None:
    """Version of the loaded NVIDIA kernel module, such as `580.65.06`; None where it cannot be seen."""
    try:
        return Path("/sys/module/nvidia/version").read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None


@contextlib.contextmanager
def reserved(device: Device, folder: Path, waiting: Callable[[str], None]) -> Iterator[None]:
    """Hold a GPU for one e2e run at a time; a CPU is not held."""
    if device.uuid is None:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / f"{device.uuid}.lock", os.O_CREAT | os.O_RDWR, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting(f"another e2e run holds {device.name}; waiting for it to end")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
