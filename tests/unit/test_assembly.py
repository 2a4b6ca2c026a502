from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from e2e.assembly import assemble, error_record
from e2e.configuration import LoadedWorkload
from e2e.errors import EnvironmentFault
from e2e.measure.devices import Device
from e2e.request import Loaded, Repeat, Request
from e2e.schema.evidence import Evidence
from e2e.schema.result import Result
from e2e.schema.words import Outcome
from tests import results
from tests.fakes import evidence, kernel, op_check, policy, timed

WIN = evidence(timed(1.05))
LOSS_OPEN = evidence(timed(0.993, block_sd=0.006))


def assembled(found: Sequence[Evidence], *, error: BaseException | None = None, **typed: Any) -> Result:
    loaded = Loaded(
        request=Request("w.yaml", ("k.cpp",), **typed),
        workload=LoadedWorkload(results.workload(), Path("w.yaml"), {}, "0" * 64),
        policy=policy(),
        kernels=(kernel(),),
        device=Device("cpu"),
        seed=7,
    )
    courses = [(results.cell(batch=batch), each) for batch, each in enumerate(found, start=1)]
    return assemble(loaded, courses, run_id="r1", created="now", seconds=1.0, error=error_record(error))


def test_a_repeat_is_linked_to_its_first_run() -> None:
    first = results.result(run_id="first")
    result = assembled([WIN], repeat=Repeat(first, 9))
    assert (result.repeats, assembled([WIN]).repeats) == ("first", None)


def commands(result: Result) -> list[list[str]]:
    assert result.feedback is not None
    typed = [action.command for action in result.feedback.next_actions if action.command]
    return [shlex.split(command) for command in typed]


def test_a_run_is_as_good_as_its_worst_cell() -> None:
    wrong = evidence(timed(1.05), op_checks=[op_check(status="wrong")])
    result = assembled([WIN, wrong, WIN])
    assert Outcome.INCORRECT is result.outcome
    assert result.reasons[0].message.startswith("prefill 2 x 2048 bfloat16: 1 of 1 op checks")
    assert result.latency == result.cells[1].verdict.latency


def test_a_sweep_confirms_over_all_cells_and_says_where_the_kernel_wins() -> None:
    result = assembled([evidence(timed(1.0)), WIN])
    assert Outcome.CONFIRMED is result.outcome
    assert result.latency == result.cells[1].verdict.latency
    assert result.regions is not None
    assert ["neither", "wins"] == [region.standing for region in result.regions.cells]
    assert "rows >= 4096" == result.regions.rule
    assert result.feedback is not None
    assert "gate" == result.feedback.next_actions[0].kind


def test_what_to_type_next_follows_from_the_sweep_where_a_cell_by_itself_is_refuted() -> None:
    result = assembled([LOSS_OPEN, WIN])
    assert (Outcome.INCONCLUSIVE, Outcome.REFUTED) == (result.outcome, result.cells[0].verdict.outcome)
    assert result.feedback is not None
    assert result.feedback.next_actions[0].kind in ("repeat", "again")
    assert result.feedback.retryable


def test_a_single_cell_has_no_regions() -> None:
    result = assembled([WIN])
    assert result.regions is None
    assert result.reasons == result.cells[0].verdict.reasons


def test_a_sweep_that_ended_early_shows_no_rule() -> None:
    result = assembled([evidence(timed(1.0)), WIN], error=EnvironmentFault("the device is gone"))
    assert (None, None, 2) == (result.outcome, result.regions, len(result.cells))


def test_a_run_without_cells_has_no_outcome() -> None:
    result = assembled([])
    assert (None, None, []) == (result.outcome, result.feedback, result.reasons)


def test_a_run_that_ended_early_says_so_and_claims_nothing() -> None:
    result = assembled([WIN], error=EnvironmentFault("the device is gone"))
    assert (None, None) == (result.outcome, result.feedback)
    assert result.error is not None
    assert "the device is gone" in result.error.message


def test_what_to_type_next_repeats_what_the_caller_gave() -> None:
    wrong = evidence(op_checks=[op_check(status="wrong")])
    typed = commands(assembled([wrong], op="rms_norm", device="cuda:1", overrides=("model.dtype=float32",)))[0]
    assert ["--set", "model.dtype=float32", "--op", "rms_norm", "--device", "cuda:1"] == typed[5:11]


def test_what_to_type_next_goes_where_the_caller_wanted_results_and_traces_no_more_than_this() -> None:
    wrong, noisy = evidence(op_checks=[op_check(status="wrong")]), evidence(timed(1.005, block_sd=0.01))
    again, repeat = (commands(assembled([e], out=Path("my results"), traces=False))[0] for e in (wrong, noisy))
    assert ["--out", "my results", "--no-trace", "--until", "check"] == again[5:]
    assert ["--repeat", "my results/r1", "--workers"] == repeat[2:5]
    assert ["--out", "my results", "--no-trace"] == repeat[6:]


def test_what_to_type_next_names_no_device_that_the_caller_did_not() -> None:
    wrong = evidence(op_checks=[op_check(status="wrong")])
    typed = commands(assembled([wrong]))[0]
    assert ["e2e", "validate", "w.yaml", "--kernel", "k.cpp", "--until", "check"] == typed
