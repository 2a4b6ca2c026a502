"""What memory figures mean: rules, boundaries, and what an objective of memory makes of step times."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.feedback import feedback
from e2e.invocation import Invocation
from e2e.judge import decided, judge
from e2e.schema.evidence import DeviceFacts, Evidence, MemoryRecord, MutantCheck
from e2e.schema.policy import Policy
from e2e.schema.verdict import Verdict
from e2e.schema.words import Label, Outcome, ReasonCode, Stage
from tests import results
from tests.fakes import ALTERNATIVE, CANDIDATE, audit, evidence, op_check, policy, stopped_at, timed, with_ceiling

H200 = DeviceFacts(kind="cuda", name="H200", count_threads=16)
MIB = 2**20
PEAK = 1000 * MIB
SAME, SLOWER, FASTER = timed(1.0), timed(0.97), timed(1.05)
NEAR_BOUND = timed(0.99, block_sd=0.01)


def records(
    saved: float = 0.1, *, on_device: float | None = None, spread: float = 0.0, processes: int = 3, **grown: Any
) -> list[MemoryRecord]:
    """Both arms; savings and the candidate's range over its processes are shares of the baseline's peak."""
    found = []
    for arm, is_saving in ((ALTERNATIVE, False), (CANDIDATE, True)):
        for process in range(processes):
            noise = spread * (process - 1) / 2 if is_saving else 0.0
            torch = (saved if is_saving else 0.0) - noise
            device = (saved if on_device is None else on_device) - noise if is_saving else 0.0
            found.append(
                MemoryRecord(
                    arm=arm,
                    process=process,
                    peak_allocated_bytes=round(PEAK * (1 - torch)),
                    device_used_delta_bytes=round(PEAK * (0.5 - device)),
                    steps=12,
                    growth_bytes=grown.get("candidate" if is_saving else "baseline"),
                )
            )
    return found


def rules(**changes: Any) -> Policy:
    return policy(**{"objective": "memory", **changes})


def run(segments: Any = SAME, **changes: Any) -> Evidence:
    return evidence(segments, **{"device": H200, "memory": records(), **changes})


def judged(segments: Any = SAME, **changes: Any) -> Verdict:
    return judge(run(segments, **changes), rules())


def codes(verdict: Verdict) -> list[ReasonCode]:
    return [reason.code for reason in verdict.reasons]


def headline(verdict: Verdict) -> ReasonCode:
    return verdict.reasons[0].code


# The rule


@pytest.mark.parametrize("segments", [SAME, FASTER])
def test_less_memory_and_a_step_that_is_not_slower_is_confirmed(segments: Any) -> None:
    verdict = judged(segments)
    assert (Outcome.CONFIRMED, None) == (verdict.outcome, verdict.label)
    assert [ReasonCode.MEMORY_REDUCED] == codes(verdict)
    assert Outcome.CONFIRMED is verdict.memory.outcome
    assert "10 % less" in verdict.reasons[0].message and "bound 0.990x" in verdict.reasons[0].message


def test_latency_keeps_an_outcome_of_its_own() -> None:
    assert Outcome.REFUTED is judged(SAME).latency.outcome
    assert Outcome.CONFIRMED is judged(FASTER).latency.outcome
    assert judge(run(FASTER), policy()).latency == judged(FASTER).latency


@pytest.mark.parametrize(
    ("expected", "saved", "spread"),
    [
        (Outcome.CONFIRMED, 0.01, 0.0),
        (Outcome.REFUTED, 0.0099, 0.0),
        (Outcome.CONFIRMED, 0.02, 0.01),
        (Outcome.INCONCLUSIVE, 0.02, 0.0102),
        (Outcome.INCONCLUSIVE, 0.005, 0.0026),
        (Outcome.REFUTED, 0.005, 0.0024),
        (Outcome.REFUTED, 0.0, 0.0),
        (Outcome.REFUTED, -0.1, 0.0),
    ],
)
def test_a_saving_must_clear_the_margin_and_twice_its_range(expected: Outcome, saved: float, spread: float) -> None:
    verdict = judged(memory=records(saved, spread=spread))
    assert (expected, expected) == (verdict.outcome, verdict.memory.outcome)
    assert verdict.memory.reduction_ratio == pytest.approx(saved, abs=1e-6)
    assert verdict.memory.range_ratio == pytest.approx(spread, abs=1e-6)


def test_a_saving_that_only_one_source_shows_decides_nothing() -> None:
    verdict = judged(memory=records(0.04, on_device=0.0))
    assert (Outcome.INCONCLUSIVE, ReasonCode.MEMORY_UNCERTAIN) == (verdict.outcome, headline(verdict))
    assert 0.0 == verdict.memory.reduction_ratio
    assert "device" in verdict.memory.measure


def test_a_saving_paid_for_with_time_is_refuted_as_a_regression() -> None:
    verdict = judged(SLOWER)
    assert (Outcome.REFUTED, Label.REGRESSION) == (verdict.outcome, verdict.label)
    assert Outcome.CONFIRMED is verdict.memory.outcome


def test_a_saving_beside_a_step_that_may_be_slower_is_uncertain() -> None:
    assert ReasonCode.MEMORY_UNCERTAIN is headline(judged(NEAR_BOUND))


def test_how_much_slower_a_step_may_be_is_the_policys() -> None:
    loose = rules(memory={"noninferiority": 0.05})
    assert Outcome.CONFIRMED is judge(run(SLOWER), loose).outcome


def test_fewer_processes_than_the_policy_asks_for_decide_nothing() -> None:
    verdict = judged(memory=records(processes=2))
    assert ReasonCode.MEMORY_UNCERTAIN is headline(verdict)
    assert "in 2 of 3 processes per arm" in verdict.reasons[0].message


def test_a_figure_that_was_not_seen_in_every_process_decides_nothing() -> None:
    blind = [r.model_copy(update={"device_used_delta_bytes": None}) if r.process == 0 else r for r in records()]
    assert ReasonCode.MEMORY_UNCERTAIN is headline(judged(memory=blind))
    assert ReasonCode.MEMORY_UNCERTAIN is headline(judged(memory=[]))


def test_a_cpu_cannot_show_a_memory_outcome() -> None:
    cpu = DeviceFacts(kind="cpu", name="a CPU", count_threads=2)
    figures = [
        MemoryRecord(arm=arm, process=p, host_high_water_bytes=9) for arm in (ALTERNATIVE, CANDIDATE) for p in range(3)
    ]
    verdict = judged(device=cpu, memory=figures)
    assert (Outcome.INCONCLUSIVE, ReasonCode.MEMORY_UNCERTAIN) == (verdict.outcome, headline(verdict))
    assert "CPU" in verdict.reasons[0].message


# The run's course


def test_without_headroom_for_time_the_run_goes_on() -> None:
    screened = run(with_ceiling(1.002), stage_asked=Stage.SCREEN, stage_finished=Stage.SCREEN)
    assert ReasonCode.NO_HEADROOM is headline(judge(screened, policy()))
    assert (None, Label.PROMISING) == (judge(screened, rules()).outcome, judge(screened, rules()).label)


@pytest.mark.parametrize("asked", [Stage.SCREEN, Stage.VERDICT])
def test_what_saves_nothing_is_refuted_before_the_long_run(asked: Stage) -> None:
    seen = run((), stage_asked=asked, stage_finished=Stage.SCREEN, memory=records(0.0))
    verdict = judge(seen, rules())
    assert (Outcome.REFUTED, ReasonCode.MEMORY_NOT_REDUCED) == (verdict.outcome, headline(verdict))


def test_a_saving_without_the_long_run_is_an_incomplete_run() -> None:
    seen = run((), stage_finished=Stage.SCREEN)
    assert ReasonCode.RUN_INCOMPLETE is headline(judge(seen, rules()))


def test_an_uncertain_saving_is_not_promising() -> None:
    seen = run((), stage_asked=Stage.SCREEN, stage_finished=Stage.SCREEN, memory=records(0.04, on_device=0.0))
    assert ReasonCode.MEMORY_UNCERTAIN is headline(judge(seen, rules()))


def test_a_check_says_nothing_of_memory() -> None:
    verdict = judge(stopped_at(Stage.CHECK, device=H200, memory=[]), rules())
    assert (None, None, []) == (verdict.outcome, verdict.memory.outcome, verdict.reasons)


@pytest.mark.parametrize(
    ("expected", "segments"),
    [
        (True, SAME),
        (True, SLOWER),
        (True, timed(1.01, block_sd=0.01)),
        (False, NEAR_BOUND),
        (False, timed(1.0, workers=6)),
    ],
)
def test_a_look_stops_the_run_once_it_is_known_whether_the_step_is_slower(expected: bool, segments: Any) -> None:
    assert expected is decided(run(segments), rules())


@pytest.mark.parametrize(("expected", "segments"), [(False, SAME), (True, NEAR_BOUND)])
def test_the_budgets_end_counts_only_while_time_is_undecided(expected: bool, segments: Any) -> None:
    found = codes(judged(segments, budget_exhausted=True))
    assert expected is (ReasonCode.BUDGET_EXHAUSTED in found)


# What stands in the way


def test_steps_that_were_compared_with_nothing_confirm_no_saving() -> None:
    assert ReasonCode.UNVERIFIED_OUTPUTS is headline(judged(audit=audit(steps_compared=0)))


def test_a_check_without_power_taints_the_saving_too() -> None:
    verdict = judged(mutants=[MutantCheck(name="zeros", caught=False)])
    assert (Outcome.INCONCLUSIVE, Outcome.INCONCLUSIVE) == (verdict.outcome, verdict.memory.outcome)


def test_a_wrong_kernel_saves_nothing() -> None:
    verdict = judged(op_checks=[op_check(status="wrong")])
    assert (Outcome.INCORRECT, None) == (verdict.outcome, verdict.memory.outcome)


# Advice


@pytest.mark.parametrize(("expected", "on_device"), [(False, 0.1), (False, 0.05), (True, 0.049), (True, 0.151)])
def test_sources_that_change_by_different_amounts_disagree(expected: bool, on_device: float) -> None:
    found = judge(run(FASTER, memory=records(0.1, on_device=on_device, processes=1)), policy())
    assert Outcome.CONFIRMED is found.outcome
    assert expected is (ReasonCode.MEMORY_DISAGREES in codes(found))


@pytest.mark.parametrize(
    ("expected", "grown"),
    [
        (True, {"candidate": 2 * MIB, "baseline": 0}),
        (True, {"candidate": 2 * MIB, "baseline": None}),
        (False, {"candidate": MIB, "baseline": 0}),
        (False, {"candidate": 2 * MIB, "baseline": 2 * MIB}),
        (False, {"candidate": None, "baseline": 0}),
        (False, {}),
    ],
)
def test_memory_grows_if_the_candidates_does_and_the_baselines_does_not(expected: bool, grown: dict[str, Any]) -> None:
    found = judge(run(FASTER, memory=records(0.0, **grown)), policy())
    assert Outcome.CONFIRMED is found.outcome
    assert expected is (ReasonCode.MEMORY_GROWS in codes(found))


def test_growth_within_a_thousandth_of_the_peak_is_none() -> None:
    large = [r.model_copy(update={"peak_allocated_bytes": 3 * PEAK}) for r in records(candidate=2 * MIB, baseline=0)]
    assert ReasonCode.MEMORY_GROWS not in codes(judge(run(FASTER, memory=large), policy()))


def test_growth_in_one_process_of_three_is_none() -> None:
    once = [
        r.model_copy(update={"growth_bytes": 0}) if r.process else r for r in records(candidate=9 * MIB, baseline=0)
    ]
    assert ReasonCode.MEMORY_GROWS not in codes(judge(run(FASTER, memory=once), policy()))


# What is shown


def test_without_the_objective_there_are_numbers_and_no_outcome() -> None:
    memory = judge(run(FASTER), policy()).memory
    assert None is memory.outcome
    assert memory.baseline is not None and memory.candidate is not None
    assert (PEAK, 900 * MIB) == (memory.baseline.peak_allocated_bytes, memory.candidate.peak_allocated_bytes)
    assert (3, None) == (memory.candidate.processes, memory.candidate.pinned_bytes)


def test_the_figures_are_medians_over_processes() -> None:
    found = [MemoryRecord(arm=CANDIDATE, process=p, peak_reserved_bytes=size) for p, size in enumerate((7, 1, 5))]
    memory = judge(run(FASTER, memory=found), policy()).memory
    assert memory.candidate is not None
    assert (5, None) == (memory.candidate.peak_reserved_bytes, memory.baseline)


def test_one_process_has_no_range() -> None:
    memory = judge(run(FASTER, memory=records(processes=1)), policy()).memory
    assert (pytest.approx(0.1), None) == (memory.reduction_ratio, memory.range_ratio)


def test_on_a_cpu_the_high_water_mark_is_shown() -> None:
    memory = judge(evidence(FASTER), policy()).memory
    assert (None, 0.0) == (memory.outcome, memory.reduction_ratio)
    assert "high-water" in memory.measure


def test_memory_that_was_not_measured_is_absent() -> None:
    memory = judge(evidence(FASTER, memory=[]), policy()).memory
    assert (None, None, "not measured") == (memory.baseline, memory.candidate, memory.measure)


# What to do next


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("gate", {}),
        ("read", {"memory": records(0.0)}),
        ("again", {"memory": []}),
        ("choose_device", {"device": DeviceFacts(kind="cpu", name="a CPU", count_threads=2)}),
        ("trace", {"segments": SLOWER}),
    ],
)
def test_every_memory_verdict_says_what_to_do(kind: str, changes: dict[str, Any]) -> None:
    seen = run(**changes)
    found = feedback(
        seen, judge(seen, rules()), cell=results.cell(), policy=rules(), invocation=Invocation("w.yaml", ("k.cu",), "r")
    )
    assert kind == found.next_actions[0].kind
