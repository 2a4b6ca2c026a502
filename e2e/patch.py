"""Swap the op's sites in one arm's own module tree, and undo it exactly.

Only instances are touched: `site.forward` is set on the arm's module and deleted again. Classes, module globals
and the other arms never change.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from e2e.protocols import Op, OpCall, Site, updated, written_by


def copy_sharing_weights(model: nn.Module) -> nn.Module:
    """A module tree of its own over the *same* parameter and buffer objects; ties and config copies survive.

    For inference only: a training step through one copy would change the weights of all.
    """
    shared = {id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]}
    return copy.deepcopy(model, shared)


def over(
    function: types.FunctionType, space: dict[str, Any], closure: tuple[types.CellType, ...] | None = None
) -> types.FunctionType:
    """The same code over other globals, and over other cells of the same number where they are given."""
    cells = function.__closure__ if closure is None else closure or None
    rebuilt = types.FunctionType(function.__code__, space, function.__name__, function.__defaults__, cells)
    rebuilt.__kwdefaults__, rebuilt.__module__ = function.__kwdefaults__, function.__module__
    return rebuilt


TAKEN = "it already has a forward of its own: another patch, or hooks such as accelerate's, stand there"


def sites_of(op: Op, model: nn.Module, globs: Sequence[str]) -> list[Site]:
    """The op's sites whose names match one of the globs; those that somebody else patched are left to them."""
    found = [site for site in op.find_sites(model) if any(fnmatchcase(site.fqn, glob) for glob in globs)]
    return [
        replace(site, incompatible=site.incompatible or TAKEN) if "forward" in vars(site.module) else site
        for site in found
    ]


def sites_in(copied: nn.Module, sites: list[Site]) -> list[Site]:
    """The same sites in another module tree of the same model."""
    return [replace(site, module=copied.get_submodule(site.fqn)) for site in sites]


Occurrence = tuple[Op, list[Site]]
"""An op, and the sites that compute it."""


@dataclass(frozen=True)
class Standing:
    """A kernel, and the sites of its op at which it stands."""

    op: Op
    sites: Sequence[Site]
    call: Callable[..., Any]
    constraints: Sequence[str] = ()
    """What a call must fulfil; the site's own code has the others."""


class Patch:
    """Sites of one module tree whose `forward` is replaced; `undo` restores `vars()` of every owner."""

    def __init__(self, op: Op, sites: list[Site], function_for: Callable[[Site], Callable[..., Any] | None]) -> None:
        """Apply: `function_for(site)` is what the site shall call, or None for its own code in the same place.

        Raises:
            RuntimeError: a site already has a forward of its own, which is not ours to overwrite.
        """
        self._sites: list[Site] = []
        try:
            for site in sites:
                if "forward" in vars(site.module):
                    raise RuntimeError(f"{site.fqn} already has a forward of its own")
                forward = op.forward_with(site, function_for(site))
                site.module.forward = types.MethodType(forward, site.module)
                self._sites.append(site)
        except BaseException:  # re-raised: a patch that was not completed leaves nothing behind
            self.undo()
            raise

    def undo(self) -> None:
        """Delete what was set; nothing else was changed."""
        for site in self._sites:
            del site.module.forward
        self._sites = []


def everywhere(function: Callable[..., Any] | None) -> Callable[[Site], Callable[..., Any] | None]:
    """That function for any site."""
    return lambda site: function


def disjoint(occurrences: Sequence[Occurrence]) -> Iterator[Occurrence]:
    """Where two ops have one site, it is the first one's."""
    taken: set[str] = set()
    for op, sites in occurrences:
        yield op, [site for site in sites if site.fqn not in taken]
        taken |= {site.fqn for site in sites}


def put_references(model: nn.Module, occurrences: Sequence[Occurrence]) -> None:
    """The references of ops at their sites in that model."""
    for op, sites in disjoint(occurrences):
        Patch(op, sites_in(model, sites), everywhere(op.reference))


def split(op: Op, args: tuple[Any, ...]) -> OpCall:
    """The op's call from its arguments in order."""
    count = len(op.tensor_names)
    return OpCall(args[:count], args[count:])


@contextmanager
def observed(op: Op, sites: list[Site], see: Callable[[Site, OpCall, Any], None]) -> Iterator[None]:
    """While inside, `see(site, call, output)` is called after every call of the op at those sites.

    Of an op that works in place it sees how a few tensors of the lists were before, and what became of them.
    """
    count = len(op.tensor_names)

    def watched(site: Site) -> Callable[..., Any]:
        own = op.own(site)

        def call(*args: Any) -> Any:
            output = own(*args)
            see(site, split(op, args), output)
            return output

        def call_in_place(*args: Any) -> Any:
            places = _some(args[0])
            before = [tuple(item[place].clone() for place in places) for item in args[:count]]
            output = own(*args)
            after = tuple(tuple(item[place] for place in places) for item in args[:count])
            see(site, OpCall(tuple(before), args[count:]), tuple(item.clone() for item in updated(op, after)))
            return output

        return call_in_place if written_by(op) else call

    patch = Patch(op, sites, watched)
    try:
        yield
    finally:
        patch.undo()


SEEN_ELEMENTS = 2**22
"""Elements of each list, at most, that are looked at."""


def _some(tensors: Sequence[Any]) -> list[int]:
    """Places of a list's tensors, small ones first, as many as may be looked at; one at least."""
    found: list[int] = []
    elements = 0
    for place in sorted(range(len(tensors)), key=lambda place: tensors[place].numel()):
        elements += tensors[place].numel()
        if found and elements > SEEN_ELEMENTS:
            break
        found.append(place)
    return sorted(found)
