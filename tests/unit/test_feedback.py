from __future__ import annotations

import itertools
import re
import shlex
from dataclasses import replace
from typing import Any

import pytest

from e2e.feedback import claim, feedback, set_up
from e2e.invocation import Invocation
from e2e.judge import judge
from e2e.schema.evidence import (
    BuildRecord,
    DeviceFacts,
    Evidence,
    Fault,
    Isolated,
    MemoryRecord,
    MutantCheck,
    Origin,
    Where,
)
from e2e.schema.kernel import Claim
from e2e.schema.policy import Pins, Policy
from e2e.schema.result import Feedback, SetUp
from e2e.schema.words import Outcome, ReasonCode, ReasonKind, Stage, kind_of
from e2e.wording import percent
from tests import results
from tests.fakes import (
    ALTERNATIVE,
    CANDIDATE,
    EAGER,
    STEP_S,
    arms,
    engagement,
    evidence,
    kernel,
    op_check,
    policy,
    site,
    stopped_at,
    timed,
    with_ceiling,
)

TYPED = Invocation("workloads/my llama.yaml", ("k.cpp",), "results/r1", options=("--device", "cpu"))
HOST_BOUND = DeviceFacts(kind="cuda", name="H200", count_threads=8, busy_ratio=0.2)
WIN = timed(1.05)
STRADDLE = timed(1.005, block_sd=0.01)


def fed(run: Evidence, rules: Policy | None = None, typed: Invocation = TYPED) -> Feedback:
    rules = rules or policy()
    return feedback(run, judge(run, rules), cell=results.cell(), policy=rules, invocation=typed)


def commands(found: Feedback) -> list[str]:
    return [action.command or "" for action in found.next_actions]


# What was typed


def test_a_command_repeats_what_was_typed_and_quotes_it() -> None:
    typed = ["e2e", "validate", "workloads/my llama.yaml", "--kernel", "k.cpp", "--device", "cpu"]
    assert typed == shlex.split(TYPED.validate())


def test_a_command_names_the_stage_the_policy_and_whole_seconds() -> None:
    words = shlex.split(TYPED.validate(until=Stage.CHECK, policy="standard", budget_s=60.2))
    assert ["--policy", "standard", "--until", "check", "--budget", "61"] == words[-6:]


def test_another_policy_replaces_the_one_that_was_typed() -> None:
    typed = Invocation("w.yaml", ("k.cpp",), "r", policy="demo")
    assert typed.validate(policy="standard").count("--policy") == 1
    assert typed.validate().endswith("--policy demo")


# Set-up


def test_break_even_is_the_extra_build_load_and_first_step_over_the_gain_per_step() -> None:
    run = evidence(arms=arms(candidate={"first_step_s": 0.6, "step_s": 0.008}, alternative={"step_s": 0.01}))
    expected = SetUp(
        build_s=2.0,
        bind_s=0.5,
        first_step_s=0.6,
        warm_step_s=0.008,
        baseline_first_step_s=0.1,
        baseline_warm_step_s=0.01,
        break_even_steps=1500,
    )
    assert expected == set_up(run)


def test_timed_steps_count_before_pilots() -> None:
    found = set_up(evidence(WIN)).warm_step_s
    assert found == pytest.approx(0.01 / 1.05, rel=0.01)


def test_a_first_step_is_the_longer_of_where_it_compiled_and_where_it_ran_alone() -> None:
    alone = [MemoryRecord(arm=CANDIDATE, first_step_s=0.3), MemoryRecord(arm=ALTERNATIVE, first_step_s=0.4)]
    found = set_up(evidence(memory=alone, arms=arms(candidate={"first_step_s": 0.6})))
    assert (0.6, 0.4) == (found.first_step_s, found.baseline_first_step_s)
    unknown = set_up(evidence(memory=alone, arms=arms(candidate={"first_step_s": None})))
    assert unknown.first_step_s is None


