"""Right and wrong outputs, with errors known in advance: the better is never punished, the wrong never passes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from e2e.numerics.compare import distance_of, error_of, floor_of, judge_op, other_choices
from e2e.schema.words import ReasonCode

torch.set_num_threads(1)

RATIO = 2.0
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rounded(exact: Tensor, dtype: torch.dtype, *, noise: float = 0.0, seed: int = 1) -> Tensor:
    """The reference in `dtype`, with a relative error of about `noise` epsilons."""
    eps = torch.finfo(dtype).eps
    return (exact * (1 + noise * eps * draw(*exact.shape, seed=seed))).to(dtype)


def code_of(value: Tensor, baseline: Tensor, exact: Tensor) -> ReasonCode | None:
    return judge_op(value, baseline, exact, ratio=RATIO)[0]


# ---- Errors


def test_the_error_is_the_distance_relative_to_the_references_size() -> None:
    exact = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    assert error_of(exact + torch.tensor([[0.0, 0.05]]), exact).total == pytest.approx(0.01)
    assert error_of(exact, exact).total == 0
    assert error_of(1000 * exact * 1.01, 1000 * exact).total == pytest.approx(0.01)


def test_the_worst_row_is_not_averaged_away() -> None:
    exact = torch.ones(512, 8, dtype=torch.float64)
    value = exact.clone()
    value[100] *= 1.5
    error = error_of(value, exact)
    assert error.worst_row == pytest.approx(0.5)
    assert error.total == pytest.approx(0.5 / math.sqrt(512))


def test_leading_dimensions_are_all_rows() -> None:
    exact = draw(2, 3, 8)
    value = exact.clone()
    value[1, 2] = 0
    assert error_of(value, exact).worst_row == pytest.approx(1.0)


def test_anything_instead_of_zeros_is_infinitely_wrong_and_still_a_number() -> None:
    zeros = torch.zeros(2, 4, dtype=torch.float64)
    error = error_of(zeros + 1e-6, zeros)
    assert 1e20 < error.total < math.inf
    assert error_of(zeros, zeros).total == 0


def test_no_elements_are_no_error() -> None:
    assert error_of(torch.empty(0, 4), torch.empty(0, 4, dtype=torch.float64)).total == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_floor_is_what_rounding_alone_does(dtype: torch.dtype) -> None:
    exact = draw(64, 256)
    assert error_of(exact.to(dtype), exact).total < 1.25 * floor_of(dtype)
    assert error_of(exact.to(dtype), exact).total > 0.25 * floor_of(dtype)


# ---- The op's verdict


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_candidate_better_than_the_baseline_passes(dtype: torch.dtype) -> None:
    exact = draw(32, 64)
    assert code_of(rounded(exact, dtype), rounded(exact, dtype, noise=8), exact) is None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_candidate_as_good_as_the_baseline_passes(dtype: torch.dtype) -> None:
    exact = draw(32, 64)
    assert code_of(rounded(exact, dtype, noise=2, seed=3), rounded(exact, dtype, noise=2, seed=4), exact) is None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_correct_rounding_passes_beside_an_exact_baseline(dtype: torch.dtype) -> None:
    """Without a floor, a baseline that happens to be exact would forbid rounding itself."""
    exact = draw(32, 64).to(dtype).double()
    value = exact.to(dtype)
    value[3, 3] = torch.nextafter(value[3, 3], value[3, 3] + 1)
    assert code_of(value, exact.to(dtype), exact) is None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_error_of_three_times_the_baselines_is_caught(dtype: torch.dtype) -> None:
    exact = draw(32, 64)
    baseline, value = rounded(exact, dtype, noise=4), rounded(exact, dtype, noise=12)
    assert code_of(value, baseline, exact) is ReasonCode.OP_ERROR_EXCEEDED


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_wrong_row_of_512_is_caught(dtype: torch.dtype) -> None:
    """Ten epsilons in one row: invisible in the whole tensor's norm, which 512 rows share."""
    exact = draw(512, 64)
    value = rounded(exact, dtype)
    value[200] = (exact[200] * (1 + 10 * torch.finfo(dtype).eps)).to(dtype)
    total_alone = error_of(value, exact).total
    assert total_alone <= RATIO * error_of(rounded(exact, dtype), exact).total + floor_of(dtype)
    assert code_of(value, rounded(exact, dtype), exact) is ReasonCode.OP_ERROR_EXCEEDED


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_wrong_tile_is_caught_that_even_its_rows_hide(dtype: torch.dtype) -> None:
    """Sixty-four columns of 16,384, in sixty-four rows of 128."""
    exact = draw(128, 16384)
    baseline, value = rounded(exact, dtype, seed=2), rounded(exact, dtype)
    value[64:, 64:128] = (exact[64:, 64:128] * (1 + 4 * torch.finfo(dtype).eps)).to(dtype)
    found, own = error_of(value, exact), error_of(baseline, exact)
    assert found.worst_row <= RATIO * own.worst_row + 4 * floor_of(dtype)
    judged = judge_op(value, baseline, exact, ratio=RATIO)
    assert judged.code is ReasonCode.OP_ERROR_EXCEEDED
    assert judged.excess.startswith("the worst tile errs by")
    assert code_of(rounded(exact, dtype, seed=5), baseline, exact) is None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_wrong_row_of_16384_is_caught(dtype: torch.dtype) -> None:
    exact = draw(16384, 64)
    value = rounded(exact, dtype)
    value[12345] = (exact[12345] * (1 + 10 * torch.finfo(dtype).eps)).to(dtype)
    judged = judge_op(value, rounded(exact, dtype), exact, ratio=RATIO)
    assert judged.code is ReasonCode.OP_ERROR_EXCEEDED
    assert judged.excess.startswith("the worst row errs by")


