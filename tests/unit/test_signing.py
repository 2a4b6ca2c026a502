from __future__ import annotations

import pytest

from e2e.schema.policy import Policy
from e2e.schema.result import CellResult, Result
from e2e.schema.words import Label, Outcome
from e2e.signing import sentences
from tests import results


def signed(result: Result) -> dict[str, str]:
    return dict(sentences(result, result.cells[0] if result.cells else None))


def with_speedup(point: float, half: float, outcome: Outcome, label: Label | None = None) -> Result:
    told = results.verdict(outcome=outcome, label=label)
    rows = [told.latency.against[0].model_copy(update={"speedup": results.estimate(point, half)})]
    told = told.model_copy(update={"latency": told.latency.model_copy(update={"against": rows})})
    return results.result([CellResult(cell=results.cell(), evidence=results.evidence(), verdict=told)])


def test_who_signs_reads_the_decision_its_worth_and_where_it_holds() -> None:
    said = signed(results.result())
    assert "Do not adopt it: eager with F.rms_norm is as fast, and there is nothing to maintain." == said["decision"]
    assert said["worth"].startswith(
        "A step takes 71.27 ms instead of 71.28 ms (eager with F.rms_norm): 1.000x +- 0.002"
    )
    assert said["worth"].endswith("it saves between -2.0 and +2.2: no difference was shown.")
    assert said["scope"].startswith("Holds for: prefill 8 x 2048 bfloat16 of llama-infer; NVIDIA H200; torch 2.11.0;")
    assert "Not tested: other shapes" in said["scope"]
    assert said["scope"].endswith("its driver, torch, transformers or triton changes.")


def test_a_gain_is_counted_in_hours_of_a_thousand() -> None:
    said = signed(with_speedup(1.25, 0.05, Outcome.CONFIRMED))
    assert said["decision"].startswith("Adopt it: it is correct here, and makes the step faster")
    assert said["worth"].endswith("Of 1,000 hours of such steps it saves 200.0 (166.7 to 230.8).")


def test_a_loss_costs() -> None:
    said = signed(with_speedup(0.8, 0.01, Outcome.REFUTED, Label.REGRESSION))
    assert "Do not adopt it: it is correct here, and makes the step slower." == said["decision"]
    assert said["worth"].endswith("it costs 250.0 (234.6 to 265.8).")


@pytest.mark.parametrize("outcome", list(Outcome))
def test_only_a_confirmed_kernel_is_to_be_adopted(outcome: Outcome) -> None:
    decision = signed(with_speedup(1.25, 0.05, outcome))["decision"]
    assert decision.startswith("Adopt it") is (outcome is Outcome.CONFIRMED)


def test_a_wrong_kernel_has_no_worth() -> None:
    said = signed(results.incorrect())
    assert "Do not adopt it: it is wrong here." == said["decision"]
    assert "worth" not in said


def test_a_run_that_ended_early_decides_nothing() -> None:
    assert {"decision": "Nothing was decided: the run ended early."} == signed(results.ended_early(6, "no device"))


def test_a_stage_that_passed_is_nothing_to_sign() -> None:
    said = signed(results.result(outcome=None, label=None))
    assert said["decision"].startswith("Nothing to sign yet: only the stage `verdict`")
    assert "scope" not in said


def test_less_memory_is_worth_bytes() -> None:
    told = results.verdict(outcome=Outcome.CONFIRMED, label=None)
    less = results.memory_use().model_copy(update={"peak_allocated_bytes": 5_000_000_000})
    told = told.model_copy(update={"memory": told.memory.model_copy(update={"candidate": less})})
    cell = CellResult(cell=results.cell(), evidence=results.evidence(), verdict=told)
    said = signed(results.result([cell], policy=Policy(name="lean", objective="memory")))
    assert said["decision"].startswith("Adopt it: it is correct here, and needs less memory than")
    assert "Peak memory of a step: -591 MiB." == said["worth"]


def test_the_worth_of_a_sweep_is_every_cell_once() -> None:
    cells = [
        CellResult(cell=results.cell(batch=batch), evidence=results.evidence(), verdict=results.verdict())
        for batch in (1, 2)
    ]
    said = signed(results.result(cells))
    assert "Over 2 timed cells the step's ratio is 1.000x to 1.000x; one step of each takes 142.5 ms" in said["worth"]