def test_a_candidate_that_starts_faster_is_ahead_from_the_first_step() -> None:
    run = evidence(builds=[], arms=arms(candidate={"first_step_s": 0.01, "step_s": 0.008}))
    assert set_up(run).build_s is None
    faster = arms(candidate={"first_step_s": 0.01, "step_s": 0.008}, alternative={"first_step_s": 9.0})
    assert set_up(evidence(arms=faster)).break_even_steps == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"arms": arms(candidate={"step_s": 0.02})},
        {"arms": arms(candidate={"step_s": None})},
        {"arms": arms(candidate={"first_step_s": None, "step_s": 0.008})},
        {"builds": [], "arms": arms(candidate={"step_s": 0.008})},
        {"bind_s": None, "arms": arms(candidate={"step_s": 0.008})},
        {"arms": arms(candidate={"step_s": 0.008}, alternative={"first_step_s": None})},
        {
            "builds": [BuildRecord(kernel="0" * 64, seconds=0.001, cached=True)],
            "arms": arms(candidate={"step_s": 0.008}),
        },
        {"candidate": None},
        {"baseline": None},
    ],
)
def test_without_a_gain_or_with_an_unknown_there_is_no_break_even(changes: dict[str, Any]) -> None:
    assert set_up(evidence(**changes)).break_even_steps is None


def test_a_gain_within_the_noise_has_no_break_even() -> None:
    run = evidence(timed(1.0005))
    assert set_up(run, judge(run, policy())).break_even_steps is None
    won = evidence(WIN)
    assert set_up(won, judge(won, policy())).break_even_steps is not None


# Claim

ISOLATED = Isolated(
    shape="8 x 256",
    calls_per_step=13,
    eager_s=1e-4,
    alternative="F.rms_norm",
    alternative_s=2e-5,
    candidate_s=1e-5,
)


def test_a_claim_stands_beside_the_op_alone_and_the_workload() -> None:
    run = evidence(timed(1.159, alternative=1.159), isolated=ISOLATED)
    record = claim([kernel(Claim(speedup=12.9))], run, judge(run, policy()))
    assert record is not None
    assert record.claimed is not None
    assert record.claimed.speedup == 12.9
    assert record.isolated == pytest.approx(10)
    assert record.in_context == pytest.approx(1.159, rel=0.01)


def test_a_claim_against_a_pytorch_path_is_compared_with_that() -> None:
    run = evidence(timed(1.159, alternative=1.159), isolated=ISOLATED)
    record = claim([kernel(Claim(speedup=2, against="F.rms_norm"))], run, judge(run, policy()))
    assert record is not None
    assert record.isolated == pytest.approx(2)
    assert record.in_context == pytest.approx(1.0, rel=0.01)


def test_without_claim_and_measurement_there_is_no_claim_record() -> None:
    run = evidence()
    assert claim([kernel()], run, judge(run, policy())) is None


def test_an_unmeasured_claim_is_absent_and_not_one() -> None:
    run = evidence()
    record = claim([kernel(Claim(speedup=3))], run, judge(run, policy()))
    assert record is not None
    assert (None, None) == (record.isolated, record.in_context)


# Feedback


def test_a_build_failure_is_the_kernels_and_its_next_command_builds_again() -> None:
    where = Where(file="k.cpp", line=31)
    fault = Fault(code=ReasonCode.BUILD_FAILED, message="expected ;", stage=Stage.BUILD, where=where)
    found = fed(evidence(faults=[fault]))
    assert ("kernel", False) == (found.fault, found.retryable)
    assert "k.cpp:31" in found.next_actions[0].why
    assert commands(found)[0].endswith("--until build")


def test_inputs_that_were_kept_are_run_again_by_one_command() -> None:
    run = evidence(op_checks=[op_check(status="wrong")], failing_inputs=["captures/rms_norm.safetensors"])
    typed = replace(TYPED, options=("--op", "rms_norm", "--seed", "3", "--device", "cpu"))
    found = fed(run, typed=typed)
    assert [action.kind for action in found.next_actions] == ["reproduce", "fix"]
    assert commands(found)[0] == "e2e check k.cpp --captures results/r1 --op rms_norm --device cpu"
    several = fed(run, typed=replace(TYPED, kernels=("a.cpp", "b.cpp")))
    assert [action.kind for action in several.next_actions] == ["fix"]


def test_a_wrong_output_names_the_site_and_repeats_the_check() -> None:
    found = fed(evidence(op_checks=[op_check(status="wrong")]))
    assert "model.layers.3.input_layernorm" in found.next_actions[0].why
    assert commands(found)[0].endswith("--until check")


def test_a_stale_output_needs_the_timed_steps_again() -> None:
    fault = Fault(code=ReasonCode.STALE_OUTPUT, message="", stage=Stage.VERDICT)
    assert "--until" not in commands(fed(evidence(faults=[fault])))[0]


def test_a_kernel_without_backward_is_told_how_to_declare_one() -> None:
    fault = Fault(code=ReasonCode.NO_BACKWARD, message="", stage=Stage.CHECK)
    assert "`backward:`" in fed(evidence(faults=[fault])).next_actions[0].why


