"""Whether a site computes the op, seen on the model's own activations. Never patch on a guess."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from e2e.measure.audit import EPSILON, Fingerprint
from e2e.measure.fingerprint import Ring
from e2e.numerics.captures import Captured, clone_call, form_of
from e2e.numerics.compare import error_of, exactly
from e2e.protocols import Op, OpCall, Site, outputs_of, tensors_of
from e2e.schema.evidence import CAPTURED

LOUD = (RuntimeError, ValueError, TypeError, ArithmeticError, LookupError, AttributeError, AssertionError)
"""How code refuses an input; anything else ends the worker's request."""
CONFORMANCE_EPSILONS = 8.0
"""A site's own code may differ from the op's exact maths by this many epsilons of the coarsest dtype that it meets: a
loss in float32 is no more exact than the bfloat16 logits it was made of."""
SKETCH_EPSILONS = 32.0
"""And an owner's outputs from those of the model as it is, by their projections, which know a distance within a factor
of a few. Where the device repeats itself, they are the same bits."""
KEPT_OF_BUDGET = 4
"""Captures are kept for choosing from, up to this many times the bytes that are stored in the end."""
MOST_PERTURBED = 2**26
"""Elements of a weight that is still tried with other values."""

Given = dict[str, Fingerprint]
"""What an owner gave in one call: its tensors, by their places."""


class Watch:
    """Sees every call of the op at its sites: does the site compute it, and what comes in?"""

    def __init__(self, op: Op, seed: int, budget_bytes: int) -> None:
        self._op = op
        self._seed = seed
        self._budget_bytes = KEPT_OF_BUDGET * budget_bytes
        self._kept: set[Any] = set()
        self._bytes = 0
        self.dims: dict[str, list[dict[str, int | str]]] = {}
        """Named dimensions of every call, by site."""
        self.forms: dict[str, list[Any]] = {}
        """Form of every call, by site."""
        self.problems: dict[str, str] = {}
        """Sites that compute something else, in words."""
        self.calls: list[Captured] = []

    def see(self, site: Site, call: OpCall, output: Any) -> None:
        """One call, with what the site's own code made of it."""
        self.dims.setdefault(site.fqn, []).append(self._op.dims(call))
        self.forms.setdefault(site.fqn, []).append(form_of(call))
        if site.fqn not in self.problems:
            problem = self._mismatch(call, output) or self._mismatch_elsewhere(site, call)
            if problem is not None:
                self.problems[site.fqn] = problem
        self._keep(site, call)

    def _mismatch(self, call: OpCall, output: Any) -> str | None:
        found, expected = outputs_of(output), outputs_of(self._op.allocate(*call.tensors, *call.scalars))
        if _form(found) != _form(expected):
            return f"it returns {_form(found)}, where {self._op.name} returns {_form(expected)}"
        for value, exact in zip(found, outputs_of(exactly(self._op, call)), strict=True):
            error = error_of(value, exact).total
            allowed = CONFORMANCE_EPSILONS * max(_epsilon(tensor) for tensor in (value, *tensors_of(call)))
            if not error <= allowed:  # not a number is no agreement
                return (
                    f"its own forward is not {self._op.name}: relative difference {error:.1e}, "
                    f"rounding explains {allowed:.1e}"
                )
        return None

    def _mismatch_elsewhere(self, site: Site, call: OpCall) -> str | None:
        """The same with other weights: those of ones or zeros would hide how they enter."""
        other = self._perturbed(site, call)
        if other is None or not all(bool(item.isfinite().all()) for item in outputs_of(exactly(self._op, other))):
            return None
        problem = self._mismatch(other, self._op.own(site)(*other.tensors, *other.scalars))
        return None if problem is None else f"with other weights {problem}"

    def _perturbed(self, site: Site, call: OpCall) -> OpCall | None:
        state = {id(tensor) for tensor in [*site.module.parameters(), *site.module.buffers()]}
        own = [isinstance(t, Tensor) and id(t) in state and t.is_floating_point() for t in call.tensors]
        size = sum(t.numel() for t, mine in zip(call.tensors, own, strict=True) if mine)
        if not any(own) or size > MOST_PERTURBED:
            return None
        tensors = (self._other(t) if mine else t for t, mine in zip(call.tensors, own, strict=True))
        return OpCall(tuple(tensors), call.scalars)

    def _other(self, tensor: Tensor) -> Tensor:
        """A quarter away at most, so that what must be positive or below one stays so; zeros become something."""
        generator = torch.Generator(device=tensor.device).manual_seed(self._seed)
        noise = torch.rand(tensor.shape, generator=generator, device=tensor.device, dtype=torch.float32) - 0.5
        size = tensor.float().abs().mean()
        size = torch.where(size > 0, size, torch.ones_like(size))
        return (tensor.float() * (1 + 0.4 * noise) + 0.1 * size * noise.roll(1)).to(tensor.dtype)

    def _keep(self, site: Site, call: OpCall) -> None:
        size = sum(t.untyped_storage().nbytes() for t in tensors_of(call))
        form = form_of(call)
        if form not in self._kept or self._bytes + size <= self._budget_bytes:
            self._kept.add(form)
            self._bytes += size
            self.calls.append(Captured(site.fqn, CAPTURED, clone_call(call)))


