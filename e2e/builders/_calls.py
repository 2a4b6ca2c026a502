"""From the op's call to the entry's call: the order of arguments, and which entry serves a dtype."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from e2e.errors import CandidateError, EnvironmentFault, UsageError
from e2e.protocols import OUT, BuildTarget, Built, Op, OpCall, output_count, outputs_of, parameters_of
from e2e.schema.constraint import evaluate
from e2e.schema.kernel import Kernel
from e2e.schema.workload import DType

BORROWED = "reference"
"""What a manifest's `backward` says where the kernel borrows the op's own."""


def require_device(kernel: Kernel, target: BuildTarget) -> None:
    """Refuse a kernel that cannot run on the run's device.

    Raises:
        EnvironmentFault: it needs CUDA, and this run has none.
        UsageError: it is for the CPU, and this run is on CUDA.
    """
    device = kernel.manifest.device
    if device == "cuda" and target.device != "cuda":
        raise EnvironmentFault(
            f"{kernel.spec} runs on CUDA, and this run is on the CPU (no CUDA device here, or --device cpu). "
            "Run it on a machine with a GPU, or try the CPU candidate kernels/rmsnorm.cpp; "
            "`e2e doctor` says what works here"
        )
    if device == "cpu" and target.device != "cpu":
        raise UsageError(f"{kernel.spec} runs on the CPU, and this run is on CUDA; pass --device cpu or a CUDA kernel")


def entry_for(built: Built, dtype: str, entry: str | Mapping[DType, str] | None = None) -> str:
    """Name of the function that serves `dtype`: of the manifest's entry, or of the one given.

    Raises:
        CandidateError: `dtype_not_supported`.
    """
    entry = entry or built.kernel.manifest.entry
    if isinstance(entry, str):
        return entry
    for known, name in entry.items():
        if known == dtype:
            return name
    stated = ", ".join(entry)
    raise CandidateError(f"{built.kernel.spec} has no entry for {dtype}, only for {stated}", code="dtype_not_supported")


def arguments(built: Built, op: Op) -> list[str] | None:
    """The manifest's `args`, or None when they are the op's own order followed by what is preallocated.

    Raises:
        CandidateError: `bind_failed`: an output is missing, or named twice.
    """
    names, outputs = built.kernel.manifest.args, output_names(op)
    extras = [extra.name for extra in extras_of(built)]
    if names is None or names == [*op.tensor_names, *op.scalar_names, *outputs, *extras]:
        return None
    for output in (*outputs, *extras):
        if names.count(output) != 1:
            raise bind_failed(built, f"args: must name `{output}` once: it is preallocated and passed in")
    return names


def output_names(op: Op) -> list[str]:
    """What preallocated outputs are called in `args`: `out`, or `out0`, `out1`, ... where the op has several."""
    count = output_count(op)
    return [OUT] if count == 1 else [f"{OUT}{number}" for number in range(count)]


@dataclass(frozen=True)
class Extra:
    """A tensor beside the op's own outputs: saved for the backward, or scratch."""

    name: str
    sizes: tuple[int | str, ...]
    dtype: str
    is_saved: bool

    def shape(self, dims: Mapping[str, int | str]) -> list[int]:
        """Its sizes in a call.

        Raises:
            ValueError: a size that the call's dimensions do not give.
        """
        return [evaluate(size, dims) for size in self.sizes]

    def kind(self, dims: Mapping[str, int | str]) -> Any:
        """Its torch dtype in a call."""
        import torch

        return getattr(torch, str(dims["dtype"] if self.dtype == "dtype" else self.dtype))

    def made(self, dims: Mapping[str, int | str], like: Any) -> Any:
        """Uninitialised, on the call's device.

        Raises:
            ValueError: a size that the call's dimensions do not give.
        """
        return like.new_empty(self.shape(dims), dtype=self.kind(dims))


def saved_like(op: Op, built: Built, args: tuple[Any, ...]) -> list[Any]:
    """Uninitialised tensors like those that the forward saves, by what the manifest's `saves` says of them.

    Raises:
        CandidateError: `bind_failed`: a size that the call's dimensions do not give.
    """
    count = len(op.tensor_names)
    dims = op.dims(OpCall(args[:count], args[count:]))
    return [_made(extra, built, dims, args[0]) for extra in extras_of(built) if extra.is_saved]


def _made(extra: Extra, built: Built, dims: Mapping[str, int | str], like: Any) -> Any:
    try:
        return extra.made(dims, like)
    except ValueError as error:
        raise bind_failed(built, f"{extra.name}: {error}") from error


def extras_of(built: Built) -> list[Extra]:
    """Saved tensors, then scratch, as the manifest lists them."""
    manifest = built.kernel.manifest
    return [*_listed(manifest.saves, is_saved=True), *_listed(manifest.workspace, is_saved=False)]


def _listed(items: Sequence[Mapping[str, str]], *, is_saved: bool) -> list[Extra]:
    found = []
    for name, shape in (pair for item in items for pair in item.items()):
        *sizes, dtype = [part.strip() for part in shape.split(",")]
        found.append(Extra(name, tuple(int(size) if size.isdigit() else size for size in sizes), dtype, is_saved))
    return found


