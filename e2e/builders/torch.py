"""C++ and CUDA sources that bind themselves through torch (`torch/extension.h`, `PYBIND11_MODULE`)."""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import importlib.util
import re
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from e2e.builders._adapt import adapted
from e2e.builders._cache import DEPENDENCY_FLAGS, OUT, Recipe, build_once
from e2e.builders._calls import BORROWED, Saving, bind_failed, entry_for, preparing, require_device
from e2e.builders._flags import checked_flags
from e2e.builders._nvcc import nvcc_command
from e2e.builders._sanitize import sanitizing
from e2e.builders._toolchain import host_compiler
from e2e.errors import EnvironmentFault
from e2e.protocols import BuildTarget, Built, Op
from e2e.schema.kernel import Kernel

_NAME = "e2e_extension"
"""What the sources call TORCH_EXTENSION_NAME; every extension is loaded from a path of its own."""
_STATED_NAME = re.compile(rb"^\s*PYBIND11_MODULE\s*\(\s*(\w+)", re.MULTILINE)
_STANDARD = re.compile(r"-std=(c\+\+\d\d)")
_AS_TORCH_DOES = (
    *("-D__CUDA_NO_HALF_OPERATORS__", "-D__CUDA_NO_HALF_CONVERSIONS__"),
    *("-D__CUDA_NO_BFLOAT16_CONVERSIONS__", "-D__CUDA_NO_HALF2_OPERATORS__", "--expt-relaxed-constexpr"),
)
"""What torch gives nvcc: sources were written under these.

Source:
    `COMMON_NVCC_FLAGS` in torch.utils.cpp_extension.
"""


class TorchBuilder:
    """Builds an extension by one compiler call; the headers cost about a minute, once."""

    def build(self, kernel: Kernel, target: BuildTarget) -> Built:
        """Compile with g++ (device cpu) or nvcc (device cuda), or find in the cache.

        Raises:
            UsageError: a flag that a manifest may not hold; a CPU kernel in a CUDA run.
            CandidateError: `build_failed` or `timed_out`.
            EnvironmentFault: no compiler, no toolkit, no CUDA, no headers of Python.
        """
        require_device(kernel, target)
        return build_once(_recipe(kernel, target), target)

    def bind(self, built: Built, op: Op, dtype: str) -> Callable[..., Any]:
        """The exported function as the op's call, with the kernel's own backward where the manifest names one.

        Raises:
            CandidateError: `bind_failed` or `dtype_not_supported`.
        """
        import torch  # noqa: F401  # its library and its types come first

        module = _loaded(built)
        forward = adapted(_function(module, entry_for(built, dtype), built), op, built)
        backward = built.kernel.manifest.backward
        if backward in (None, BORROWED):
            return forward
        return Saving(op, built, forward, _function(module, str(backward), built))

    def prepare(self, built: Built, op: Op, dtype: str) -> Callable[..., Any]:
        """See `preparing`."""
        import torch  # noqa: F401  # its library and its types come first

        return preparing(_function(_loaded(built), str(built.kernel.manifest.prepare), built), op, built)

    def module_name(self, kernel: Kernel) -> str:
        """Under which its library was built, and has to be imported."""
        texts = b"\n".join(Path(path).read_bytes() for path in (str(kernel.path), *kernel.others))
        stated = [name.decode() for name in _STATED_NAME.findall(texts)]
        return stated[0] if stated and stated[0] != "TORCH_EXTENSION_NAME" else _NAME


@dataclass(frozen=True)
class _Torch:
    root: Path
    version: str
    standard: str

    @property
    def includes(self) -> list[Path]:
        return [self.root / "include", self.root / "include" / "torch" / "csrc" / "api" / "include"]


def _recipe(kernel: Kernel, target: BuildTarget) -> Recipe:
    torch, python = _torch(), Path(sysconfig.get_paths()["include"])
    if not (python / "Python.h").is_file():
        raise EnvironmentFault("the headers of Python are missing; install python3-dev, then see `e2e doctor`")
    folders = [word for path in (*torch.includes, python) for word in ("-isystem", str(path))]
    library = str(torch.root / "lib")
    tail = [
        *(f"-DTORCH_EXTENSION_NAME={_NAME}", "-DTORCH_API_INCLUDE_EXTENSION_H"),
        *folders,
        *DEPENDENCY_FLAGS,
        *("-o", OUT, str(Path(kernel.path or "").absolute())),
        *(f"-L{library}", "-ltorch", "-ltorch_cpu", "-lc10", "-ltorch_python"),
    ]
    versioned = (*torch.includes, python)
    if kernel.manifest.device == "cuda":
        nvcc = nvcc_command(kernel, target, standard=torch.standard)
        argv = [
            *nvcc.argv,
            *sanitizing(target, cuda=True),
            *_AS_TORCH_DOES,
            *("-shared", "-Xcompiler", "-fPIC,-fno-gnu-unique"),
            *tail,
            *("-ltorch_cuda", "-lc10_cuda", "-Xlinker", f"-rpath,{library}"),
        ]
        compiler, versioned = nvcc.compiler, (*versioned, *nvcc.headers)
    else:
        compiler = host_compiler()
        own = ["-fno-gnu-unique"] if "clang" not in compiler.identity else []
        base = ["-O3", f"-std={torch.standard}", "-shared", "-fPIC"]
        flags = [*checked_flags(kernel, nvcc=False), *sanitizing(target, cuda=False)]
        argv = [*compiler.argv, *base, *own, *flags, *tail, f"-Wl,-rpath,{library}"]
    identity = (compiler.identity, f"torch {torch.version}", sysconfig.get_python_version())
    return Recipe(kernel, "torch", tuple(argv), "kernel.so", identity, versioned)


def _torch() -> _Torch:
    """The installed torch, without importing it, and the dialect in which it compiles extensions."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise EnvironmentFault("torch is missing")
    root = Path(spec.origin).parent
    own = (root / "utils" / "cpp_extension.py").read_text(encoding="utf-8", errors="replace")
    return _Torch(root, importlib.metadata.version("torch"), max(_STANDARD.findall(own), default="c++17"))


def _loaded(built: Built) -> ModuleType:
    name = PLUGIN.module_name(built.kernel)
    loader = importlib.machinery.ExtensionFileLoader(name, built.artifact)
    spec = importlib.util.spec_from_file_location(name, built.artifact, loader=loader)
    assert spec is not None
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        raise bind_failed(built, f"the built extension does not load: {error}") from error
    return module


def _function(module: ModuleType, name: str, built: Built) -> Callable[..., Any]:
    function = getattr(module, name, None)
    if not callable(function):
        offered = ", ".join(item for item in dir(module) if not item.startswith("_")) or "nothing"
        raise bind_failed(built, f"entry: {name!r} is not exported; exported: {offered}")
    found: Callable[..., Any] = function
    return found


PLUGIN = TorchBuilder()