def test_no_headroom_says_what_is_left_to_win() -> None:
    found = fed(evidence(with_ceiling(1.002), stage_finished=Stage.SCREEN))
    assert found.left_to_win == pytest.approx(1.004, abs=0.003)
    assert ["e2e trace results/r1"] == commands(found)


def test_a_matched_kernel_is_told_which_path_to_use_and_whom_it_lost_to() -> None:
    found = fed(evidence(timed(1.159, alternative=1.159)))
    assert [ALTERNATIVE] == found.lost_to
    assert "F.rms_norm" in found.next_actions[0].why
    assert "e2e adopt results/r1 --alternative F.rms_norm" == commands(found)[0]
    several = replace(TYPED, kernels=("a.cpp", "b.cpp"))
    assert "e2e report results/r1" == commands(fed(evidence(timed(1.159, alternative=1.159)), typed=several))[0]


def test_a_regression_loses_to_both_opponents() -> None:
    assert [ALTERNATIVE, EAGER] == fed(evidence(timed(0.9))).lost_to


def test_what_was_lost_is_told_in_microseconds_of_the_step() -> None:
    found = fed(evidence(timed(0.9)))
    assert [ALTERNATIVE, EAGER] == [item.arm for item in found.lost_by]
    assert all(
        item.microseconds_per_step == pytest.approx(1e6 * STEP_S * (1 / 0.9 - 1), rel=0.02) for item in found.lost_by
    )


def test_the_first_wrong_input_is_told_so_that_it_can_be_made_again() -> None:
    wrong = op_check(
        status="wrong", code=ReasonCode.OP_ERROR_EXCEEDED, error_candidate=0.3, position="[3, 0]: the last row"
    )
    case = fed(evidence(op_checks=[op_check(), wrong], stage_finished=Stage.CHECK)).failing_case
    assert case is not None
    assert (case.site, case.shape, case.stride, case.dtype) == (wrong.site, wrong.shape, wrong.stride, wrong.dtype)
    assert (case.error, case.allowed, case.position) == (0.3, wrong.allowed, "[3, 0]: the last row")
    assert fed(evidence(WIN)).failing_case is None


def test_a_confirmed_gain_goes_to_the_gate() -> None:
    found = fed(evidence(WIN))
    assert (None, False, []) == (found.fault, found.retryable, found.lost_to)
    assert commands(found)[0] == "e2e gate results/r1"


def test_a_passed_stage_is_followed_by_the_next() -> None:
    assert commands(fed(stopped_at(Stage.BUILD)))[0].endswith("--until check")
    assert "--until" not in commands(fed(stopped_at(Stage.SCREEN, segments=with_ceiling(1.2))))[0]


def test_an_interval_across_the_margin_says_how_many_workers_and_minutes_would_decide() -> None:
    found = fed(evidence(STRADDLE))
    assert found.retryable
    first = found.next_actions[0]
    planned = re.search(r"about (\d+) workers \(up to \d+ min", first.why)
    assert planned is not None
    assert first.command == f"e2e validate --repeat results/r1 --workers {planned[1]}"
    assert (first.seconds or 0) >= 900


def test_an_interval_across_the_margin_says_what_it_rules_out() -> None:
    run = evidence(STRADDLE)
    speedup = judge(run, policy()).latency.against[0].speedup
    why = fed(run).next_actions[0].why
    assert f"no gain above {percent(speedup.upper_bound - 1)}" in why
    assert f"no loss above {percent(1 - speedup.lower_bound)}" in why


def test_a_gain_at_the_margin_itself_is_said_to_be_beyond_any_schedule() -> None:
    run = evidence(timed(1.01, block_sd=0.03))
    verdict = judge(run, policy())
    row = verdict.latency.against[0]
    at_margin = row.speedup.model_copy(update={"point_estimate": 1.01})
    against = [row.model_copy(update={"speedup": at_margin})]
    verdict = verdict.model_copy(update={"latency": verdict.latency.model_copy(update={"against": against})})
    found = feedback(run, verdict, cell=results.cell(), policy=policy(), invocation=TYPED)
    assert "too near the margin" in found.next_actions[0].why


def test_the_demo_points_to_the_full_policy_first() -> None:
    found = fed(evidence(STRADDLE), policy(name="demo", looks=[5]))
    assert commands(found)[0].endswith("--policy standard")


def test_a_host_bound_run_points_to_the_trace() -> None:
    assert "e2e trace results/r1" in commands(fed(evidence(STRADDLE, device=HOST_BOUND)))


