from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from e2e.configuration import LoadedWorkload
from e2e.errors import UsageError
from e2e.measure.devices import Device
from e2e.preflight import check_repeat
from e2e.request import Loaded, Repeat, Request, policy_of
from e2e.schema.evidence import Origin
from e2e.schema.result import CellResult, Result
from e2e.schema.words import Outcome
from tests import results
from tests.fakes import evidence, policy, timed

TYPED = Request("w.yaml", ("k.cpp",))
WORKLOAD = LoadedWorkload(results.workload(), Path("w.yaml"), {"model.weights": "random"}, "0" * 64)


def open_run(**changes: Any) -> Result:
    """An INCONCLUSIVE run to repeat."""
    cell = CellResult(cell=results.cell(), evidence=evidence(timed(1.005)), verdict=results.verdict())
    fields = {"outcome": Outcome.INCONCLUSIVE, "environment": {"workload_sha256": WORKLOAD.sha256}, **changes}
    return results.result([cell], **fields)


def repeated(run: Result, *, workers: int = 23, **typed: Any) -> Request:
    return replace(TYPED, repeat=Repeat(run, workers), **typed)


# ---- What a policy may pin


def test_the_origin_says_what_was_asked_and_who_chose_the_seed() -> None:
    loaded = Loaded(TYPED, WORKLOAD, policy(), (results.kernel(),), Device("cpu"), 7)
    expected = Origin(workload_sha256="0" * 64, weights="random", seed_chosen=False, overrides=["model.weights"])
    assert loaded.origin == expected
    assert replace(loaded, request=replace(TYPED, seed=7)).origin.seed_chosen


# ---- The policy, and what the command line made of it


def test_a_policy_that_nobody_changed_has_no_overrides() -> None:
    chosen, own = policy_of(TYPED, WORKLOAD)
    assert (chosen.name, own) == ("standard", {})


def test_a_budget_and_another_policy_are_recorded_beside_what_they_replace() -> None:
    chosen, own = policy_of(replace(TYPED, policy="demo", budget_s=385.0), WORKLOAD)
    assert (chosen.name, chosen.budgets.cell_s) == ("demo", 385.0)
    assert own == {"name": "standard", "budgets.cell_s": 110.0}


def test_what_the_workload_names_anyway_is_no_choice() -> None:
    named = replace(WORKLOAD, workload=WORKLOAD.workload.model_copy(update={"policy": "demo"}))
    assert policy_of(replace(TYPED, policy="demo"), named)[1] == {}
    assert policy_of(TYPED, named)[1] == {}


def test_a_repeat_takes_the_stored_policy_in_its_new_size() -> None:
    run = open_run(policy=policy(margin=0.03))
    chosen, own = policy_of(repeated(run), WORKLOAD)
    assert (chosen.margin, chosen.looks, chosen.level) == (0.03, [23], 0.95)
    assert (own["looks"], own["level"]) == ([5, 8, 12], 0.9779)


def test_a_repeat_names_what_the_file_said_and_not_what_the_first_run_was_given() -> None:
    short = policy(budgets={"cell_s": 60.0})
    run = open_run(policy=short, policy_overrides={"name": "demo", "budgets.cell_s": 900.0})
    own = policy_of(repeated(run, budget_s=77.0), WORKLOAD)[1]
    assert (own["name"], own["budgets.cell_s"]) == ("demo", 900.0)


# ---- Whether a repeat asks the same question


def test_the_same_kernel_and_workload_of_an_open_run_may_be_repeated() -> None:
    check_repeat(Repeat(open_run(), 5), WORKLOAD, [results.kernel()])


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (Outcome.CONFIRMED, "ended CONFIRMED; --repeat is for INCONCLUSIVE"),
        (Outcome.REFUTED, "ended REFUTED"),
        (None, "ended without a verdict"),
    ],
)
def test_a_run_that_left_nothing_open_is_not_repeated(outcome: Outcome | None, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check_repeat(Repeat(open_run(outcome=outcome), 5), WORKLOAD, [results.kernel()])


def test_a_changed_kernel_or_workload_is_another_question() -> None:
    changed = results.kernel().model_copy(update={"sha256": "1" * 64})
    with pytest.raises(UsageError, match=r"kernel .* has changed since run .*\(sha256 000000000000 then, 111111111111"):
        check_repeat(Repeat(open_run(), 5), WORKLOAD, [changed])
    with pytest.raises(UsageError, match=r"workload w\.yaml has changed since run"):
        check_repeat(Repeat(open_run(environment={}), 5), WORKLOAD, [results.kernel()])


@pytest.mark.parametrize("workers", [-1, 0, 4, 201, 10**12])
def test_fewer_workers_than_a_verdict_needs_and_endless_repeats_are_refused(workers: int) -> None:
    with pytest.raises(UsageError, match=f"--workers {workers}: a verdict needs at least 5, .* at most 200"):
        check_repeat(Repeat(open_run(), workers), WORKLOAD, [results.kernel()])
    check_repeat(Repeat(open_run(), 200), WORKLOAD, [results.kernel()])
