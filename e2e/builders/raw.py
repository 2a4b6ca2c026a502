"""Bare `extern "C" __global__` functions with declared launches: the candidate runs no host code."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.builders._cache import DEPENDENCY_FLAGS, OUT, Recipe, build_once
from e2e.builders._calls import (
    bind_failed,
    entry_for,
    extras_of,
    output_names,
    require_device,
    scalar_types,
    unknown_argument,
)
from e2e.builders._driver import Driver, DriverError, LaunchConfig
from e2e.builders._nvcc import nvcc_command
from e2e.builders._nvrtc import Found, find_nvrtc, nvrtc_command, nvrtc_compiler
from e2e.builders._sanitize import sanitizing
from e2e.builders._toolchain import Compiler, find_nvcc
from e2e.errors import CandidateError
from e2e.protocols import BuildTarget, Built, Op, OpCall, outputs_of
from e2e.schema.constraint import evaluate
from e2e.schema.kernel import Kernel, Launch

_MAX_PLANS = 256
"""Shapes remembered; a workload has a handful, and generation one per length."""
_MAX_SIZE = 2**31 - 1
_SCALARS: Mapping[str, Any] = {"float": ctypes.c_float, "int": ctypes.c_longlong, "bool": ctypes.c_bool}


class RawBuilder:
    """Builds a cubin and launches its functions through the driver."""

    def build(self, kernel: Kernel, target: BuildTarget) -> Built:
        """Compile to a cubin with nvcc, where there is none with NVRTC, or find in the cache.

        Raises:
            UsageError: a flag that a manifest may not hold.
            CandidateError: `build_failed` or `timed_out`.
            EnvironmentFault: neither of the two, no CUDA.
        """
        require_device(kernel, target)
        found = None if find_nvcc() else find_nvrtc()
        return build_once(_by_nvcc(kernel, target) if found is None else _by_nvrtc(kernel, target, found), target)

    def bind(self, built: Built, op: Op, dtype: str) -> Callable[..., Any]:
        """The launches as the op's call: one after the other on torch's current stream; returns the outputs.

        Bare pointers know no strides: what is not contiguous is copied, and that is part of the timed call.

        Raises:
            CandidateError: `bind_failed` or `dtype_not_supported`.
        """
        launches = built.kernel.manifest.launch
        if not launches:
            raise bind_failed(built, "launch: missing; raw needs one")
        entries = [entry_for(built, dtype, launch.entry) for launch in launches]
        import torch
        from torch._C import _cuda_getCurrentRawStream

        try:
            driver = Driver()
            torch.cuda.init()
            torch.cuda.synchronize()  # makes the device's context, without which nothing can be loaded
            functions = driver.load(Path(built.artifact).read_bytes(), entries)
        except (OSError, RuntimeError) as error:
            raise bind_failed(built, f"entry: {error}") from error
        device = torch.cuda.current_device()
        return launcher(driver, functions, op, built, lambda: _cuda_getCurrentRawStream(device))


def _by_nvcc(kernel: Kernel, target: BuildTarget) -> Recipe:
    nvcc = nvcc_command(kernel, target)
    return _recipe(kernel, [*nvcc.argv, *sanitizing(target, cuda=True), "-cubin"], nvcc.compiler, nvcc.headers)


def _by_nvrtc(kernel: Kernel, target: BuildTarget, found: Found) -> Recipe:
    compiler = nvrtc_compiler(found)
    return _recipe(kernel, nvrtc_command(kernel, target, compiler, found), compiler, found.headers)


def _recipe(kernel: Kernel, argv: list[str], compiler: Compiler, headers: tuple[Path, ...]) -> Recipe:
    words = (*argv, *DEPENDENCY_FLAGS, "-o", OUT, str(Path(kernel.path or "").absolute()))
    return Recipe(kernel, "raw", words, "kernel.cubin", (compiler.identity,), versioned=headers)


@dataclass(frozen=True)
class _Bare:
    """A loaded function, how it is launched, and what it is given."""

    function: int
    launch: Launch
    names: list[str]


class _Plan:
    """One launch, for calls of one shape: only stream and addresses are filled in per call."""

    def __init__(
        self, function: int, geometry: tuple[int, ...], values: list[Any], sources: list[tuple[Any, int]]
    ) -> None:
        self.function, self.geometry, self.values = function, geometry, values
        self.launches = 0 not in geometry[:3]
        self.sources = sources
        """Addresses to fill in, each with its tensor's place: the call's tensors, the outputs, then scratch."""
        self.config = LaunchConfig(*geometry)
        self.config_at = ctypes.addressof(self.config)
        self.arguments = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        self.arguments_at = ctypes.addressof(self.arguments)


@dataclass(frozen=True)
class _Call:
    """All launches for calls of one shape, and the scratch memory that they share."""

    plans: list[_Plan]
    scratch: list[tuple[list[int], Any]]
    """Sizes and dtype of each."""


class _Calls(threading.local):
    """Plans by shape, per thread: a plan is filled in by its call, and autograd calls from its own thread."""

    def __init__(self) -> None:
        self.by_shape: dict[Any, _Call] = {}


def launcher(
    driver: Driver, functions: Sequence[int], op: Op, built: Built, current_stream: Callable[[], int]
) -> Callable[..., Any]:
    """The op's call over loaded functions, one for each launch of the manifest.

    Raises:
        CandidateError: `bind_failed`: no launch is given an output, or some scratch memory.
    """
    calls, count, allocate, launch = _Calls(), len(op.tensor_names), op.allocate, driver.launch
    bares = [
        _Bare(function, item, names)
        for function, item, names in zip(functions, built.kernel.manifest.launch, _names(op, built), strict=True)
    ]

    def call(*args: Any) -> Any:
        made = allocate(*args)
        tensors, key = [], list(args)
        for place in range(count):
            tensor = args[place]
            if tensor is not None:
                key[place] = tensor.shape
                tensor = tensor if tensor.is_contiguous() else tensor.contiguous()
            tensors.append(tensor)
        outputs = outputs_of(made)
        dense = [out if out.is_contiguous() else out.contiguous() for out in outputs]
        tensors += dense
        known = calls.by_shape.get(tuple(key))
        if known is None:
            if len(calls.by_shape) >= _MAX_PLANS:
                calls.by_shape.clear()
            known = _planned(driver, bares, op, built, OpCall(args[:count], args[count:]))
            calls.by_shape[tuple(key)] = known
        for sizes, dtype in known.scratch:
            tensors.append(args[0].new_empty(sizes, dtype=dtype))
        stream = current_stream()
        for plan in known.plans:
            if not plan.launches:
                continue
            for value, place in plan.sources:
                tensor = tensors[place]
                value.value = None if tensor is None else tensor.data_ptr()
            plan.config.stream = stream
            code = launch(plan.config_at, plan.function, plan.arguments_at, None)
            if code:
                raise _refused(driver, built, plan, code)
        for out, filled in zip(outputs, dense, strict=True):
            if out is not filled:
                out.copy_(filled)
        return made

    return call


def _names(op: Op, built: Built) -> list[list[str]]:
    """What every launch is given.

    Raises:
        CandidateError: `bind_failed`: memory that no launch is given.
    """
    manifest, outputs = built.kernel.manifest, output_names(op)
    handed = [*outputs, *(extra.name for extra in extras_of(built))]
    usual = manifest.args or [*op.tensor_names, *op.scalar_names, *handed]
    found = [launch.args or usual for launch in manifest.launch]
    for name in handed:
        if not any(name in names for names in found):
            raise bind_failed(built, f"args: no launch is given `{name}`, which is preallocated and passed in")
    return found


def _planned(driver: Driver, bares: Sequence[_Bare], op: Op, built: Built, call: OpCall) -> _Call:
    """Launches and scratch memory of one shape."""
    dims, extras = op.dims(call), extras_of(built)
    try:
        scratch = [(extra.shape(dims), extra.kind(dims)) for extra in extras]
    except ValueError as error:
        raise bind_failed(built, f"workspace: {error}") from error
    return _Call([_plan(driver, bare, op, built, call) for bare in bares], scratch)


def _plan(driver: Driver, bare: _Bare, op: Op, built: Built, call: OpCall) -> _Plan:
    """Geometry and argument list of one launch."""
    dims = op.dims(call)
    try:
        grid = [evaluate(item, dims) for item in bare.launch.grid]
        block = [evaluate(item, dims) for item in bare.launch.block]
        shared = evaluate(bare.launch.shared_bytes, dims)
    except ValueError as error:
        raise bind_failed(built, f"launch: {error}") from error
    geometry = (*_three(grid), *_three(block), shared)
    # ctypes would cut a larger number down without a word.
    if not 0 <= min(geometry) <= max(geometry) <= _MAX_SIZE:
        sizes = f"grid {grid}, block {block}, shared_bytes {shared}"
        raise bind_failed(built, f"launch: impossible for {dims}: {sizes}")
    plan = _Plan(bare.function, geometry, *_values(bare.names, op, built, call))
    if plan.launches:
        try:
            driver.allow_shared(bare.function, shared)
        except DriverError as error:
            raise bind_failed(built, f"launch: {shared} bytes of shared memory: {error}") from error
    return plan


def _values(names: list[str], op: Op, built: Built, call: OpCall) -> tuple[list[Any], list[tuple[Any, int]]]:
    """One C value per argument; those of tensors are filled in per call."""
    dims, types = op.dims(call), scalar_types(op)
    tensors = [*op.tensor_names, *output_names(op), *(extra.name for extra in extras_of(built))]
    scalars = dict(zip(op.scalar_names, call.scalars, strict=True))
    values: list[Any] = []
    sources: list[tuple[Any, int]] = []
    for name in names:
        if name in tensors:
            value: Any = ctypes.c_void_p()
            sources.append((value, tensors.index(name)))
        elif name in scalars:
            kind = _SCALARS.get(types.get(name, "float"))
            if kind is None:
                raise bind_failed(built, f"args: `{name}` is text or a list, which a raw kernel cannot take")
            value = kind(scalars[name] or 0)  # absent ones are 0
        elif isinstance(dims.get(name), int):
            value = ctypes.c_longlong(int(dims[name]))
        else:
            known = [*tensors, *scalars, *(key for key, size in dims.items() if isinstance(size, int))]
            raise unknown_argument(built, name, known)
        values.append(value)
    return values, sources


def _three(sizes: list[int]) -> tuple[int, int, int]:
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def _refused(driver: Driver, built: Built, plan: _Plan, code: int) -> CandidateError:
    grid, block, shared = plan.geometry[:3], plan.geometry[3:6], plan.geometry[6]
    said = driver.describe("cuLaunchKernelEx", code)
    where = f"(grid {grid}, block {block}, {shared} bytes of shared memory)"
    return CandidateError(f"{built.kernel.spec}: {said} {where}", code="candidate_raised")


PLUGIN = RawBuilder()
