"""Where wrong numbers lie, in the words that a kernel's author reads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from e2e.numerics.places import first_wrong, place_of

torch.set_num_threads(1)

EXACT = torch.randn(2, 100, 256, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 3


def spoiled(change: Callable[[Tensor], None]) -> str:
    value = EXACT.float()
    change(value)
    return str(place_of(value, EXACT.float(), EXACT, allowed=1e-6))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda y: y.zero_(), "first at [0, 0, 0], nearly everywhere"),
        (lambda y: y[1, 40].zero_(), "first at [1, 40, 0], number 140 of 200 rows"),
        (lambda y: y[1, 97:].zero_(), "first at [1, 97, 0], the last 3 of 200 rows"),
        (lambda y: y[0, :5].mul_(1.5), "first at [0, 0, 0], the first 5 of 200 rows"),
        (lambda y: y[:, ::50].zero_(), "first at [0, 0, 0], 4 (0 to 150) of 200 rows"),
        (lambda y: y[..., 250:].zero_(), "first at [0, 0, 250], the last 6 of 256 columns"),
        (lambda y: y[0, 64:96, 64:128].add_(1), "first at [0, 64, 64], a tile: rows 64 to 95, columns 64 to 127"),
        (lambda y: y[1, 7, 9].mul_(1.001), "first at [1, 7, 9], a tile: rows 107 to 107, columns 9 to 9"),
        (lambda y: y[0].fill_diagonal_(9), "first at [0, 0, 0], 100 of 51200 numbers, scattered"),
        (lambda y: y[0, 3, 4:6].fill_(torch.nan), "first at [0, 3, 4], not finite as the baseline is: a tile"),
    ],
    ids=["all", "row", "tail", "head", "some rows", "columns", "tile", "one number", "scattered", "nan"],
)
def test_the_first_wrong_number_and_the_pattern_are_named(change: Callable[[Tensor], None], said: str) -> None:
    assert spoiled(change).startswith(said)


def test_an_error_everywhere_that_is_only_a_little_too_large_is_said_to_be_everywhere() -> None:
    assert "everywhere" in spoiled(lambda y: y.mul_(1.00001))


def test_of_several_outputs_the_wrong_one_is_named() -> None:
    right = EXACT.float()
    wrong = right.clone()
    wrong[1, 99] = 0
    said = first_wrong((right, wrong), (right, right), (EXACT, EXACT), ratio=2.0)
    assert said == "output 1, first at [1, 99, 0], the last 1 of 200 rows"


def test_a_right_output_and_one_of_another_shape_have_no_place() -> None:
    right = EXACT.float()
    assert first_wrong(right, right, EXACT, ratio=2.0) is None
    assert first_wrong(right[0], right, EXACT, ratio=2.0) is None


def test_a_single_number_has_a_place_too() -> None:
    one = torch.tensor(2.0, dtype=torch.float64)
    assert str(place_of(torch.tensor(3.0), one.float(), one, allowed=1e-6)) == "first at [], nearly everywhere"