def test_tiles_of_small_numbers_are_not_measured_by_themselves() -> None:
    """What cancels to nearly nothing has a large relative error in any kernel."""
    exact = torch.ones(64, 256, dtype=torch.float64)
    exact[:, :64] = 1e-9
    value = exact.clone()
    value[:, :64] += 1e-9
    assert error_of(value, exact).worst_tile == pytest.approx(1e-9, rel=0.2)


def test_numbers_that_a_device_takes_for_zero_are_no_error() -> None:
    tiny = torch.full((4, 8), 1e-39, dtype=torch.float64)
    assert code_of(torch.zeros(4, 8), tiny.float(), tiny) is None
    assert code_of(tiny.float() + 1e-33, tiny.float(), tiny) is ReasonCode.OP_ERROR_EXCEEDED
    assert code_of(torch.zeros(4, 8).half(), torch.full((4, 8), 1e-5).half(), tiny + 1e-5) is not None


@pytest.mark.parametrize(
    ("theirs", "code"),
    [
        (math.nan, None), (math.inf, ReasonCode.NONFINITE_OUTPUT), (0.0, ReasonCode.NONFINITE_OUTPUT),
    ],
)  # fmt: skip
def test_a_nan_stays_a_nan(theirs: float, code: ReasonCode | None) -> None:
    exact = draw(8, 16)
    exact[2, 3] = math.nan
    value = exact.float()
    value[2, 3] = theirs
    assert code_of(value, exact.float(), exact) is code


def test_an_infinity_keeps_its_sign() -> None:
    exact = draw(8, 16)
    exact[2, 3] = math.inf
    baseline = exact.float()
    value = baseline.clone()
    value[2, 3] *= -1
    assert code_of(baseline, baseline, exact) is None
    assert code_of(value, baseline, exact) is ReasonCode.NONFINITE_OUTPUT


def test_where_the_baseline_has_lost_a_number_that_there_is_nothing_is_asked() -> None:
    """Scores all masked: a softmax of them is NaN in PyTorch, and zeros by the op's maths."""
    exact = draw(8, 16)
    baseline = exact.float()
    baseline[4] = math.nan
    for value in (baseline, exact.float()):
        assert code_of(value, baseline, exact) is None


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_one_value_that_is_not_finite_is_caught(bad: float) -> None:
    exact = draw(8, 16)
    value = exact.float()
    value[7, 15] = bad
    assert code_of(value, exact.float(), exact) is ReasonCode.NONFINITE_OUTPUT


@pytest.mark.parametrize(
    "change",
    [
        lambda y: y.double(), lambda y: y.half(), lambda y: y[:-1], lambda y: y.reshape(16, 8), lambda y: y[None],
        lambda y: y.flatten(),
    ],
    ids=["float64", "float16", "a row less", "reshaped", "one dimension more", "flat"],
)  # fmt: skip
def test_another_dtype_or_shape_is_caught_whatever_the_values(change: object) -> None:
    exact = draw(8, 16)
    value: Tensor = change(exact.float())  # type: ignore[operator]
    assert code_of(value, exact.float(), exact) is ReasonCode.WRONG_OUTPUT_LAYOUT


