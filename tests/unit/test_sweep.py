from __future__ import annotations

from collections import Counter
from typing import Any, Literal

import pytest

from e2e.judge import decided, judge
from e2e.schema.evidence import Evidence, Fault, Segment
from e2e.schema.policy import Policy
from e2e.schema.result import CellResult
from e2e.schema.words import Label, Outcome, ReasonCode, ReasonKind, Stage, kind_of
from e2e.schema.workload import Cell
from e2e.stats import blocks_for
from e2e.sweep import SweepVerdict, is_final, settled, sweep
from tests import results
from tests.fakes import (
    ALTERNATIVE,
    CANDIDATE,
    EAGER,
    SHAM,
    SyntheticClock,
    audit,
    engagement,
    evidence,
    op_check,
    policy,
    stopped_at,
    timed,
    with_ceiling,
)

ANY, ALL = policy(), policy(wins="all")
WIN = evidence(timed(1.05))
TIE = evidence(timed(1.0))
LOSS = evidence(timed(0.97))
GAIN_OPEN = evidence(timed(1.008, block_sd=0.006))
"""The interval holds 1.01 and lies above 0.99."""
LOSS_OPEN = evidence(timed(0.993, block_sd=0.006))
"""The interval lies below 1.01 and holds 0.99."""
NARROW = evidence(timed(1.0145, block_sd=0.0062, seed=4))
"""Clears 1.01 at the policy's own level, and not at a quarter of its error."""
NO_HEADROOM = evidence(with_ceiling(1.002), stage_finished=Stage.SCREEN, audit=None)
"""Stopped at the screen: the candidate was never timed in the long run."""


def cells(*found: Evidence, rules: Policy = ANY) -> list[CellResult]:
    """A sweep over batch 1, 2, 4, ... at sequence 128."""
    return [
        CellResult(cell=results.cell(batch=2**place, sequence=128), evidence=each, verdict=judge(each, rules))
        for place, each in enumerate(found)
    ]


def swept(*found: Evidence, rules: Policy = ANY) -> SweepVerdict:
    return sweep(cells(*found, rules=rules), rules)


def codes(verdict: SweepVerdict) -> list[ReasonCode]:
    return [reason.code for reason in verdict.reasons if kind_of(reason.code) is not ReasonKind.ADVICE]


def standings(verdict: SweepVerdict) -> list[str]:
    assert verdict.regions is not None
    return [region.standing for region in verdict.regions.cells]


def measured(ceiling: float, candidate: float, **noise: Any) -> Evidence:
    """A cell without headroom whose candidate was timed all the same."""
    return evidence([*with_ceiling(ceiling), *timed(candidate, **noise)])


def interval(found: Evidence, rules: Policy = ANY) -> tuple[float, float]:
    speedup = judge(found, rules).latency.against[0].speedup
    return speedup.lower_bound, speedup.upper_bound


def test_the_readings_of_these_tests_are_what_their_names_say() -> None:
    low, high = interval(GAIN_OPEN)
    assert 0.99 < low < 1.01 < high
    low, high = interval(LOSS_OPEN)
    assert low < 0.99 < high < 1.01
    assert interval(NARROW)[0] > 1.01 > interval(NARROW, policy(level=1 - (1 - ANY.level) / 4))[0]


# One cell


@pytest.mark.parametrize("found", [WIN, TIE, LOSS, GAIN_OPEN, LOSS_OPEN, NO_HEADROOM, stopped_at(Stage.CHECK)])
@pytest.mark.parametrize("rules", [ANY, ALL])
def test_a_single_cell_is_judged_by_itself(found: Evidence, rules: Policy) -> None:
    own, whole = judge(found, rules), swept(found, rules=rules)
    assert (own.outcome, own.label, own.reasons) == (whole.outcome, whole.label, whole.reasons)
    assert (0, None) == (whole.decides, whole.regions)


def test_no_cell_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one cell"):
        sweep([], ANY)


# Confirmed


def test_a_win_beside_cells_that_lose_nothing_is_confirmed_and_every_cell_is_named() -> None:
    verdict = swept(TIE, TIE, WIN, WIN)
    assert (Outcome.CONFIRMED, None, 2) == (verdict.outcome, verdict.label, verdict.decides)
    assert [ReasonCode.GAIN_CONFIRMED] * 2 + [ReasonCode.BELOW_MARGIN] * 2 == codes(verdict)
    titles = [f"prefill {batch} x 128 bfloat16: " for batch in (4, 8, 1, 2)]
    assert all(reason.message.startswith(title) for reason, title in zip(verdict.reasons, titles, strict=True))
    assert "no loss of more than 1 %" in verdict.reasons[2].message
    assert ["neither", "neither", "wins", "wins"] == standings(verdict)
    assert verdict.regions is not None
    assert ("rows >= 512", "between rows 256 and 512, and above 1024, nothing was measured") == (
        verdict.regions.rule,
        verdict.regions.limits,
    )


