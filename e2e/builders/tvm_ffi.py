"""C++ and CUDA sources that export functions through tvm-ffi; one compiler call, no build system."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from e2e.builders._adapt import adapted
from e2e.builders._cache import DEPENDENCY_FLAGS, OUT, Recipe, build_once
from e2e.builders._calls import (
    BORROWED,
    Bound,
    arguments,
    bind_failed,
    entry_for,
    extras_of,
    preparing,
    require_device,
)
from e2e.builders._flags import checked_flags
from e2e.builders._nvcc import nvcc_command
from e2e.builders._openmp import OPENMP, has_openmp
from e2e.builders._sanitize import sanitizing
from e2e.builders._toolchain import cpu_identity, host_compiler, tvm_ffi
from e2e.errors import EnvironmentFault
from e2e.protocols import BuildTarget, Built, Op, output_count
from e2e.schema.kernel import Kernel

_BASE = ("-O3", "-std=c++17", "-shared", "-fPIC")


class TvmFfiBuilder:
    """Builds a shared library and binds its exported function."""

    def build(self, kernel: Kernel, target: BuildTarget) -> Built:
        """Compile with g++ (device cpu) or nvcc (device cuda), or find in the cache.

        Raises:
            UsageError: a flag that a manifest may not hold; a CPU kernel in a CUDA run.
            CandidateError: `build_failed` or `timed_out`.
            EnvironmentFault: no compiler, no toolkit, no CUDA.
        """
        require_device(kernel, target)
        cuda = kernel.manifest.device == "cuda"
        return build_once(_cuda_recipe(kernel, target) if cuda else _cpu_recipe(kernel, target), target)

    def bind(self, built: Built, op: Op, dtype: str) -> Callable[..., Any]:
        """The exported function as the op's call: allocates the output, passes it last, returns it.

        tvm-ffi takes torch tensors as they are and sets the tensors' current stream around each call.

        Raises:
            CandidateError: `bind_failed` or `dtype_not_supported`.
        """
        entry = entry_for(built, dtype)
        own_way = built.kernel.manifest.outputs == "return" or bool(built.kernel.manifest.ranks)
        names = None if own_way else arguments(built, op)
        module = _loaded(built)
        function = _function(module, built, "entry", entry)
        backward = _backward(module, built)
        if own_way:
            if backward is not None or extras_of(built):
                raise bind_failed(built, "backward, saves, workspace: not together with `outputs: return` or `ranks`")
            return adapted(function, op, built)
        if names is None and backward is None and not extras_of(built) and output_count(op) == 1:
            return _direct(function, op.allocate)
        return Bound(op, built, function, names, backward)

    def prepare(self, built: Built, op: Op, dtype: str) -> Callable[..., Any]:
        """See `preparing`."""
        name = str(built.kernel.manifest.prepare)
        return preparing(_function(_loaded(built), built, "prepare", name), op, built)


def _loaded(built: Built) -> Any:
    import tvm_ffi

    try:
        # Kept for the life of the process: unloading code that a stream may still run is never safe.
        return tvm_ffi.load_module(built.artifact, keep_module_alive=True)
    except (RuntimeError, OSError) as error:
        reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        raise bind_failed(built, f"the built library does not load: {reason}") from error


def _function(module: Any, built: Built, field: str, name: str) -> Callable[..., Any]:
    try:
        found: Callable[..., Any] = module.get_function(name)
    except AttributeError as error:
        offered = ", ".join(_exported(built.artifact)) or "nothing"
        raise bind_failed(built, f"{field}: {name!r} is not exported; exported: {offered}") from error
    return found


def _direct(function: Callable[..., Any], allocate: Callable[..., Any]) -> Callable[..., Any]:
    # Nearly every eager call of a candidate passes here: nothing may be added.
    def call(*args: Any) -> Any:
        out = allocate(*args)
        function(*args, out)
        return out

    call.by_hand = (allocate, function)  # type: ignore[attr-defined]  # what `numerics.exercise.plumbing` measures against
    return call


def _backward(module: Any, built: Built) -> Callable[..., Any] | None:
    """The kernel's own backward: a gradient for every tensor of the forward, into memory like it.

    Raises:
        CandidateError: `bind_failed`: nothing is exported under that name.
    """
    name = built.kernel.manifest.backward
    if name in (None, BORROWED):
        return None
    function = _function(module, built, "backward", str(name))

    def call(gradients: Sequence[Any], tensors: Sequence[Any], saved: Sequence[Any]) -> tuple[Any, ...]:
        made = [None if tensor is None else tensor.new_empty(tensor.shape) for tensor in tensors]
        there = [[item for item in items if item is not None] for items in (tensors, made)]
        function(*(gradient.contiguous() for gradient in gradients), *there[0], *saved, *there[1])
        return tuple(made)

    return call


def _cpu_recipe(kernel: Kernel, target: BuildTarget) -> Recipe:
    compiler, package = host_compiler(), tvm_ffi()
    flags = checked_flags(kernel, nvcc=False)
    openmp = has_openmp(compiler, target.cache)
    if OPENMP in flags and not openmp:
        raise EnvironmentFault(
            f"{kernel.spec} asks for {OPENMP}, which {compiler.argv[-1]} cannot do here; "
            "install its OpenMP runtime (libgomp, or libomp-dev for clang), then see `e2e doctor`"
        )
    own = ["-fno-gnu-unique"] if "clang" not in compiler.identity else []
    library = str(package.lib)
    argv = [
        *compiler.argv,
        *_BASE,
        # Unique symbols are shared between all libraries of a process: two candidates would share variables.
        *own,
        *([OPENMP] if openmp else []),
        *flags,
        *sanitizing(target, cuda=False),
        *("-isystem", str(package.include)),
        *DEPENDENCY_FLAGS,
        *("-o", OUT, str(Path(kernel.path or "").absolute())),
        *(f"-L{library}", "-ltvm_ffi", f"-Wl,-rpath,{library}"),
        # A missing symbol is an error now, with its name, and not when a worker loads the library. Sanitizers'
        # own come from what is loaded before the process begins.
        *([] if target.sanitize else ["-Wl,-z,defs"]),
    ]
    native = (cpu_identity(),) if any("native" in flag for flag in flags) else ()
    identity = (compiler.identity, f"tvm-ffi {package.version}", *native)
    return Recipe(kernel, "tvm-ffi", tuple(argv), "kernel.so", identity, (package.include,))


def _cuda_recipe(kernel: Kernel, target: BuildTarget) -> Recipe:
    package = tvm_ffi()
    nvcc = nvcc_command(kernel, target)
    library = str(package.lib)
    argv = [
        *nvcc.argv,
        *sanitizing(target, cuda=True),
        *("-shared", "-Xcompiler", "-fPIC,-fno-gnu-unique"),
        *("-isystem", str(package.include)),
        *DEPENDENCY_FLAGS,
        *("-o", OUT, str(Path(kernel.path or "").absolute())),
        *(f"-L{library}", "-ltvm_ffi", "-Xlinker", f"-rpath,{library}", "-Xlinker", "-z,defs"),
    ]
    identity = (nvcc.compiler.identity, f"tvm-ffi {package.version}")
    return Recipe(kernel, "tvm-ffi", tuple(argv), "kernel.so", identity, (package.include, *nvcc.headers))


def _exported(artifact: str) -> list[str]:
    """Names of exported functions, read from the library's string table."""
    found = re.findall(rb"\0__tvm_ffi_(?!_)(\w+)(?=\0)", Path(artifact).read_bytes())
    return sorted({name.decode() for name in found})


PLUGIN = TvmFfiBuilder()
