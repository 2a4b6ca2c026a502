"""The few calls of the CUDA driver that a bare kernel needs, through ctypes. Worker side."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

_STATIC_SHARED_BYTES = 48 * 1024
"""Dynamic shared memory that every kernel may use; more has to be asked for (CUDA programming guide)."""
_MAX_DYNAMIC_SHARED = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES in cuda.h."""


class DriverError(RuntimeError):
    """A driver call failed; the message has CUDA's own name for it."""


class LaunchConfig(ctypes.Structure):
    """Geometry and stream of a launch: CUlaunchConfig in cuda.h."""

    _fields_ = (
        *[(f"{kind}_{axis}", ctypes.c_uint) for kind in ("grid", "block") for axis in "xyz"],
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


class Driver:
    """libcuda, already initialised by torch in this process."""

    def __init__(self) -> None:
        try:
            self._cuda = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise DriverError(f"the CUDA driver is not here: {error}") from error
        # The variant with a record: ctypes converts four arguments instead of eleven, two microseconds less.
        self.launch = self._cuda.cuLaunchKernelEx
        """(address of a LaunchConfig, function, address of the arguments, None) -> code, for `check`."""
        self.launch.argtypes = [ctypes.c_void_p] * 4

    def load(self, cubin: bytes, names: Sequence[str]) -> list[int]:
        """Handles of functions of a cubin, in the current context.

        Raises:
            DriverError: the cubin is for another device, or holds no such function.
        """
        module = ctypes.c_void_p()
        loaded = self._cuda.cuModuleLoadData(ctypes.byref(module), cubin)
        self.check("the built kernel cannot be loaded: cuModuleLoadData", loaded)
        return [self._function(module, name) for name in names]

    def _function(self, module: ctypes.c_void_p, name: str) -> int:
        function = ctypes.c_void_p()
        found = self._cuda.cuModuleGetFunction(ctypes.byref(function), module, name.encode())
        self.check(f"{name!r} cannot be loaded: cuModuleGetFunction", found)
        return int(function.value or 0)

    def allow_shared(self, function: int, shared_bytes: int) -> None:
        """Let a function use that much dynamic shared memory.

        Raises:
            DriverError: the device has less.
        """
        if shared_bytes > _STATIC_SHARED_BYTES:
            handle = ctypes.c_void_p(function)
            code = self._cuda.cuFuncSetAttribute(handle, _MAX_DYNAMIC_SHARED, ctypes.c_int(shared_bytes))
            self.check("cuFuncSetAttribute", code)

    def check(self, call: str, code: int) -> None:
        """Raise DriverError unless `code` is success."""
        if code:
            raise DriverError(self.describe(call, code))

    def describe(self, call: str, code: int) -> str:
        """A result code in CUDA's own words."""
        name, text = ctypes.c_char_p(), ctypes.c_char_p()
        self._cuda.cuGetErrorName(code, ctypes.byref(name))
        self._cuda.cuGetErrorString(code, ctypes.byref(text))
        said = (name.value or f"error {code}".encode()).decode()
        return f"{call}: {said} ({(text.value or b'unknown').decode()})"