def test_where_every_cell_must_win_one_tie_refutes() -> None:
    verdict = swept(WIN, TIE, rules=ALL)
    assert (Outcome.REFUTED, Label.BELOW_MARGIN, 1) == (verdict.outcome, verdict.label, verdict.decides)
    assert verdict.reasons[0].message.startswith("prefill 2 x 128 bfloat16: ")


def test_wins_everywhere_are_confirmed_under_either_rule() -> None:
    assert Outcome.CONFIRMED is swept(WIN, WIN, WIN, rules=ALL).outcome
    assert Outcome.CONFIRMED is swept(WIN, WIN, WIN).outcome


def test_a_gain_left_open_in_one_cell_does_not_bar_another_cells_win() -> None:
    verdict = swept(GAIN_OPEN, WIN)
    assert Outcome.CONFIRMED is verdict.outcome
    assert ["unknown", "wins"] == standings(verdict)
    assert [ReasonCode.GAIN_CONFIRMED, ReasonCode.INTERVAL_STRADDLES] == codes(verdict)


def test_a_gain_left_open_by_the_budgets_end_is_no_doubt_about_a_loss() -> None:
    out_of_time = GAIN_OPEN.model_copy(update={"budget_exhausted": True})
    assert ReasonCode.BUDGET_EXHAUSTED is judge(out_of_time, ANY).reasons[0].code
    verdict = swept(out_of_time, WIN)
    assert Outcome.CONFIRMED is verdict.outcome
    assert [ReasonCode.GAIN_CONFIRMED, ReasonCode.INTERVAL_STRADDLES] == codes(verdict)


# Refuted


@pytest.mark.parametrize("rules", [ANY, ALL])
def test_one_cell_that_loses_refutes_the_sweep_as_a_regression(rules: Policy) -> None:
    verdict = swept(WIN, LOSS, WIN, LOSS, rules=rules)
    assert (Outcome.REFUTED, Label.REGRESSION, 1) == (verdict.outcome, verdict.label, verdict.decides)
    assert [ReasonCode.REGRESSION] * 2 == codes(verdict)
    assert ["prefill 2 x 128 bfloat16", "prefill 8 x 128 bfloat16"] == [r.message[:24] for r in verdict.reasons]
    assert ["wins", "loses", "wins", "loses"] == standings(verdict)


def test_a_sweep_in_which_no_cell_can_win_is_refuted() -> None:
    verdict = swept(NO_HEADROOM, TIE)
    assert (Outcome.REFUTED, Label.BELOW_MARGIN, 1) == (verdict.outcome, verdict.label, verdict.decides)
    assert [ReasonCode.BELOW_MARGIN, ReasonCode.NO_HEADROOM] == codes(verdict)


def test_a_loss_left_open_does_not_bar_a_refusal_where_nothing_can_win() -> None:
    assert Outcome.REFUTED is swept(LOSS_OPEN, LOSS_OPEN).outcome


# Inconclusive


def test_a_loss_that_is_not_ruled_out_leaves_the_sweep_open_and_names_the_cell() -> None:
    verdict = swept(WIN, LOSS_OPEN)
    assert (Outcome.INCONCLUSIVE, None, 1) == (verdict.outcome, verdict.label, verdict.decides)
    assert [ReasonCode.INTERVAL_STRADDLES] == codes(verdict)
    assert verdict.reasons[0].message.startswith("prefill 2 x 128 bfloat16: ")
    assert verdict.reasons[0].message.endswith("no gain, and a loss of more than 1 % is not ruled out")
    assert ["wins", "unknown"] == standings(verdict)


def test_without_a_win_cells_that_may_still_win_leave_the_sweep_open() -> None:
    verdict = swept(TIE, GAIN_OPEN)
    assert (Outcome.INCONCLUSIVE, 1) == (verdict.outcome, verdict.decides)
    assert [ReasonCode.INTERVAL_STRADDLES] == codes(verdict)


def test_where_every_cell_must_win_one_open_gain_leaves_the_sweep_open() -> None:
    assert Outcome.INCONCLUSIVE is swept(WIN, GAIN_OPEN, rules=ALL).outcome


