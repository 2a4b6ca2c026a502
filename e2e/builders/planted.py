"""Planted kernels for `e2e selftest`: an op's mutants and tricks, which must be caught, and honest ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from e2e.protocols import BuildTarget, Built, Op
from e2e.schema.kernel import Kernel

REFERENCE = "reference"
"""Entry of the honest kernel that every op has: its exact maths, rounded once."""
LATE_CALLS = 150
"""Calls after which a trick stops computing: more than the check of the op alone makes, fewer than timing does."""


class PlantedBuilder:
    """Binds `reference`, `alternative:NAME`, `mutant:NAME` or `trick:NAME` of the op; there is nothing to compile."""

    def build(self, kernel: Kernel, target: BuildTarget) -> Built:
        """The entry is all there is."""
        return Built(kernel=kernel, builder="planted", artifact=str(kernel.manifest.entry), seconds=0.0, cached=True)

    def bind(self, built: Built, op: Op, dtype: str) -> Callable[..., Any]:
        """The callable of that entry."""
        kind, _, name = built.artifact.partition(":")
        if kind == "alternative":
            return op.alternatives[name]
        if kind == "mutant":
            return op.mutants()[name]
        exact = _rounded_reference(op)
        return {**TRICKS, **LATE_TRICKS}[name](exact) if kind == "trick" else exact


def _rounded_reference(op: Op) -> Callable[..., Any]:
    def kernel(*call: Any) -> Any:
        dtype = next(item.dtype for item in call if _is_real(item))
        return op.reference(*(item.double() if _is_real(item) else item for item in call)).to(dtype)

    return kernel


def _is_real(item: Any) -> bool:
    """Whether it is a tensor of floating-point numbers."""
    return hasattr(item, "is_floating_point") and bool(item.is_floating_point())


def _remembers(exact: Callable[..., Any]) -> Callable[..., Any]:
    """Gives its first answer to every later input of the same shape."""
    known: dict[Any, Any] = {}

    def kernel(x: Any, *rest: Any) -> Any:
        if x.shape not in known:
            known[x.shape] = exact(x, *rest)
        return known[x.shape].clone()

    return kernel


def _stops_computing(exact: Callable[..., Any]) -> Callable[..., Any]:
    """Right for as long as anybody looks, then `_remembers`."""
    calls, stale = 0, _remembers(exact)

    def kernel(x: Any, *rest: Any) -> Any:
        nonlocal calls
        calls += 1
        return exact(x, *rest) if calls <= LATE_CALLS else stale(x, *rest)

    return kernel


def _skips_rows(exact: Callable[..., Any]) -> Callable[..., Any]:
    """Takes the first row for every row of the second half."""

    def kernel(x: Any, *rest: Any) -> Any:
        seen = x.contiguous().clone()
        rows = seen.reshape(-1, x.shape[-1])
        rows[(len(rows) + 1) // 2 :] = rows[:1]
        return exact(seen, *rest)

    return kernel


def _writes_input(exact: Callable[..., Any]) -> Callable[..., Any]:
    """Right, and leaves its input doubled."""

    def kernel(x: Any, *rest: Any) -> Any:
        output = exact(x, *rest)
        x.mul_(2)
        return output

    return kernel


def _reuses_output(exact: Callable[..., Any]) -> Callable[..., Any]:
    """Right, and hands out the same memory every time."""
    kept: dict[Any, Any] = {}

    def kernel(x: Any, *rest: Any) -> Any:
        output = exact(x, *rest)
        return kept.setdefault(x.shape, output.clone()).copy_(output)

    return kernel


def _leaves_nan(exact: Callable[..., Any]) -> Callable[..., Any]:
    """Right but for one element, which is not a number."""

    def kernel(x: Any, *rest: Any) -> Any:
        output = exact(x, *rest)
        output.reshape(-1)[-1:] = float("nan")
        return output

    return kernel


TRICKS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "remembers its first answer": _remembers,
    "skips half the rows": _skips_rows,
    "writes to its input": _writes_input,
    "reuses its output": _reuses_output,
    "leaves a NaN": _leaves_nan,
}
LATE_TRICKS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {"stops computing later": _stops_computing}
"""Found in the timed steps only, where every output is held against the baseline's."""

PLUGIN = PlantedBuilder()
