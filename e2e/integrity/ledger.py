"""What a candidate may not change: functions, modules, settings and hooks of the process that all arms share.

Taken before the candidate is imported, and compared after every request that ran it, never while anything is timed.
It sees what Python can see: native code that rewrites memory, or a candidate that finds this very record and rewrites
it, is beyond it (docs/threats.md).
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from types import FunctionType, ModuleType
from typing import Any

from e2e.errors import CandidateError

WATCHED = ("torch", "transformers", "e2e", "safetensors")
"""Packages whose functions belong to every arm, or to the measurement."""
UNWATCHED = (
    *("torch._dynamo", "torch._inductor", "torch._functorch", "torch.fx", "torch.utils._triton"),
    *("torch.ao", "torch.distributed", "torch.export", "torch.onnx", "torch.jit", "torch.package", "torch.testing"),
    *("torch._decomp", "torch._export", "torch._higher_order_ops", "torch._prims", "torch._refs", "torch._subclasses"),
    *("torch._numpy", "torch.distributions", "torch.quantization", "torch.sparse"),
    *("transformers.generation", "transformers.pipelines", "transformers.quantizers", "transformers.utils"),
)
"""The compiler swaps parts of itself while it works, and what it compiles is compared with what runs eagerly; the rest
no step runs through."""
STANDARD = ("time", "builtins", "statistics", "random", "math", "os", "json", "socket", "struct", "signal", "threading")
_VARIABLES = ("CUDA_", "CUBLAS_", "NVIDIA_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "TORCH_", "PYTORCH_", "LD_")
_BUILDING = ("CUDA_HOME", "CUDA_PATH", "TORCH_CUDA_ARCH_LIST", "TORCH_EXTENSIONS_DIR", "TORCH_LOGS")
"""Read by compilers and loggers only."""
_PERSISTING_L2, _L2_FETCH = 6, 5
"""CUlimit of the driver."""


class Ledger:
    """The state of this process at one moment."""

    def __init__(self) -> None:
        self._modules = {name: module for name, module in sys.modules.items() if _is_watched(name)}
        self._spaces = [
            (where, space, _callables(space))
            for name, module in self._modules.items()
            for where, space in _spaces_of(name, module)
        ]
        classes = (value for _, _, saved in self._spaces for value in saved.values() if isinstance(value, type))
        self._classes = [(item, frozenset(vars(item))) for item in classes]
        functions = (value for _, _, saved in self._spaces for value in saved.values())
        self._code = [(item, item.__code__, item.__defaults__) for item in functions if type(item) is FunctionType]
        self._settings = settings()
        self._registered = _registered()

    def replaced(self) -> list[str]:
        """Functions, classes and modules that are not what they were, and kernels registered over torch's own."""
        found = [
            f"{where}.{name}"
            for where, space, saved in self._spaces
            for name, value in saved.items()
            if (now := space.get(name)) is not value and not _is_torchs_own(where, now)
        ]
        found += [f"{owner.__module__}.{owner.__qualname__}.{name}" for owner, name in self._hidden()]
        found += [
            f"the code of {item.__module__}.{item.__qualname__}"
            for item, code, defaults in self._code
            if item.__code__ is not code or item.__defaults__ is not defaults
        ]
        found += [f"module {name}" for name, module in self._modules.items() if sys.modules.get(name) is not module]
        return found + [f"torch.ops {name}" for name in sorted(_registered() - self._registered)]

    def _hidden(self) -> Iterator[tuple[type, str]]:
        """Names that a class has of its own now, and inherited before."""
        for owner, names in self._classes:
            if len(vars(owner)) > len(names) and _is_watched(owner.__module__):
                for name in vars(owner).keys() - names:
                    inherits = any(hasattr(base, name) for base in owner.__mro__[1:])
                    if inherits and not _is_torchs_own(owner.__module__, vars(owner)[name]):
                        yield owner, name

    def renew(self) -> None:
        """Take down the settings anew: e2e itself changed some."""
        self._settings = settings()

    def changed(self) -> list[str]:
        """Settings that are not what they were, with both values."""
        now = settings()
        names = [name for name in {**self._settings, **now} if self._settings.get(name) != now.get(name)]
        return [f"{name}: {_short(self._settings.get(name))} before, {_short(now.get(name))} now" for name in names]

    def verify(self, when: str, *, is_whole: bool = True) -> None:
        """Nothing has changed; of functions and modules only if it is asked for: to look at all takes milliseconds.

        Raises:
            CandidateError: `tampered` or `settings_changed`, with what was changed.
        """
        replaced = self.replaced() if is_whole else []
        if replaced:
            raise CandidateError(f"{when} these were replaced: {_some(replaced)}", code="tampered")
        changed = self.changed()
        if changed:
            raise CandidateError(f"{when} the process has other settings: {_some(changed)}", code="settings_changed")


def _is_watched(name: str) -> bool:
    if any(name == other or name.startswith(f"{other}.") for other in UNWATCHED):
        return False
    return name in STANDARD or name.partition(".")[0] in WATCHED


def _spaces_of(name: str, module: ModuleType) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The module's own names, and those of the classes that it defines."""
    yield name, vars(module)
    for key, value in list(vars(module).items()):
        if isinstance(value, type) and value.__module__ == name and type(value).__name__ != "tensortype":
            yield f"{name}.{key}", vars(value)


