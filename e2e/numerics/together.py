"""Clean side: whether several ops can be replaced at once. Nothing here ever loads a candidate."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn

from e2e.numerics.exercise import step_outputs
from e2e.patch import Occurrence, Patch, observed
from e2e.protocols import OpCall, Session, Site, outputs_of


def shadowed(session: Session, occurrences: Sequence[Occurrence], *, seed: int) -> list[tuple[str, int]]:
    """Sites that are never called while another op's outputs stand in its sites' place, and which op's.

    A kernel may stand for more than its own module: one for a residual's sum and its norm leaves the norm uncalled.
    Each op in turn gives what it gave before, so that the rest of the step goes its usual way.
    """
    found: dict[str, int] = {}
    for place, occurrence in enumerate(occurrences):
        others = [other for number, other in enumerate(occurrences) if number != place]
        called = _called_beside(session, occurrence, others, seed)
        for _, sites in others:
            found |= {site.fqn: place for site in sites if site.fqn not in called and site.fqn not in found}
    return list(found.items())


def _called_beside(session: Session, occurrence: Occurrence, others: Sequence[Occurrence], seed: int) -> set[str]:
    """Sites of the others that a step reaches while the first one's outputs are replayed."""
    op, sites = occurrence
    recorded: dict[str, list[tuple[Tensor, ...]]] = {}
    called: set[str] = set()

    def record(site: Site, call: OpCall, output: Any) -> None:
        recorded.setdefault(site.fqn, []).append(tuple(item.clone() for item in outputs_of(output)))

    def note(site: Site, call: OpCall, output: Any) -> None:
        called.add(site.fqn)

    _step(session, [occurrence], record, seed)
    replayed = Patch(op, [site for site in sites if site.fqn in recorded], lambda site: _replay(recorded[site.fqn]))
    try:
        _step(session, others, note, seed)
    finally:
        replayed.undo()
    return called


def _step(session: Session, occurrences: Sequence[Occurrence], see: Callable[..., None], seed: int) -> None:
    model: nn.Module = session.model
    with ExitStack() as stack:
        for op, sites in occurrences:
            stack.enter_context(observed(op, sites, see))
        step_outputs(session, model, seed)


def _replay(recorded: list[tuple[Tensor, ...]]) -> Callable[..., Any]:
    turns = itertools.cycle([item[0] if len(item) == 1 else item for item in recorded])
    return lambda *call: next(turns)