def test_a_host_bound_run_without_graph_arms_is_offered_them_first() -> None:
    found = fed(evidence(STRADDLE, device=HOST_BOUND), policy(modes=["eager", "compile"]))
    assert (found.next_actions[0].kind, found.next_actions[0].seconds) == ("graph_arms", 900)
    assert commands(found)[0].endswith("--policy standard")
    with_graphs = fed(evidence(STRADDLE, device=HOST_BOUND), policy(modes=["eager", "cuda-graph"]))
    assert "graph_arms" not in [action.kind for action in with_graphs.next_actions]


def test_a_host_bound_run_is_offered_a_batch_that_fills_the_device() -> None:
    typed = replace(TYPED, overrides=("cells.batch=[8]", "model.dtype=float32"))
    found = fed(evidence(STRADDLE, device=HOST_BOUND), typed=typed)
    other = next(action for action in found.next_actions if action.kind == "other_shape")
    words = shlex.split(other.command or "")
    sets = [value for option, value in itertools.pairwise(words) if option == "--set"]
    assert sets == ["model.dtype=float32", "cells.batch=[40]", "cells.sequence=[2048]"]


def test_a_device_that_works_all_the_time_is_offered_no_other_shape() -> None:
    assert {action.kind for action in fed(evidence(STRADDLE)).next_actions} == {"repeat"}


def test_a_run_that_the_policy_does_not_count_is_told_what_to_change() -> None:
    origin = Origin(workload_sha256="0" * 64, weights="random", seed_chosen=True, overrides=["model.weights"])
    rules = policy(pins=Pins(no_overrides=True, fresh_seed=True))
    found = fed(evidence(WIN, origin=origin), rules, replace(TYPED, overrides=("model.weights=random",)))
    assert "--set changed model.weights" in found.next_actions[0].why
    assert "--set" not in commands(found)[0]
    assert not found.retryable


def test_an_exhausted_budget_asks_for_the_time_that_a_first_look_takes() -> None:
    run = evidence(timed(1.05, workers=2), budget_exhausted=True)
    found = fed(run)
    assert commands(found)[0].endswith("--budget 2280")  # 900 s x 5 / 2, in whole minutes
    assert found.next_actions[0].seconds == 2280


def test_a_check_without_power_is_our_fault_and_no_use_retrying() -> None:
    found = fed(evidence(WIN, mutants=[MutantCheck(name="zeros", caught=False)]))
    assert ("e2e", False) == (found.fault, found.retryable)


def test_identical_code_that_differs_is_the_environments_fault() -> None:
    found = fed(evidence(timed(1.05, sham=1.05)))
    assert ("environment", True) == (found.fault, found.retryable)


RUNS = [
    evidence(WIN),
    evidence(timed(1.0)),
    evidence(timed(0.9)),
    evidence(timed(1.159, alternative=1.159)),
    evidence(STRADDLE),
    evidence(with_ceiling(1.002)),
    evidence(with_ceiling(1.02) + timed(1.3)),
    evidence(engagement=engagement(site("a", status="incompatible", calls=0))),
    evidence(stage_finished=Stage.CHECK),
    evidence(WIN, arms=arms(candidate={"kernel_calls": 0})),
    stopped_at(Stage.CHECK),
    stopped_at(Stage.SCREEN),
    stopped_at(Stage.SCREEN, segments=with_ceiling(1.2)),
    *(
        evidence(WIN, faults=[Fault(code=code, message="", stage=Stage.CHECK)])
        for code in ReasonCode
        if kind_of(code) not in (ReasonKind.NO_HEADROOM, ReasonKind.INTERVAL)
    ),
]


@pytest.mark.parametrize("run", RUNS)
def test_every_outcome_gives_an_action_and_inconclusive_gives_its_time(run: Evidence) -> None:
    verdict = judge(run, policy())
    found = fed(run)
    assert found.next_actions
    for action in found.next_actions:
        assert action.command is not None
        assert action.command.split()[:2][1] in {"validate", "report", "trace", "gate", "list", "adopt"}
    if verdict.outcome is Outcome.INCONCLUSIVE:
        first = found.next_actions[0]
        assert first.seconds is not None
        assert " min " in first.why or " s" in first.why
    if verdict.outcome in (Outcome.INCORRECT, Outcome.FAILED):
        assert found.fault == "kernel"


def test_the_candidate_is_the_arm_that_the_records_are_about() -> None:
    assert set_up(evidence(candidate=CANDIDATE)).first_step_s == 0.1
