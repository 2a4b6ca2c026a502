"""Clean side: whether several ops can be replaced at once. Nothing here ever loads a candidate."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn

from e2e.numerics.exercise import step_outputs
from e2e.patch import Occurrence, Patch, observed
from e2e.protocols import OpCall, Site, outputs_of

_Outputs = dict[str, list[tuple[Tensor, ...]]]
"""What every call of an op gave, by its site."""


def shadowed(session: Any, occurrences: Sequence[Occurrence], *, seed: int) -> list[tuple[str, int]]:
    """Sites that are never called while another op's outputs stand in its sites' place, and which op's.

    A kernel may stand for more than its own module: one for a residual's sum and its norm leaves the norm uncalled.
    Each op in turn gives what it gave before, so that the rest of the step goes its usual way.
    """
    recorded: _Outputs = {}

    def record(site: Site, call: OpCall, output: Any) -> None:
        recorded.setdefault(site.fqn, []).append(tuple(item.clone() for item in outputs_of(output)))

    _step(session, occurrences, record, seed)
    found: dict[str, int] = {}
    for place, (op, sites) in enumerate(occurrences):
        called: set[str] = set()
        replayed = Patch(op, [site for site in sites if site.fqn in recorded], lambda site: _replay(recorded[site.fqn]))
        others = [other for number, other in enumerate(occurrences) if number != place]
        try:
            _step(session, others, lambda site, call, output, called=called: called.add(site.fqn), seed)
        finally:
            replayed.undo()
        for _, silent in others:
            found |= {site.fqn: place for site in silent if site.fqn not in called and site.fqn not in found}
    return list(found.items())


def _step(session: Any, occurrences: Sequence[Occurrence], see: Callable[..., None], seed: int) -> None:
    model: nn.Module = session.model
    with ExitStack() as stack:
        for op, sites in occurrences:
            stack.enter_context(observed(op, sites, see))
        step_outputs(session, model, seed)


def _replay(recorded: list[tuple[Tensor, ...]]) -> Callable[..., Any]:
    turns = itertools.cycle([item[0] if len(item) == 1 else item for item in recorded])
    return lambda *call: next(turns)
