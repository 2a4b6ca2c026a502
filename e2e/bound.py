"""Worker side: a kernel that can be called, and the sites at which it stands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from e2e import registry
from e2e.binding import compiled_training, in_training
from e2e.errors import CandidateError
from e2e.layouts import InLayout, Relaid
from e2e.prepared import InPrepared, Prepared
from e2e.protocols import Built, Op, Site, updated, written_by
from e2e.scout import Replica


@dataclass(frozen=True)
class Bound:
    """A kernel that can be called."""

    call: Callable[..., Any]
    sha256: str
    writes: frozenset[int] = frozenset()
    """Places of the arguments that it writes to."""
    is_python: bool = True
    """Whether autograd sees through it."""
    borrowed: bool = False
    """Whether it borrows the op's own backward."""

    def in_training(self, op: Op) -> Callable[..., Any]:
        """As an eager training step calls it; a patch brings its own gradients, and an optimizer has none."""
        if isinstance(self.call, Replica) or written_by(op):
            return self.call
        return in_training(op, self.call, is_python=self.is_python, borrowed=self.borrowed, writes=self.writes)

    def in_compiled_training(self, op: Op, device: str) -> tuple[Callable[..., Any], Any]:
        """See compiled_training."""
        return compiled_training(
            op,
            self.call,
            sha256=self.sha256,
            device=device,
            is_python=self.is_python,
            borrowed=self.borrowed,
            writes=self.writes,
        )


def bound_to(built: Built, op: Op, dtype: str) -> Bound:
    """The built kernel, loaded into this process.

    Raises:
        CandidateError: `bind_failed` or `dtype_not_supported`.
    """
    kernel, manifest = built.kernel, built.kernel.manifest
    unknown = [name for name in manifest.mutates if name not in op.tensor_names]
    if unknown:
        known = ", ".join(op.tensor_names)
        raise CandidateError(
            f"{kernel.shown}: mutates: {op.name} has no tensor {unknown[0]!r}; it has: {known}", code="bind_failed"
        )
    return Bound(
        _returning(op, _call_of(built, op, dtype)),
        kernel.sha256,
        frozenset(op.tensor_names.index(name) for name in manifest.mutates) | written_by(op),
        is_python=manifest.is_python,
        borrowed=manifest.borrows_gradients,
    )


def _returning(op: Op, call: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel that works in place, as its op's calls do, returns what it has updated."""
    if not written_by(op):
        return call

    def returning(*args: Any) -> tuple[Any, ...]:
        call(*args)
        return updated(op, args[: len(op.tensor_names)])

    return returning


def _call_of(built: Built, op: Op, dtype: str) -> Callable[..., Any]:
    builder, manifest = registry.load("builders", built.builder), built.kernel.manifest
    if manifest.prepare is not None:
        make = builder.prepare(built, op, dtype)
        prepared = InPrepared(op, [name for item in manifest.prepared for name in item])
        return Prepared(prepared, builder.bind(built, prepared, dtype), make, shown=built.kernel.shown)
    swaps = getattr(op, "layouts", {}).get(manifest.layout)
    if swaps is None:
        call: Callable[..., Any] = builder.bind(built, op, dtype)
        return call
    view = InLayout(op, swaps)
    return Relaid(view, builder.bind(built, view, dtype))


@dataclass(frozen=True)
class Candidate:
    """The bound kernel and where it goes."""

    kernel: Bound
    fqns: frozenset[str]
    """Sites it stands at; the others keep the baseline op (declared constraints)."""


@dataclass(frozen=True)
class Part:
    """An op, the sites that compute it, and what may stand there."""

    op: Op
    sites: Sequence[Site]
    candidate: Candidate | None = None
    """None in a process that holds no candidate, or leaves this kernel out."""
    adopted: Mapping[str, Bound] = field(default_factory=dict)
    """Kernels adopted earlier, which the policy names as opponents; by their arms' alternative."""

    @property
    def usable(self) -> list[Site]:
        """Where the candidate stands; without one, every site."""
        return [site for site in self.sites if self.candidate is None or site.fqn in self.candidate.fqns]