BLOCKED: list[tuple[ReasonCode, dict[str, Any]]] = [
    (ReasonCode.UNVERIFIED_OUTPUTS, {"audit": audit(steps_audited=0)}),
    (ReasonCode.RECOMPILED, {"recompiles": [CANDIDATE]}),
    (ReasonCode.NOT_ON_PATH, {"engagement": engagement(watermark_moved=False)}),
]


@pytest.mark.parametrize(("code", "changes"), BLOCKED)
@pytest.mark.parametrize("speedup", [1.05, 1.0, 0.97])
def test_a_blocked_cell_is_no_win_no_loss_and_not_harmless(
    speedup: float, code: ReasonCode, changes: dict[str, Any]
) -> None:
    verdict = swept(WIN, evidence(timed(speedup), **changes))
    assert (Outcome.INCONCLUSIVE, 1) == (verdict.outcome, verdict.decides)
    assert [code] == codes(verdict)
    assert "prefill 2 x 128 bfloat16: a loss of more than 1 % is not ruled out: " in verdict.reasons[0].message
    assert ["wins", "unknown"] == standings(verdict)


def test_blocking_reasons_come_before_open_intervals() -> None:
    verdict = swept(GAIN_OPEN, evidence(timed(1.05), audit=None))
    assert [ReasonCode.UNVERIFIED_OUTPUTS, ReasonCode.INTERVAL_STRADDLES] == codes(verdict)
    assert 1 == verdict.decides


# No headroom


@pytest.mark.parametrize("changes", [{}, {"workers_finished": 2}])
def test_a_cell_without_headroom_whose_candidate_was_not_timed_leaves_the_loss_open(changes: dict[str, Any]) -> None:
    verdict = swept(WIN, NO_HEADROOM.model_copy(update=changes))
    assert (Outcome.INCONCLUSIVE, 1) == (verdict.outcome, verdict.decides)
    assert "prefill 2 x 128 bfloat16: a loss of more than 1 % is not ruled out: " in verdict.reasons[0].message
    assert ReasonKind.BLOCKING is kind_of(verdict.reasons[0].code)
    assert ["wins", "unknown"] == standings(verdict)


def test_a_cell_without_headroom_that_was_timed_and_loses_nothing_bars_no_win() -> None:
    verdict = swept(measured(1.002, 1.0), WIN)
    assert Outcome.CONFIRMED is verdict.outcome
    assert [ReasonCode.GAIN_CONFIRMED, ReasonCode.BELOW_MARGIN] == codes(verdict)
    assert ["neither", "wins"] == standings(verdict)


def test_a_cell_without_headroom_that_was_timed_and_loses_refutes() -> None:
    slow = measured(1.002, 0.97)
    assert Label.NO_HEADROOM is judge(slow, ANY).label
    verdict = swept(slow, WIN)
    assert (Outcome.REFUTED, Label.REGRESSION, 0) == (verdict.outcome, verdict.label, verdict.decides)
    assert ["loses", "wins"] == standings(verdict)


def test_a_cell_without_headroom_that_was_timed_badly_is_not_harmless() -> None:
    bad = measured(1.002, 1.0).model_copy(update={"recompiles": [CANDIDATE]})
    verdict = swept(bad, WIN)
    assert (Outcome.INCONCLUSIVE, 0) == (verdict.outcome, verdict.decides)
    assert [ReasonCode.RECOMPILED] == codes(verdict)


def test_where_every_cell_must_win_a_cell_without_headroom_refutes() -> None:
    verdict = swept(WIN, NO_HEADROOM, rules=ALL)
    assert (Outcome.REFUTED, Label.NO_HEADROOM) == (verdict.outcome, verdict.label)


# Many claims


def test_a_win_that_holds_for_one_cell_does_not_hold_as_the_best_of_four() -> None:
    assert Outcome.CONFIRMED is judge(NARROW, ANY).outcome
    verdict = swept(NARROW, TIE, TIE, TIE)
    assert (Outcome.INCONCLUSIVE, 0) == (verdict.outcome, verdict.decides)
    assert verdict.reasons[0].message.endswith("and not at the 99.45 % that 4 claims ask for")
    assert ["unknown", "neither", "neither", "neither"] == standings(verdict)


def test_wins_that_hold_leave_the_others_less_to_share() -> None:
    verdict = swept(NARROW, WIN, WIN, WIN, rules=ALL)
    assert Outcome.CONFIRMED is verdict.outcome
    assert ["wins"] * 4 == standings(verdict)