class Outputs:
    """What the sites' owners give in one step, and which gives something else in another."""

    def __init__(self, device: str) -> None:
        self._ring = Ring(1, device)
        self._own: dict[str, list[Given]] = {}
        self._turns: dict[str, int] = {}
        self._entered: list[Site] = []
        self.changed: Site | None = None
        """The first owner that gave something else; what comes after it proves nothing."""

    @property
    def inside(self) -> Site | None:
        """The owner whose forward has begun and not ended."""
        return self._entered[-1] if self._entered else None

    @property
    def called(self) -> set[str]:
        """Owners that gave anything in the first step."""
        return set(self._own)

    @contextlib.contextmanager
    def kept(self, sites: list[Site]) -> Iterator[None]:
        """While inside, remember what every owner gives."""
        with self._hooked(sites, lambda site, found: self._own.setdefault(site.fqn, []).append(found)):
            yield

    @contextlib.contextmanager
    def compared(self, sites: list[Site]) -> Iterator[None]:
        """While inside, compare with what is remembered."""
        self._turns, self._entered, self.changed = {}, [], None
        with self._hooked(sites, self._compare):
            yield

    def _compare(self, site: Site, found: Given) -> None:
        turn = self._turns[site.fqn] = self._turns.get(site.fqn, -1) + 1
        known = self._own.get(site.fqn, [])
        is_same = turn < len(known) and _agree(found, known[turn], site.module)
        if not is_same and self.changed is None:
            self.changed = site

    @contextlib.contextmanager
    def _hooked(self, sites: list[Site], then: Callable[[Site, Given], None]) -> Iterator[None]:
        def before(site: Site) -> Callable[..., None]:
            return lambda *_: self._entered.append(site)

        def after(site: Site) -> Callable[..., None]:
            def hook(module: nn.Module, args: Any, output: Any) -> None:
                self._entered.pop()
                then(site, {place: self._fingerprint(item) for place, item in _flat(output)})

            return hook

        handles = [site.module.register_forward_pre_hook(before(site)) for site in sites]
        handles += [site.module.register_forward_hook(after(site)) for site in sites]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _fingerprint(self, tensor: Tensor) -> Fingerprint:
        self._ring.commit([tensor], 0)
        found = Fingerprint.read(self._ring.read(1)[0])
        assert found is not None
        return found


def _epsilon(tensor: Tensor | None) -> float:
    return torch.finfo(tensor.dtype).eps if tensor is not None and tensor.is_floating_point() else 0.0


def _agree(found: Given, known: Given, module: nn.Module) -> bool:
    """Whether what an owner gives is what it gave, as far as it gives it.

    It may leave out what its kernel does not compute (attention's weights beside its output): who needs that would not
    have run.
    """
    return all(place in known and _same(mine, known[place], module) for place, mine in found.items())


def _same(found: Fingerprint, known: Fingerprint, module: nn.Module) -> bool:
    if found.checksum == known.checksum:
        return True
    dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)
    return found.distance(known) <= SKETCH_EPSILONS * EPSILON[str(dtype).removeprefix("torch.")]


def _flat(output: Any, place: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(output, Tensor):
        yield place, output
    elif isinstance(output, tuple | list):
        for number, item in enumerate(output):
            yield from _flat(item, f"{place}.{number}")
    elif isinstance(output, Mapping):
        for name, item in output.items():
            yield from _flat(item, f"{place}.{name}")


def _form(tensors: tuple[Any, ...]) -> str:
    return ", ".join(
        f"{' x '.join(map(str, tensor.shape))} {str(tensor.dtype).removeprefix('torch.')}"
        if isinstance(tensor, Tensor)
        else type(tensor).__name__
        for tensor in tensors
    )