def preparing(function: Callable[..., Any], op: Op, built: Built) -> Callable[..., tuple[Any, ...]]:
    """The manifest's `prepare` as a function of a call of the op: what it makes of the call's parameters.

    Raises:
        CandidateError: `bind_failed`: a site of the op has no parameters; or, when it is called, it gives another
            number of tensors.
    """
    manifest = built.kernel.manifest
    extras, names = _listed(manifest.prepared, is_saved=False), parameters_of(op)
    if not names:
        raise bind_failed(built, f"prepare: a site of {op.name} has no parameters")
    places = [op.tensor_names.index(name) for name in names]
    count = len(op.tensor_names)

    def make(*args: Any) -> tuple[Any, ...]:
        parameters = [args[place] for place in places]
        if manifest.takes_outputs:
            try:
                dims = op.dims(OpCall(args[:count], args[count:]))
                made = tuple(extra.made(dims, args[0]) for extra in extras)
            except ValueError as error:
                raise bind_failed(built, f"prepared: {error}") from error
            function(*parameters, *made)
            return made
        found = outputs_of(function(*parameters))
        if len(found) != len(extras or names):
            raise bind_failed(built, f"prepare: gave {len(found)} tensors, where {len(extras or names)} are expected")
        return found

    return make


class Bound:
    """An entry as a call of the op: `bound(*tensors, *scalars)` gives what the op returns.

    `into` fills preallocated memory; what the forward saves is dropped, unless a backward is going to want it.
    """

    def __init__(
        self,
        op: Op,
        built: Built,
        into: Callable[..., Any],
        names: list[str] | None,
        backward: Callable[..., Any] | None,
    ) -> None:
        self._op, self._built, self._into = op, built, into
        self._known = [*op.tensor_names, *op.scalar_names, *output_names(op)]
        self._extras = extras_of(built)
        self._names = names or [*self._known, *(extra.name for extra in self._extras)]
        self._needs_dims = bool(self._extras) or not set(self._names) <= set(self._known)
        self.backward = backward
        """Takes gradients of the outputs, the forward's tensors and what it saved; None where there is none."""

    def __call__(self, *args: Any) -> Any:
        return self.saving(*args)[0]

    def saving(self, *args: Any) -> tuple[Any, tuple[Any, ...]]:
        """What the op returns, and what the backward wants to see again.

        Raises:
            CandidateError: `bind_failed`: an argument that is neither the op's nor a dimension.
        """
        made = self._op.allocate(*args) if output_count(self._op) else ()
        values: dict[str, Any] = dict(zip(self._known, (*args, *outputs_of(made)), strict=True))
        saved = []
        if self._needs_dims:
            count = len(self._op.tensor_names)
            dims = self._op.dims(OpCall(args[:count], args[count:]))
            for extra in self._extras:
                values[extra.name] = _made(extra, self._built, dims, args[0])
                saved += [values[extra.name]] if extra.is_saved else []
            values = {**dims, **values}
        for name in self._names:
            if name not in values:
                raise unknown_argument(self._built, name, list(values))
        self._into(*[values[name] for name in self._names])
        return made, tuple(saved)

    def saved_like(self, *args: Any) -> list[Any]:
        """See the function of that name."""
        return saved_like(self._op, self._built, args)


class Saving:
    """A forward that returns the op's outputs, then what its backward wants to see again, and that backward."""

    def __init__(self, op: Op, built: Built, forward: Callable[..., Any], backward: Callable[..., Any]) -> None:
        self._op, self._built, self._forward, self._backward = op, built, forward, backward
        self._count = output_count(op)

    def __call__(self, *args: Any) -> Any:
        return self.saving(*args)[0]

    def saving(self, *args: Any) -> tuple[Any, tuple[Any, ...]]:
        """What the op returns, and what is saved."""
        found = outputs_of(self._forward(*args))
        outputs = found[: self._count]
        return outputs[0] if self._count == 1 else outputs, found[self._count :]

    def saved_like(self, *args: Any) -> list[Any]:
        """See the function of that name."""
        return saved_like(self._op, self._built, args)

    def backward(self, gradients: Sequence[Any], tensors: Sequence[Any], saved: Sequence[Any]) -> tuple[Any, ...]:
        """A gradient for every tensor of the forward; absent tensors are not handed over and have none.

        Raises:
            CandidateError: `bind_failed`: it gives another number of them.
        """
        there = [place for place, tensor in enumerate(tensors) if tensor is not None]
        dense = [gradient.contiguous() for gradient in gradients]
        found = outputs_of(self._backward(*dense, *(tensors[place] for place in there), *saved))
        if len(found) != len(there):
            raise bind_failed(self._built, f"backward: gave {len(found)} gradients for {len(there)} tensors")
        result: list[Any] = [None] * len(tensors)
        for place, gradient in zip(there, found, strict=True):
            result[place] = gradient
        return tuple(result)


def unknown_argument(built: Built, name: str, known: list[str]) -> CandidateError:
    """The error for an entry of `args` that this op does not have."""
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
    return bind_failed(built, f"args: no {name!r} in this op; {hint}")


def bind_failed(built: Built, reason: str, *, line: int | None = None) -> CandidateError:
    """A `bind_failed` error about one kernel."""
    line = line or built.kernel.block_line
    where = f"{built.kernel.shown}:{line}" if line else built.kernel.shown
    return CandidateError(f"{where}: {reason}", code="bind_failed", line=line)


def scalar_types(op: Op) -> dict[str, str]:
    """Type of every scalar argument, from the op's schema: `{"eps": "float"}`; a list's is `int[]`."""
    inside = op.schema.partition("(")[2].rpartition("->")[0]
    found = re.findall(r"((?:float|int|bool|str)(?:\[\])?)\??\s+(\w+)", inside)
    return {name: kind for kind, name in found}
