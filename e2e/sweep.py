"""Verdicts of the cells -> the verdict of a sweep. Pure.

CONFIRMED needs two things. No cell may lose: every one's interval lies above 1 - margin, each at its own level,
since all of them must hold. And the claimed wins must hold (`wins` of the policy): at a Holm-adjusted level,
since the best of many cells looks better than it is. A cell that memory does not hold, with or without the kernel,
is told and counts neither way: nobody runs it here.

Source:
    METHOD.md B2.16 and B5.19.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from e2e import wording
from e2e.judge import decided
from e2e.mix import mix_of
from e2e.regions import regions_of
from e2e.schema.evidence import Evidence
from e2e.schema.policy import Policy
from e2e.schema.result import CellResult, Mix, Region, Regions
from e2e.schema.verdict import Reason
from e2e.schema.words import Label, Outcome, ReasonCode, ReasonKind, Stage, kind_of
from e2e.standing import Fact, View, confirms, decisive, is_loss, keeps, level_among, slowest, views_of
from e2e.weighing import weigh

_BROKEN = (Outcome.INCORRECT, Outcome.FAILED, Outcome.NOT_APPLICABLE)
"""Worst first: who adopts a kernel adopts it for every cell."""


@dataclass(frozen=True)
class SweepVerdict:
    """What all cells together mean under the policy."""

    outcome: Outcome | None
    label: Label | None
    reasons: list[Reason]
    """Of several cells: one for every fact that decides, with its cell; then advice."""
    decides: int
    """Index of the cell that the first reason is about."""
    regions: Regions | None
    """None for a single cell."""
    mix: Mix | None = None
    """As in `Result`."""


def sweep(cells: Sequence[CellResult], policy: Policy) -> SweepVerdict:
    """The verdict over all cells; a single cell's own verdict is that of its run.

    Raises:
        ValueError: no cells.
    """
    if not cells:
        raise ValueError("a sweep has at least one cell")
    if len(cells) == 1:
        told = cells[0].verdict
        return SweepVerdict(told.outcome, told.label, told.reasons, decides=0, regions=None)
    views = views_of(cells, policy)
    left_out = [view for view in views if view.found.evidence.no_room is not None]
    if len(left_out) == len(views):
        left_out = []
    ruling = _rule([view for view in views if view not in left_out], policy)
    return SweepVerdict(
        outcome=ruling.outcome,
        label=ruling.label,
        reasons=[*(fact.reason for fact in (*ruling.facts, *(v.headline for v in left_out))), *_advice(views)],
        decides=ruling.facts[0].index if ruling.facts else 0,
        regions=regions_of([_region(view) for view in views], is_of_one_kind=_kinds(cells) == 1),
        mix=mix_of(cells, policy),
    )


def is_final(outcome: Outcome | None, policy: Policy, *, cells: int) -> bool:
    """Whether no later stage can change what a cell, one of so many, means for the run.

    Without headroom there is no gain, and where another cell may win, the loss is still to be measured.
    """
    return outcome in _BROKEN or (outcome is Outcome.REFUTED and not _asks_for_losses(policy, cells=cells))


def settled(evidence: Evidence, policy: Policy, *, cells: int) -> bool:
    """Whether a cell, one of so many, may stop at this look.

    It goes on until its gain holds at the level that the sweep may ask for, or, without a gain, until a loss is
    shown or ruled out.
    """
    if not decided(evidence, policy):
        return False
    row = weigh(evidence, policy).deciding
    if cells == 1 or row is None or policy.objective == "memory":
        return True
    if row.outcome is Outcome.CONFIRMED:
        return confirms(evidence, policy, among=cells)
    return not _asks_for_losses(policy, cells=cells) or keeps(row, policy) or is_loss(row, policy)


def _asks_for_losses(policy: Policy, *, cells: int) -> bool:
    """Whether a cell that wins nothing still has to show that it loses nothing: another one may win."""
    return cells > 1 and policy.wins == "any"


@dataclass(frozen=True)
class _Ruling:
    outcome: Outcome | None
    facts: list[Fact]
    label: Label | None = None


def _rule(views: Sequence[View], policy: Policy) -> _Ruling:
    for outcome in _BROKEN:
        worst = next((view for view in views if view.outcome is outcome), None)
        if worst is not None:
            return _Ruling(outcome, [worst.says(reason) for reason in decisive(worst.found.verdict)])
    losing = [view for view in views if view.loses]
    if losing:
        facts = [view.means(ReasonCode.REGRESSION, f"slower: {view.reading}") for view in losing]
        return _Ruling(Outcome.REFUTED, facts, Label.REGRESSION)
    refuted = [view for view in views if view.outcome is Outcome.REFUTED]
    if refuted and (policy.wins == "all" or len(refuted) == len(views)):
        # What was measured of the candidate comes before what no candidate could do.
        refuted.sort(key=lambda view: view.found.verdict.label is Label.NO_HEADROOM)
        return _Ruling(Outcome.REFUTED, [view.headline for view in refuted], refuted[0].found.verdict.label)
    if views[0].found.evidence.stage_asked is not Stage.VERDICT:
        return _before_verdict(views)
    wins = [view for view in views if view.wins]
    must_win = policy.wins == "all" or not wins
    still_open = [fact for view in views for fact in _open(view, must_win=must_win, claims=len(views) - len(wins))]
    if still_open:
        return _Ruling(Outcome.INCONCLUSIVE, sorted(still_open, key=lambda fact: _rank(fact.reason)))
    kept = [_kept(view) for view in views if not view.wins]
    return _Ruling(Outcome.CONFIRMED, [*(view.headline for view in wins), *kept])


def _before_verdict(views: Sequence[View]) -> _Ruling:
    """Nothing is claimed yet: the stage is passed unless a cell left something open."""
    undecided = [view for view in views if view.outcome is Outcome.INCONCLUSIVE]
    if undecided:
        return _Ruling(Outcome.INCONCLUSIVE, [view.headline for view in undecided])
    passed = [view for view in views if view.outcome is None]
    facts = [view.says(reason) for view in passed for reason in decisive(view.found.verdict)]
    return _Ruling(None, facts, passed[0].found.verdict.label)


def _open(view: View, *, must_win: bool, claims: int) -> Iterator[Fact]:
    """What keeps this cell from counting: a gain that is neither shown nor refuted, or a loss that is not ruled out."""
    margin = wording.percent(1 - slowest(view.policy))
    may_win = not view.wins and view.outcome is not Outcome.REFUTED
    if must_win and may_win and view.outcome is Outcome.CONFIRMED:
        level = wording.percent(level_among(view.policy, among=claims), digits=4)
        message = f"{view.reading} clears the margin by itself, and not at the {level} that {claims} claims ask for"
        yield view.means(ReasonCode.INTERVAL_STRADDLES, message)
    elif must_win and may_win:
        yield view.headline
    elif not view.holds and view.timed.outcome is Outcome.REFUTED:
        message = f"{view.reading}: no gain, and a loss of more than {margin} is not ruled out"
        yield view.means(ReasonCode.INTERVAL_STRADDLES, message)
    elif not view.holds:
        reason = decisive(view.timed)[0]
        yield view.means(reason.code, f"a loss of more than {margin} is not ruled out: {reason.message}")


def _kept(view: View) -> Fact:
    """A cell without a gain that loses nothing."""
    code = next(reason.code for reason in view.timed.reasons if kind_of(reason.code) is ReasonKind.INTERVAL)
    code = ReasonCode.INTERVAL_STRADDLES if code is ReasonCode.GAIN_CONFIRMED else code
    return view.means(code, f"{view.reading}: no loss of more than {wording.percent(1 - slowest(view.policy))}")


def _rank(reason: Reason) -> int:
    return list(ReasonKind).index(kind_of(reason.code))


def _advice(views: Sequence[View]) -> list[Reason]:
    """Of every code the first cell's; the cells have their own."""
    first: dict[ReasonCode, Reason] = {}
    for view in views:
        for reason in view.found.verdict.reasons:
            if kind_of(reason.code) is ReasonKind.ADVICE:
                first.setdefault(reason.code, view.says(reason).reason)
    return sorted(first.values(), key=lambda reason: list(ReasonCode).index(reason.code))


def _kinds(cells: Sequence[CellResult]) -> int:
    """In how many dtypes and steps the cells are: between two of them no threshold of a size decides."""
    return len({(cell.cell.dtype, cell.cell.step) for cell in cells})


def _region(view: View) -> Region:
    cell = view.found.cell
    return Region(
        batch=cell.batch,
        sequence=cell.sequence,
        rows=cell.rows,
        outcome=view.outcome,
        speedup=view.row.speedup if view.row else None,
        standing=view.standing,
    )
