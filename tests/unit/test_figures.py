from __future__ import annotations

import pytest

from e2e.figures import Axis, amount_axis, error_axis, level_axis, ratio_axis


def test_an_axis_of_near_ratios_is_even_and_one_of_far_ones_logarithmic() -> None:
    near, far = ratio_axis([0.99, 1.15], margin=0.01), ratio_axis([0.5, 2.0])
    assert not near.is_log
    assert far.is_log
    assert pytest.approx(0.5) == far.place(1.0)
    assert ((1.0, "1x"), (1.01, "margin")) == near.guides


def test_one_and_every_value_are_on_an_axis_of_ratios() -> None:
    for values in ([2.0, 2.1], [0.3], [1.0], [1.0, 1.0], [0.5, 40.0]):
        axis = ratio_axis(values)
        assert all(map(axis.holds, [*values, 1.0]))
        assert 0 < axis.place(1.0) < 1


@pytest.mark.parametrize("values", [[0.999, 1.001], [1.0, 1.16], [0.4, 3.9], [1.0, 12.0], [0.01, 900.0], [1.0]])
def test_ticks_are_few_round_and_on_the_axis(values: list[float]) -> None:
    axis = ratio_axis(values)
    assert 1 <= len(axis.ticks) <= 9
    assert all(axis.holds(value) for value, _ in axis.ticks)
    assert len({label for _, label in axis.ticks}) == len(axis.ticks)


def test_what_lies_beyond_an_axis_is_put_on_its_end() -> None:
    axis = Axis(1.0, 2.0)
    assert (0.0, 1.0) == (axis.place(-5.0), axis.place(7.0))
    assert not axis.holds(7.0)


def test_bars_start_at_zero_also_where_nothing_was_measured() -> None:
    assert (0.0, 4.0) == (amount_axis([4.0, 2.0]).low, amount_axis([4.0, 2.0]).high)
    assert 0.0 == amount_axis([]).place(0.0)


def test_an_error_of_zero_stands_at_the_low_end_of_whole_decades() -> None:
    axis = error_axis([0.0, 2e-5, 3e-3])
    assert (pytest.approx(1e-5), pytest.approx(1e-2)) == (axis.low, axis.high)
    assert 0.0 == axis.place(0.0)
    assert ["1e-5", "1e-4", "1e-3", "1e-2"] == [label for _, label in axis.ticks]
    assert error_axis([]).ticks
    assert error_axis([0.0]).ticks


def test_an_axis_of_levels_lies_close_around_them_even_if_they_are_one() -> None:
    axis = level_axis([75.0, 76.0], str)
    assert 74 < axis.low < 75
    assert level_axis([75.0], str).holds(75.0)
    assert level_axis([0.0], str).place(0.0) == pytest.approx(0.5)