def test_a_memory_win_has_no_level_to_adjust_and_its_own_bound_on_losses() -> None:
    rules = policy(objective="memory", memory={"noninferiority": 0.05})
    slower = cells(evidence(timed(0.97)), TIE, rules=rules)
    saved = [
        cell.model_copy(update={"verdict": cell.verdict.model_copy(update={"outcome": Outcome.CONFIRMED})})
        for cell in slower
    ]
    assert Outcome.CONFIRMED is sweep(saved, rules).outcome
    assert Outcome.CONFIRMED is not sweep(saved, policy()).outcome


# Cells that are wrong, and stages


@pytest.mark.parametrize("rules", [ANY, ALL])
def test_one_wrong_cell_decides_whatever_the_others_say(rules: Policy) -> None:
    wrong = evidence(timed(1.05), op_checks=[op_check(status="wrong")])
    verdict = swept(WIN, LOSS, wrong, rules=rules)
    assert (Outcome.INCORRECT, 2) == (verdict.outcome, verdict.decides)
    assert [ReasonCode.OP_ERROR_EXCEEDED] == codes(verdict)
    assert verdict.reasons[0].message.startswith("prefill 4 x 128 bfloat16: ")
    assert verdict.regions is not None
    assert verdict.regions.rule is None


def test_among_cells_that_are_broken_the_worst_comes_first() -> None:
    found = cells(WIN, WIN, WIN, WIN)
    outcomes = [Outcome.NOT_APPLICABLE, Outcome.FAILED, Outcome.INCORRECT, Outcome.CONFIRMED]
    broken = [
        cell.model_copy(update={"verdict": cell.verdict.model_copy(update={"outcome": outcome})})
        for cell, outcome in zip(found, outcomes, strict=True)
    ]
    assert Outcome.INCORRECT is sweep(broken, ANY).outcome
    assert Outcome.FAILED is sweep([*broken[:2], broken[3]], ANY).outcome
    assert Outcome.NOT_APPLICABLE is sweep([broken[0], broken[3]], ANY).outcome


def screened(ceiling: float | None) -> Evidence:
    return stopped_at(Stage.SCREEN, segments=with_ceiling(ceiling) if ceiling else [])


@pytest.mark.parametrize(
    ("wins", "outcome", "label", "ceilings"),
    [
        ("any", None, Label.PROMISING, [1.002, 1.2]),
        ("all", Outcome.REFUTED, Label.NO_HEADROOM, [1.002, 1.2]),
        ("any", Outcome.REFUTED, Label.NO_HEADROOM, [1.002, 1.002]),
        ("any", Outcome.INCONCLUSIVE, None, [1.2, None]),
        ("all", None, Label.PROMISING, [1.2, 1.2]),
    ],
)
def test_a_screen_asks_only_whether_the_claim_is_still_possible(
    wins: Literal["any", "all"], outcome: Outcome | None, label: Label | None, ceilings: list[float | None]
) -> None:
    verdict = swept(*map(screened, ceilings), rules=policy(wins=wins))
    assert (outcome, label) == (verdict.outcome, verdict.label)


def test_a_stage_that_every_cell_passed_is_passed() -> None:
    verdict = swept(stopped_at(Stage.CHECK), stopped_at(Stage.CHECK))
    assert (None, None, []) == (verdict.outcome, verdict.label, verdict.reasons)


def test_advice_is_kept_once_with_its_cell() -> None:
    seen = [each.model_copy(update={"random_weights": True}) for each in (WIN, TIE)]
    verdict = swept(*seen)
    assert ReasonCode.RANDOM_WEIGHTS is verdict.reasons[-1].code
    assert verdict.reasons[-1].message.startswith("prefill 1 x 128 bfloat16: ")
    assert 1 == sum(reason.code is ReasonCode.RANDOM_WEIGHTS for reason in verdict.reasons)


# When a cell may stop


@pytest.mark.parametrize(
    ("expected", "found", "among", "rules"),
    [
        (True, WIN, 4, ANY),
        (True, TIE, 4, ANY),
        (True, LOSS, 4, ANY),
        (True, LOSS_OPEN, 1, ANY),
        (False, LOSS_OPEN, 4, ANY),
        (True, LOSS_OPEN, 4, ALL),
        (True, NARROW, 1, ANY),
        (False, NARROW, 4, ANY),
        (False, GAIN_OPEN, 4, ANY),
        (False, evidence(timed(1.05, workers=6)), 4, ANY),
    ],
)
def test_a_cell_stops_once_the_sweep_needs_no_more_of_it(
    expected: bool, found: Evidence, among: int, rules: Policy
) -> None:
    assert expected is settled(found, rules, cells=among)
    assert decided(found, rules) is settled(found, rules, cells=1)


