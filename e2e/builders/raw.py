"""Bare `extern "C" __global__` functions with declared launches: the candidate runs no host code."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.builders._cache import DEPENDENCY_FLAGS, OUT, Recipe, build_once
from e2e.builders._calls import (
    arguments,
    bind_failed,
    entry_for,
    require_device,
    scalar_types,
    unknown_argument,
)
from e2e.builders._driver import Driver, DriverError, LaunchConfig
from e2e.builders._nvcc import nvcc_command
from e2e.errors import CandidateError
from e2e.protocols import BuildTarget, Built, Op, OpCall
from e2e.schema.constraint import evaluate
from e2e.schema.kernel import Kernel, Launch

_MAX_PLANS = 256
"""Shapes remembered; a workload has a handful, and generation one per length."""
_MAX_SIZE = 2**31 - 1
_SCALARS: Mapping[str, Any] = {"float": ctypes.c_float, "int": ctypes.c_longlong, "bool": ctypes.c_bool}


class RawBuilder:
    """Builds a cubin and launches its function through the driver."""

    def build(self, kernel: Kernel, target: BuildTarget) -> Built:
        """Compile to a cubin with nvcc, or find in the cache.

        Raises:
            UsageError: a flag that a manifest may not hold.
            CandidateError: `build_failed` or `timed_out`.
            EnvironmentFault: no toolkit, no CUDA.
        """
        require_device(kernel, target)
        nvcc = nvcc_command(kernel, target)
        source = str(Path(kernel.path or "").absolute())
        argv = [*nvcc.argv, "-cubin", *DEPENDENCY_FLAGS, "-o", OUT, source]
        recipe = Recipe(kernel, "raw", tuple(argv), "kernel.cubin", (nvcc.compiler.identity,), versioned=nvcc.headers)
        return build_once(recipe, target)

    def bind(self, built: Built, op: Op, dtype: str) -> Callable[..., Any]:
        """The function as the op's call: launches on torch's current stream and returns the output.

        Bare pointers know no strides: what is not contiguous is copied, and that is part of the timed call.

        Raises:
            CandidateError: `bind_failed` or `dtype_not_supported`.
        """
        entry = entry_for(built, dtype)
        names = arguments(built, op) or [*op.tensor_names, *op.scalar_names, "out"]
        launch = built.kernel.manifest.launch
        if launch is None:
            raise bind_failed(built, "launch: missing; raw needs one")
        import torch

        try:
            driver = Driver()
            torch.cuda.init()
            torch.cuda.synchronize()  # makes the device's context, without which nothing can be loaded
            function = driver.load(Path(built.artifact).read_bytes(), entry)
        except (OSError, RuntimeError) as error:
            raise bind_failed(built, f"entry: {entry!r} cannot be loaded: {error}") from error
        bare = _Bare(driver, function, torch.cuda.current_device(), launch, names)
        return _caller(bare, op, built)


@dataclass(frozen=True)
class _Bare:
    """A loaded function and what its launches are made of."""

    driver: Driver
    function: int
    device: int
    launch: Launch
    names: list[str]


class _Plan:
    """One launch, for calls of one shape: only stream and addresses are filled in per call."""

    def __init__(self, geometry: tuple[int, ...], values: list[Any], sources: list[tuple[Any, int]]) -> None:
        self.geometry, self.values = geometry, values
        self.launches = 0 not in geometry[:3]
        self.sources = sources
        """Addresses to fill in, each with its tensor's place: the call's tensors, then the output."""
        self.config = LaunchConfig(*geometry)
        self.config_at = ctypes.addressof(self.config)
        self.arguments = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        self.arguments_at = ctypes.addressof(self.arguments)


class _Plans(threading.local):
    """Plans by shape, per thread: a plan is filled in by its call, and autograd calls from its own thread."""

    def __init__(self) -> None:
        self.by_shape: dict[Any, _Plan] = {}


def _caller(bare: _Bare, op: Op, built: Built) -> Callable[..., Any]:
    from torch._C import _cuda_getCurrentRawStream as current_stream

    plans, count, allocate = _Plans(), len(op.tensor_names), op.allocate
    launch, function, device = bare.driver.launch, bare.function, bare.device

    def call(*args: Any) -> Any:
        out = allocate(*args)
        tensors, key = [], list(args)
        for place in range(count):
            tensor = args[place]
            if tensor is not None:
                key[place] = tensor.shape
                tensor = tensor if tensor.is_contiguous() else tensor.contiguous()
            tensors.append(tensor)
        target = out if out.is_contiguous() else out.contiguous()
        tensors.append(target)
        plan = plans.by_shape.get(tuple(key))
        if plan is None:
            if len(plans.by_shape) >= _MAX_PLANS:
                plans.by_shape.clear()
            plan = plans.by_shape[tuple(key)] = _plan(bare, op, built, OpCall(args[:count], args[count:]))
        if not plan.launches:
            return out
        for value, place in plan.sources:
            tensor = tensors[place]
            value.value = None if tensor is None else tensor.data_ptr()
        plan.config.stream = current_stream(device)
        code = launch(plan.config_at, function, plan.arguments_at, None)
        if code:
            raise _refused(bare, built, plan, code)
        return out if target is out else out.copy_(target)

    return call


def _plan(bare: _Bare, op: Op, built: Built, call: OpCall) -> _Plan:
    """Geometry and argument list of one shape."""
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
    plan = _Plan(geometry, *_values(bare.names, op, built, call))
    if plan.launches:
        try:
            bare.driver.allow_shared(bare.function, shared)
        except DriverError as error:
            raise bind_failed(built, f"launch: {shared} bytes of shared memory: {error}") from error
    return plan


def _values(names: list[str], op: Op, built: Built, call: OpCall) -> tuple[list[Any], list[tuple[Any, int]]]:
    """One C value per argument; those of tensors are filled in per call."""
    dims, types = op.dims(call), scalar_types(op)
    tensors = [*op.tensor_names]
    scalars = dict(zip(op.scalar_names, call.scalars, strict=True))
    values: list[Any] = []
    sources: list[tuple[Any, int]] = []
    for name in names:
        if name in tensors or name == "out":
            value: Any = ctypes.c_void_p()
            place = tensors.index(name) if name in tensors else len(tensors)
            sources.append((value, place))
        elif name in scalars:
            kind = _SCALARS.get(types.get(name, "float"))
            if kind is None:
                raise bind_failed(built, f"args: `{name}` is text or a list, which a raw kernel cannot take")
            value = kind(scalars[name] or 0)  # absent ones are 0
        elif isinstance(dims.get(name), int):
            value = ctypes.c_longlong(int(dims[name]))
        else:
            known = [*tensors, *scalars, "out", *(key for key, size in dims.items() if isinstance(size, int))]
            raise unknown_argument(built, name, known)
        values.append(value)
    return values, sources


def _three(sizes: list[int]) -> tuple[int, int, int]:
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def _refused(bare: _Bare, built: Built, plan: _Plan, code: int) -> CandidateError:
    grid, block, shared = plan.geometry[:3], plan.geometry[3:6], plan.geometry[6]
    said = bare.driver.describe("cuLaunchKernelEx", code)
    where = f"(grid {grid}, block {block}, {shared} bytes of shared memory)"
    return CandidateError(f"{built.kernel.spec}: {said} {where}", code="candidate_raised")


PLUGIN = RawBuilder()
