from __future__ import annotations

import pytest

from e2e.comparison import compare
from e2e.errors import UsageError
from e2e.reports.text import printed
from e2e.schema.result import CellResult, Result
from e2e.schema.words import ReasonCode
from tests import results


def run(**changes: object) -> Result:
    return results.result(**{"run_id": "second", **changes})


def with_arm(arm: str, factor: float, ratio: float = 1.0, **changes: object) -> Result:
    """The stored run, one arm's times multiplied, and its ratio to the strongest PyTorch path too."""
    segments = [
        segment.model_copy(update={"seconds": segment.seconds * factor}) if segment.arm == arm else segment
        for segment in results.segments()
    ]
    told = results.verdict()
    first, second = told.latency.against
    moved = first.model_copy(update={"speedup": results.estimate(1.0001 * ratio, 0.0021)})
    latency = told.latency.model_copy(update={"against": [moved, second]})
    told = told.model_copy(update={"latency": latency})
    return run(
        cells=[CellResult(cell=results.cell(), evidence=results.evidence(segments=segments), verdict=told)], **changes
    )


def newer(**packages: str) -> dict[str, object]:
    stored = results.result().environment
    return {**stored, "packages": {**stored["packages"], **packages}}


def refusal(first: Result, second: Result) -> str:
    with pytest.raises(UsageError) as caught:
        compare(first, second)
    return caught.value.message


def test_after_an_upgrade_it_says_what_moved() -> None:
    later = with_arm("baseline:eager+F.rms_norm", 0.94, 0.94, environment=newer(torch="2.12.0"))
    story = compare(results.result(), later)
    assert "COMPARED: one kernel in two environments" == story.outcome
    assert ("differs: torch 2.11.0 -> 2.12.0",) == story.marks
    pytorch, kernel, ratio = story.reasons
    assert pytorch.startswith("the strongest PyTorch path (eager with F.rms_norm) got 6.4 % faster (6.")
    assert "the step with the kernel (eager) shows no difference, and none above 0 %" == kernel
    assert ratio.endswith("a difference is shown")


def test_the_same_run_twice_shows_no_difference() -> None:
    story = compare(results.result(), run())
    assert "COMPARED: one kernel in one environment, twice" == story.outcome
    assert () == story.marks
    assert all("no difference" in line for line in story.reasons)


def test_a_slower_kernel_is_called_slower() -> None:
    other = results.kernel().model_copy(update={"sha256": "1" * 64, "spec": "kernels/other.cu"})
    story = compare(results.result(), with_arm("candidate:eager", 2.0, kernels=[other]))
    assert "COMPARED: two kernels in one environment" == story.outcome
    assert "kernel kernels/rmsnorm.cu (000000000000) -> kernels/other.cu (111111111111)" in story.marks[0]
    assert "the step with B's kernel instead of A's (eager) got 50 % slower (50 to 50)" in story.reasons


def test_another_policy_is_said_and_does_not_bar() -> None:
    policy = results.result().policy
    assert policy is not None
    story = compare(results.result(), run(policy=policy.model_copy(update={"margin": 0.05})))
    assert ("differs: fields of policy standard",) == story.marks
    story = compare(results.result(), run(policy=policy.model_copy(update={"name": "strict"})))
    assert ("differs: policy standard -> strict",) == story.marks


def test_what_cannot_be_compared_is_refused_with_all_that_differs() -> None:
    workload = results.workload().model_copy(update={"step": "decode", "description": "other words"})
    said = refusal(results.result(), run(workload=workload, method="1"))
    assert "cannot be compared: measured by method 2 and 1; other workloads (step prefill and decode)" in said


def test_words_of_a_workload_do_not_bar() -> None:
    workload = results.workload().model_copy(update={"name": "mine", "description": "mine", "policy": "demo"})
    assert compare(results.result(), run(workload=workload)).marks == ()


def test_another_kernel_in_another_environment_is_refused() -> None:
    other = results.kernel().model_copy(update={"sha256": "1" * 64})
    said = refusal(results.result(), run(kernels=[other], environment=newer(torch="2.12.0")))
    assert "both kernel and environment differ (kernel kernels/rmsnorm.cu (000000000000) -> " in said
    assert "torch 2.11.0 -> 2.12.0" in said


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (results.ended_early(6, "no device"), "ended early"),
        (results.incorrect(), "has no timed verdict"),
        (results.result([]), "has no timed verdict"),
    ],
)
def test_a_run_without_times_is_refused(other: Result, words: str) -> None:
    assert words in refusal(results.result(), other)
    assert words in refusal(other, results.result())


def test_other_cells_are_refused() -> None:
    cell = CellResult(cell=results.cell(batch=2), evidence=results.evidence(), verdict=results.verdict())
    assert "not the same cells were finished" in refusal(results.result(), run(cells=[cell]))


def test_one_worker_is_too_few_to_call_anything_a_difference() -> None:
    one = [segment for segment in results.segments() if segment.worker == 0]
    cell = CellResult(cell=results.cell(), evidence=results.evidence(segments=one), verdict=results.verdict())
    story = compare(results.result(), run(cells=[cell]))
    assert "from too few workers to say whether that is a difference" in story.reasons[0]


def test_without_segments_there_are_no_times() -> None:
    cell = CellResult(cell=results.cell(), evidence=results.evidence(segments=[]), verdict=results.verdict())
    assert "has no times in both runs" in compare(results.result(), run(cells=[cell])).reasons[0]


def test_both_verdicts_and_every_figure_are_in_the_tables() -> None:
    text = printed(compare(results.result(), run()))
    for words in ("A  2026-11-30T12:00", "second", "ratio: identical code", "peak memory: kernel", "5.23 GiB"):
        assert words in text
    assert ReasonCode.MATCHED_BY_PYTORCH not in text


# ---- A run made again


def ended_before_a_verdict(**changes: object) -> Result:
    """A screen that found no headroom: no interval, and ceiling workers alone."""
    told = results.verdict()
    bare = told.model_copy(update={"latency": told.latency.model_copy(update={"against": []})})
    kept = [segment for segment in results.segments() if segment.phase == "ceiling"]
    cell = CellResult(cell=results.cell(), evidence=results.evidence(segments=kept), verdict=bare)
    return run(cells=[cell], environment=newer(torch="2.12.0"), **changes)


def test_a_run_made_again_is_compared_although_one_of_the_two_ended_before_a_verdict() -> None:
    first = results.result()
    assert "second has no timed verdict" in refusal(first, ended_before_a_verdict())
    story = compare(first, ended_before_a_verdict(again=first.run_id))
    assert ("differs: torch 2.11.0 -> 2.12.0",) == story.marks
    pytorch, kernel = story.reasons
    assert pytorch.startswith("the strongest PyTorch path (eager with F.rms_norm) shows no difference")
    assert "the step with the kernel (eager) has no times in both runs" == kernel
    shown = " ".join(printed(story).split())
    assert "step: eager with F.rms_norm 71.28 ms 71.28 ms no difference shown" in shown
    assert "step: kernel, eager 71.27 ms - -" in shown


def test_a_run_made_again_still_has_to_be_the_same_kernel_in_the_same_workload() -> None:
    first = results.result()
    other = results.kernel().model_copy(update={"sha256": "1" * 64})
    later = run(again=first.run_id, kernels=[other], environment=newer(torch="2.12.0"))
    assert "both kernel and environment differ" in refusal(first, later)