@pytest.mark.parametrize(
    ("expected", "outcome", "among", "rules"),
    [
        (True, Outcome.INCORRECT, 4, ANY),
        (True, Outcome.FAILED, 4, ANY),
        (True, Outcome.NOT_APPLICABLE, 1, ANY),
        (True, Outcome.REFUTED, 1, ANY),
        (False, Outcome.REFUTED, 2, ANY),
        (True, Outcome.REFUTED, 2, ALL),
        (False, Outcome.INCONCLUSIVE, 1, ANY),
        (False, None, 1, ANY),
    ],
)
def test_without_headroom_a_cell_goes_on_where_another_may_win(
    expected: bool, outcome: Outcome | None, among: int, rules: Policy
) -> None:
    assert expected is is_final(outcome, rules, cells=among)


def test_rows_are_the_tokens_of_a_step() -> None:
    rows = {
        step: Cell(batch=4, sequence=256, dtype="float32", step=step).rows for step in ("prefill", "train", "decode")
    }
    assert {"prefill": 1024, "train": 1024, "decode": 4} == rows


# Calibration


def run(seed: int, truths: list[float], rules: Policy, *, block_sd: float, worker_sd: float) -> SweepVerdict:
    """A sweep on an invented machine, every cell driven by the real stopping rule."""
    found = []
    for cell, truth in enumerate(truths):
        clock = SyntheticClock(1000 * seed + cell, block_sd=block_sd, worker_sd=worker_sd)
        steps = {EAGER: 0.01, ALTERNATIVE: 0.01, CANDIDATE: 0.01 / truth, SHAM: 0.01}
        segments: list[Segment] = []
        for worker in range(rules.looks[-1]):
            segments += clock.worker(steps, worker=worker, blocks=blocks_for(block_sd, rules))
            if worker + 1 in rules.looks and settled(evidence(segments), rules, cells=len(truths)):
                break
        found.append(evidence(segments))
    return swept(*found, rules=rules)


def test_four_cells_of_identical_code_are_hardly_ever_confirmed() -> None:
    outcomes = Counter(run(seed, [1.0] * 4, ANY, block_sd=0.01, worker_sd=0.003).outcome for seed in range(200))
    assert outcomes[Outcome.CONFIRMED] <= 0.005 * 200
    assert outcomes[Outcome.REFUTED] >= 0.9 * 200


def test_the_best_of_four_gains_at_the_margin_is_confirmed_no_more_often_than_one() -> None:
    outcomes = Counter(run(seed, [1.01] * 4, ANY, block_sd=0.002, worker_sd=0.002).outcome for seed in range(100))
    assert outcomes[Outcome.CONFIRMED] <= 0.035 * 100  # 14 of 100 without Holm's adjustment


# ---- Cells that memory does not hold

NO_ROOM = evidence(stage_finished=Stage.BUILD, audit=None, no_room="CUDA out of memory: 8 x 8192")


def test_a_cell_that_memory_does_not_hold_is_told_and_counts_neither_way() -> None:
    found = swept(WIN, TIE, NO_ROOM)
    assert found.outcome is Outcome.CONFIRMED
    assert ReasonCode.NO_ROOM in codes(found)
    assert "4 x 128" in next(r.message for r in found.reasons if r.code is ReasonCode.NO_ROOM)
    assert swept(TIE, NO_ROOM).outcome is Outcome.REFUTED
    assert swept(LOSS, NO_ROOM).outcome is Outcome.REFUTED


def test_where_no_cell_fits_nothing_is_decided() -> None:
    found = swept(NO_ROOM, NO_ROOM)
    assert found.outcome is Outcome.INCONCLUSIVE
    assert set(codes(found)) == {ReasonCode.NO_ROOM}


def test_a_kernel_that_runs_out_of_memory_where_the_model_fits_still_fails_the_sweep() -> None:
    fault = Fault(code=ReasonCode.OUT_OF_MEMORY, message="workspace of 40 GiB", stage=Stage.CHECK)
    assert swept(WIN, evidence(stage_finished=Stage.BUILD, audit=None, faults=[fault])).outcome is Outcome.FAILED