def _is_torchs_own(where: str, now: Any) -> bool:
    """Whether torch put something of its own in a place of its own: its compiler does when it is imported, and runs.

    What a candidate does with torch's functions to torch itself shows in the baseline's outputs.
    """
    if not where.startswith("torch"):
        return False
    maker = now.fget if isinstance(now, property) else getattr(now, "__func__", now)
    code = getattr(maker, "__code__", None)
    if code is not None:
        return str(code.co_filename).startswith(_TORCH)
    return isinstance(maker, type) and maker.__module__.partition(".")[0] == "torch"


_TORCH = os.path.join(os.path.dirname(find_spec("torch").origin or ""), "")  # type: ignore[union-attr]


def _callables(space: Mapping[str, Any]) -> dict[str, Any]:
    """What can be called, or is called when it is read."""
    kinds = (property, staticmethod, classmethod)
    return {key: value for key, value in list(space.items()) if callable(value) or isinstance(value, kinds)}


def settings() -> dict[str, Any]:
    """Everything by which one piece of code changes how another runs, as far as it can be read."""
    return {**_torch_settings(), **_process_settings(), **_hooks()}


def _torch_settings() -> dict[str, Any]:
    import torch

    backends = torch.backends
    read: dict[str, Callable[[], Any]] = {
        "default dtype": torch.get_default_dtype,
        "default device": torch.get_default_device,
        "threads": torch.get_num_threads,
        "gradients": torch.is_grad_enabled,
        "inference mode": torch.is_inference_mode_enabled,
        "autocast": lambda: (torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")),
        "deterministic": lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.utils.deterministic.fill_uninitialized_memory,
        ),
        "matmul precision": torch.get_float32_matmul_precision,
        "cuda matmul": lambda: _flags(backends.cuda.matmul),
        "cudnn": lambda: (
            *(getattr(torch._C, f"_get_cudnn_{name}")() for name in ("enabled", "benchmark", "deterministic")),
            torch._C._get_cudnn_allow_tf32(),
        ),
        "mkldnn": torch._C._get_mkldnn_enabled,
        "attention kernels": lambda: (
            backends.cuda.flash_sdp_enabled(),
            backends.cuda.mem_efficient_sdp_enabled(),
            backends.cuda.math_sdp_enabled(),
            backends.cuda.cudnn_sdp_enabled(),
        ),
        "denormals": _denormals,
        "cpu capability": backends.cpu.get_cpu_capability,
        "anomaly mode": torch.is_anomaly_enabled,
        "function modes": torch._C._len_torch_function_stack,
        "dispatch modes": torch._C._len_torch_dispatch_stack,
        "device limits": _device_limits,
    }
    return {name: value() for name, value in read.items()}


def _flags(backend: Any) -> tuple[Any, ...]:
    names = ("allow_tf32", "allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
    return tuple(getattr(backend, name) for name in names)


def _denormals() -> bool:
    """Whether the smallest numbers survive a multiplication: which a processor can be told to flush to zero."""
    smallest = sys.float_info.min
    return smallest * 0.5 > 0.0


def _device_limits() -> tuple[int, ...] | None:
    """The share of the L2 cache that is set aside, and how much is fetched at once; None where no device is in use."""
    import ctypes

    import torch

    if not torch.cuda.is_initialized():
        return None
    driver, found = ctypes.CDLL("libcuda.so.1"), []
    for limit in (_PERSISTING_L2, _L2_FETCH):
        value = ctypes.c_size_t()
        if driver.cuCtxGetLimit(ctypes.byref(value), limit) != 0:
            return None
        found.append(value.value)
    return tuple(found)


def _process_settings() -> dict[str, Any]:
    variables = {
        name: value for name, value in os.environ.items() if name.startswith(_VARIABLES) and name not in _BUILDING
    }
    return {
        "environment": variables,
        "affinity": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "limits": tuple(resource.getrlimit(getattr(resource, name)) for name in ("RLIMIT_AS", "RLIMIT_FSIZE")),
        "switch interval": sys.getswitchinterval(),
        "timers": tuple(signal.getitimer(which)[1] for which in (signal.ITIMER_REAL, signal.ITIMER_PROF)),
        "garbage collection": gc.isenabled(),
    }


def _hooks() -> dict[str, Any]:
    from torch.nn.modules import module

    names = ("forward", "forward_pre", "backward", "backward_pre")
    return {
        "tracing": (sys.gettrace() is not None, sys.getprofile() is not None, threading.gettrace() is not None),
        "collection callbacks": len(gc.callbacks),
        "signal handlers": tuple(repr(signal.getsignal(which)) for which in _SIGNALS),
        "module hooks": tuple(len(getattr(module, f"_global_{name}_hooks")) for name in names),
    }


_SIGNALS = (signal.SIGALRM, signal.SIGPROF, signal.SIGSEGV, signal.SIGTRAP, signal.SIGUSR1)


def _registered() -> set[str]:
    """Kernels that Python put in the place of torch's own, as `aten/NAME/KEY`."""
    from torch import library

    return {name for name in getattr(library, "_impls", ()) if name.startswith("aten/")}


def _short(value: Any) -> str:
    return repr(value)[:120]


def _some(found: list[str]) -> str:
    return ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
