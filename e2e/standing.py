"""What every cell of a sweep says for the whole: whether the kernel wins, loses, or does no harm there. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from e2e import wording
from e2e.judge import judge
from e2e.schema.evidence import Evidence
from e2e.schema.policy import Policy
from e2e.schema.result import CellResult, Standing
from e2e.schema.verdict import Against, Reason, Verdict
from e2e.schema.words import Label, Outcome, ReasonCode, ReasonKind, Role, kind_of
from e2e.weighing import weigh


@dataclass(frozen=True)
class Fact:
    """A reason of a sweep, and the cell that it is about."""

    index: int
    """Of the cell."""
    reason: Reason


@dataclass(frozen=True)
class View:
    """A cell, and what it means for the sweep."""

    index: int
    found: CellResult
    policy: Policy
    timed: Verdict
    """What the candidate's own times say: its verdict, but for a ceiling that rules a gain out without them."""
    wins: bool
    """At the level that the sweep asks for."""

    @property
    def title(self) -> str:
        """`prefill 8 x 2048 bfloat16`."""
        return self.found.cell.title

    @property
    def outcome(self) -> Outcome | None:
        """Of the cell by itself."""
        return self.found.verdict.outcome

    @property
    def row(self) -> Against | None:
        """Against the opponent that decides."""
        rows = self.found.verdict.latency.against
        return next((row for row in rows if row.opponent == self.policy.decides), None)

    @property
    def loses(self) -> bool:
        """Whether the step is shown to be slower by more than the margin."""
        return self.timed.outcome is Outcome.REFUTED and self.row is not None and is_loss(self.row, self.policy)

    @property
    def holds(self) -> bool:
        """Whether a loss beyond the margin is ruled out, on evidence that can be relied on."""
        blocking = [reason.code for reason in self.timed.reasons if kind_of(reason.code) is ReasonKind.BLOCKING]
        # The budget's end leaves a gain open; the interval up to then stands.
        is_sound = set(blocking) <= {ReasonCode.BUDGET_EXHAUSTED}
        return is_sound and self.row is not None and keeps(self.row, self.policy)

    @property
    def standing(self) -> Standing:
        """What the kernel does in this cell."""
        if self.wins:
            return "wins"
        if self.loses:
            return "loses"
        return "neither" if self.holds and self.timed.outcome is Outcome.REFUTED else "unknown"

    @property
    def reading(self) -> str:
        """`0.998x +- 0.003 (0.995 to 1.001) against eager with F.rms_norm`."""
        row = self.row
        return wording.ABSENT if row is None else f"{wording.estimate(row.speedup)} against {wording.arm(row.arm)}"

    @property
    def headline(self) -> Fact:
        """Why its own verdict is what it is."""
        return self.says(decisive(self.found.verdict)[0])

    def says(self, reason: Reason) -> Fact:
        """That reason, with the cell named."""
        return Fact(self.index, reason.model_copy(update={"message": f"{self.title}: {reason.message}"}))

    def means(self, code: ReasonCode, message: str) -> Fact:
        """A reason that only the sweep has."""
        return self.says(Reason(code=code, message=message))


def views_of(cells: Sequence[CellResult], policy: Policy) -> list[View]:
    """Every cell of a sweep, seen beside the others."""
    wins = _holm(cells, policy)
    timed = [
        judge(_without_ceiling(cell.evidence), policy) if cell.verdict.label is Label.NO_HEADROOM else cell.verdict
        for cell in cells
    ]
    return [View(i, cell, policy, timed=timed[i], wins=i in wins) for i, cell in enumerate(cells)]


def _without_ceiling(evidence: Evidence) -> Evidence:
    """The same run, had the ceiling not been measured."""
    arms = [arm.model_copy(update={"status": "skipped"}) if arm.role is Role.HEADROOM else arm for arm in evidence.arms]
    return evidence.model_copy(update={"arms": arms})


def _holm(cells: Sequence[CellResult], policy: Policy) -> set[int]:
    """Cells whose gain holds among so many: the error allowed is shared by those that are not yet shown to win.

    Source:
        Holm 1979, a simple sequentially rejective multiple test procedure.
    """
    claimed = {index for index, cell in enumerate(cells) if cell.verdict.outcome is Outcome.CONFIRMED}
    if policy.objective == "memory":
        return claimed  # a saving is told from its range over repeats, which has no level to adjust
    wins: set[int] = set()
    while found := {
        index for index in claimed - wins if confirms(cells[index].evidence, policy, among=len(cells) - len(wins))
    }:
        wins |= found
    return wins


def confirms(evidence: Evidence, policy: Policy, *, among: int) -> bool:
    """Whether the interval rule confirms the gain at the level that so many claims leave for one."""
    adjusted = policy.model_copy(update={"level": level_among(policy, among=among)})
    row = weigh(evidence, adjusted).deciding
    return row is not None and row.outcome is Outcome.CONFIRMED


def level_among(policy: Policy, *, among: int) -> float:
    """Two-sided confidence for one claim, if so many share the policy's error."""
    return 1 - (1 - policy.level) / among


def slowest(policy: Policy) -> float:
    """Speed-up down to which a cell counts as no slower."""
    return 1 - (policy.memory.noninferiority if policy.objective == "memory" else policy.margin)


def keeps(row: Against, policy: Policy) -> bool:
    """Whether the whole interval lies above what counts as a loss."""
    return row.speedup.lower_bound > slowest(policy)


def is_loss(row: Against, policy: Policy) -> bool:
    """Whether the whole interval is a loss."""
    return row.speedup.upper_bound < slowest(policy)


def decisive(verdict: Verdict) -> list[Reason]:
    """The reasons that are not advice; the first is the headline."""
    return [reason for reason in verdict.reasons if kind_of(reason.code) is not ReasonKind.ADVICE]
