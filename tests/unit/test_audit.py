"""What replayed steps say: bit for bit where the baseline repeats itself, within its own spread where it does not."""

from __future__ import annotations

import math
from typing import Any

import pytest

from e2e.measure.audit import MOST, SPREAD, Fingerprint, Replay, Tolerance, conclude, disagreements
from e2e.schema.evidence import Audit

BASELINE, SHAM, CANDIDATE = "baseline:eager+F.rms_norm", "sham:eager+F.rms_norm", "candidate:eager"
OTHER = "baseline:eager"


def print_of(checksum: int, *sketch: float) -> Fingerprint:
    return Fingerprint(checksum, sketch or (3.0, 4.0, 0.0, 0.0))


def same(arm: str) -> Replay:
    return Replay(arm, print_of(1), print_of(1))


def off(arm: str, distance: float) -> Replay:
    """Another checksum, and a sketch that far away, relative to its size of 5."""
    return Replay(arm, print_of(1, 3.0, 4.0), print_of(2, 3.0, 4.0 + 5 * distance))


def concluded(*replays: Replay, run: int = 100, committed: int = 100, tolerance: Tolerance | None = None) -> Audit:
    return conclude(replays, run=run, committed=committed, baseline=BASELINE, tolerance=tolerance or Tolerance())


# ---- Fingerprints


@pytest.mark.parametrize(
    "message", [None, 7, "text", [], [1], [1, 2, 3], ["x", [1.0]], [1, ["x"]], [1, 2], [None, None], [1e400, []]]
)
def test_a_message_that_is_no_fingerprint_is_none(message: Any) -> None:
    assert Fingerprint.read(message) is None


def test_a_fingerprint_is_a_number_and_its_projections() -> None:
    assert Fingerprint.read([12, [1.5, -2]]) == Fingerprint(12, (1.5, -2.0))


def test_the_distance_is_relative_to_what_was_committed() -> None:
    assert print_of(1, 3.0, 4.0).distance(print_of(2, 3.0, 4.5)) == pytest.approx(0.1)
    assert print_of(1, 0.0).distance(print_of(2, 0.0)) == 0
    assert print_of(1, 0.0).distance(print_of(2, 1.0)) == math.inf
    assert print_of(1, 3.0, 4.0).distance(print_of(2, 3.0)) == math.inf, "another number of projections"


# ---- A baseline that repeats itself


def test_replays_that_agree_leave_no_mismatch() -> None:
    found = concluded(same(BASELINE), same(SHAM), same(CANDIDATE), run=80, committed=80)
    assert (found.mismatches, found.baseline_repeats, found.steps_audited) == ([], True, 3)
    assert (found.steps_timed, found.steps_committed) == (80, 80)


def test_beside_a_baseline_that_repeats_the_smallest_difference_counts() -> None:
    found = concluded(same(BASELINE), off(CANDIDATE, 1e-12), same(CANDIDATE))
    assert found.mismatches == [f"{CANDIDATE}: 1 of 2"]


def test_a_replay_that_gave_nothing_is_a_mismatch() -> None:
    assert concluded(same(BASELINE), Replay(CANDIDATE, print_of(1), None)).mismatches == [f"{CANDIDATE}: 1 of 1"]


# ---- A baseline that does not


def test_beside_a_baseline_that_varies_an_arm_may_vary_as_much() -> None:
    found = concluded(off(BASELINE, 0.001), off(CANDIDATE, 0.9 * SPREAD * 0.001))
    assert (found.mismatches, found.baseline_repeats) == ([], False)
    assert found.spread_ratio == pytest.approx(0.001)


def test_beyond_the_baselines_spread_it_is_a_mismatch() -> None:
    found = concluded(off(BASELINE, 0.001), off(CANDIDATE, 1.1 * SPREAD * 0.001))
    assert found.mismatches == [f"{CANDIDATE}: 1 of 1"]


def test_however_wild_the_baseline_another_steps_output_is_a_mismatch() -> None:
    found = concluded(off(BASELINE, 0.9), off(CANDIDATE, 1.5 * MOST))
    assert f"{CANDIDATE}: 1 of 1" in found.mismatches


def test_a_sketch_that_is_no_number_is_a_mismatch() -> None:
    """Every comparison with NaN is false."""
    odd = Replay(CANDIDATE, print_of(1, math.nan, 1.0), print_of(2, math.nan, 1.0))
    assert concluded(off(BASELINE, 0.001), odd).mismatches == [f"{CANDIDATE}: 1 of 1"]