def test_no_rows_pass_and_zeros_for_zeros_pass() -> None:
    assert code_of(torch.empty(0, 4), torch.empty(0, 4), torch.empty(0, 4, dtype=torch.float64)) is None
    assert code_of(torch.zeros(2, 4), torch.zeros(2, 4), torch.zeros(2, 4, dtype=torch.float64)) is None


def test_a_tiny_value_instead_of_zero_is_caught() -> None:
    zeros = torch.zeros(2, 4)
    assert code_of(zeros + 1e-30, zeros, zeros.double()) is ReasonCode.OP_ERROR_EXCEEDED


def test_the_errors_are_reported_beside_the_largest_allowed_one() -> None:
    exact = draw(16, 32)
    baseline = rounded(exact, torch.float32, noise=4)
    code, found, own, allowed, _ = judge_op(rounded(exact, torch.float32), baseline, exact, ratio=RATIO)
    assert code is None
    assert found is not None
    assert own.total == error_of(baseline, exact).total
    assert allowed == RATIO * own.total + floor_of(torch.float32)
    assert found.total < own.total


# ---- Where even the truth or the baseline is not finite


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_reference_that_is_not_finite_somewhere_still_judges_the_rest(bad: float) -> None:
    exact = draw(8, 16)
    exact[0, 0] = bad
    good = exact.float()
    assert code_of(good, good, exact) is None
    wrong = good.clone()
    wrong[5] *= 1.1
    assert code_of(wrong, good, exact) is ReasonCode.OP_ERROR_EXCEEDED
    stray = good.clone()
    stray[5, 5] = float("nan")
    assert code_of(stray, good, exact) is ReasonCode.NONFINITE_OUTPUT


def test_a_baseline_that_overflows_does_not_excuse_errors_elsewhere() -> None:
    exact = draw(8, 16)
    exact[0, 0] = 1e6
    baseline = exact.half()
    assert torch.isinf(baseline[0, 0])
    assert code_of(baseline, baseline, exact) is None, "as the baseline"
    wrong = baseline.clone()
    wrong[5] *= 1.1
    assert code_of(wrong, baseline, exact) is ReasonCode.OP_ERROR_EXCEEDED


# ---- Logits


def test_equal_logits_have_no_distance() -> None:
    logits = draw(20, 50)
    found = distance_of(logits, logits)
    assert (found.error, found.kl, found.top1) == (0.0, 0.0, 1.0)


def test_the_logits_error_is_relative_and_over_all_tokens() -> None:
    logits = draw(20, 50)
    assert distance_of(logits * 1.01, logits).error == pytest.approx(0.01)


def test_the_divergence_is_that_of_the_distributions() -> None:
    reference = torch.log(torch.tensor([[0.5, 0.5]], dtype=torch.float64))
    value = torch.log(torch.tensor([[0.25, 0.75]], dtype=torch.float64))
    expected = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    assert distance_of(value, reference).kl == pytest.approx(expected)
    assert distance_of(value + 7, reference).kl == pytest.approx(expected), "logits mean the same after a shift"


def test_top_one_is_the_share_of_tokens_that_agree() -> None:
    reference = torch.eye(4, dtype=torch.float64)
    assert distance_of(reference[[0, 1, 2, 0]], reference).top1 == 0.75


def test_where_the_most_likely_class_is_another_the_baselines_margin_is_told() -> None:
    baseline = torch.tensor([[3.0, 1.0, 0.0], [1.0, 0.9, 0.0], [2.0, 0.0, 1.5], [0.0, 1.0, 0.0]])
    value = baseline.clone()
    value[1] = torch.tensor([0.9, 1.0, 0.0])
    value[2] = torch.tensor([1.0, 0.0, 1.5])
    assert other_choices(value, baseline) == {
        "count": 2, "first": 1, "first_margin": pytest.approx(0.1), "widest_margin": pytest.approx(0.5),
    }  # fmt: skip
    assert other_choices(baseline, baseline) == {"count": 0}


def test_slices_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large vocabulary is compared in pieces."""
    reference, value = draw(7, 2**13), draw(7, 2**13, seed=1)
    whole = distance_of(value, reference)
    split = [distance_of(value[place : place + 1], reference[place : place + 1]) for place in range(7)]
    assert whole.kl == pytest.approx(sum(item.kl for item in split) / 7)
    assert whole.top1 == pytest.approx(sum(item.top1 for item in split) / 7)