def test_the_sham_is_the_baselines_own_code_and_tells_of_its_spread() -> None:
    found = concluded(same(BASELINE), off(SHAM, 0.001), off(CANDIDATE, 0.002))
    assert (found.baseline_repeats, found.mismatches) == (False, [])


def test_another_baselines_spread_excuses_nobody() -> None:
    found = concluded(same(BASELINE), off(OTHER, 0.01), off(CANDIDATE, 0.001))
    assert found.mismatches == [f"{OTHER}: 1 of 1", f"{CANDIDATE}: 1 of 1"]


def test_without_a_replay_of_the_baseline_nothing_is_known_of_it() -> None:
    assert concluded(off(CANDIDATE, 0.001)).baseline_repeats is None
    assert concluded().mismatches == []


# ---- Who may differ, and from what


def test_a_contaminated_baseline_does_not_excuse_itself() -> None:
    clean = Replay(BASELINE, print_of(1, 3.0, 4.0), print_of(2, 3.0, 9.0), is_clean=True)
    found = concluded(same(BASELINE), clean, off(CANDIDATE, 0.01))
    assert found.mismatches == [f"{BASELINE} in a clean process: 1 of 1", f"{CANDIDATE}: 1 of 1"]
    assert found.baseline_repeats is True


def test_where_nothing_repeats_itself_a_rare_other_rounding_in_the_clean_process_is_no_contamination() -> None:
    """Decode on a GPU: the compiled baseline varies, and one eager step in fourteen rounded otherwise elsewhere."""
    shaky = Tolerance(rounding=1e-3)
    strongest, eager = off("baseline:compile", 0.002), same(BASELINE)
    apart = [Replay(BASELINE, print_of(1, 3.0, 4.0), print_of(2, 3.0, 4.0 + d), is_clean=True) for d in (0.01, 3.0)]

    def found(*replays: Replay) -> list[str]:
        every = [strongest, eager, *replays]
        return conclude(every, run=9, committed=9, baseline="baseline:compile", tolerance=shaky).mismatches

    assert found(apart[0]) == []
    assert found(apart[1]) == [f"{BASELINE} in a clean process: 1 of 1"]


def test_a_clean_replay_is_no_second_audited_step() -> None:
    clean = Replay(BASELINE, print_of(1), print_of(1), is_clean=True)
    assert concluded(same(BASELINE), clean).steps_audited == 1


def test_a_kernel_that_does_not_repeat_itself_may_round_otherwise_but_not_be_stale() -> None:
    tolerance = Tolerance(rounding=1e-3, candidate_repeats=False)
    assert concluded(same(BASELINE), off(CANDIDATE, 3e-3), tolerance=tolerance).mismatches == []
    assert concluded(same(BASELINE), off(CANDIDATE, 0.9), tolerance=tolerance).mismatches != []


def test_a_kernel_that_repeats_itself_is_held_to_bits_in_eager_arms() -> None:
    assert concluded(same(BASELINE), off(CANDIDATE, 1e-6), tolerance=Tolerance(rounding=1e-3)).mismatches != []


def test_a_compiled_arm_may_have_been_tuned_otherwise_in_another_process() -> None:
    compiled, tolerance = "candidate:compile", Tolerance(rounding=1e-3)
    assert concluded(same(BASELINE), off(compiled, 3e-3), tolerance=tolerance).mismatches == []
    assert concluded(same(BASELINE), off(compiled, 0.2), tolerance=tolerance).mismatches != []


# ---- Against the baseline's answer to the same input


def test_a_candidate_that_turns_wrong_after_the_check_is_seen_in_its_timed_steps() -> None:
    committed = {(BASELINE, 1): print_of(1, 3.0, 4.0), (BASELINE, 2): print_of(2, 3.0, 4.0)}
    committed |= {(CANDIDATE, 1): print_of(3, 3.0, 4.0001), (CANDIDATE, 2): print_of(4, -4.0, 3.0)}
    found = disagreements(committed, candidate=CANDIDATE, baseline=BASELINE, allowed=1e-3)
    assert found == (1, 2)


def test_a_step_without_a_number_never_agrees() -> None:
    committed = {(BASELINE, 1): print_of(1, 3.0, 4.0), (CANDIDATE, 1): print_of(3, math.nan, 4.0)}
    assert disagreements(committed, candidate=CANDIDATE, baseline=BASELINE, allowed=1.0) == (1, 1)


def test_inputs_that_only_one_arm_saw_are_not_compared() -> None:
    assert disagreements({(CANDIDATE, 1): print_of(1)}, candidate=CANDIDATE, baseline=BASELINE, allowed=1.0) == (0, 0)
