from __future__ import annotations

import pytest

from e2e.regions import regions_of
from e2e.schema.constraint import check_expression, holds
from e2e.schema.result import Region, Standing
from e2e.schema.words import Outcome

OUTCOMES: dict[Standing, Outcome] = {
    "wins": Outcome.CONFIRMED,
    "loses": Outcome.REFUTED,
    "neither": Outcome.REFUTED,
    "unknown": Outcome.INCONCLUSIVE,
}


def region(batch: int, sequence: int, standing: Standing, **changes: object) -> Region:
    whole = Region(
        batch=batch,
        sequence=sequence,
        rows=batch * sequence,
        outcome=OUTCOMES[standing],
        speedup=None,
        standing=standing,
    )
    return whole.model_copy(update=changes)


@pytest.mark.parametrize(
    ("rule", "cells"),
    [
        ("rows >= 512", [(1, 128, "neither"), (1, 512, "wins"), (1, 2048, "wins")]),
        ("rows >= 512", [(1, 512, "wins"), (1, 128, "loses")]),
        ("rows <= 128", [(1, 64, "wins"), (1, 128, "wins"), (1, 512, "neither"), (1, 2048, "loses")]),
        ("rows >= 2048", [(1, 128, "unknown"), (1, 512, "unknown"), (1, 2048, "wins")]),
        ("sequence <= 128", [(1, 128, "wins"), (8, 128, "wins"), (1, 512, "neither"), (8, 512, "neither")]),
        ("batch >= 8", [(1, 64, "neither"), (1, 2048, "loses"), (8, 64, "wins"), (8, 2048, "wins")]),
    ],
)
def test_a_threshold_that_parts_wins_from_the_rest_is_a_constraint(
    rule: str, cells: list[tuple[int, int, Standing]]
) -> None:
    table = regions_of([region(*cell) for cell in cells])
    assert rule == table.rule
    check_expression(rule, comparison=True)
    for cell in table.cells:
        dims: dict[str, int | str] = {"rows": cell.rows, "batch": cell.batch, "sequence": cell.sequence}
        assert holds(rule, dims) is (cell.standing == "wins")


def test_where_nothing_was_measured_is_said() -> None:
    mixed = regions_of([region(1, 128, "neither"), region(1, 512, "wins")], is_of_one_kind=False)
    assert (mixed.rule, len(mixed.cells)) == (None, 2), "two dtypes or steps are not two sizes"
    rising = regions_of([region(1, 128, "neither"), region(1, 512, "wins"), region(1, 2048, "wins")])
    assert "between rows 128 and 512, and above 2048, nothing was measured" == rising.limits
    falling = regions_of([region(1, 128, "wins"), region(1, 512, "loses")])
    assert "between rows 128 and 512, and below 128, nothing was measured" == falling.limits


def test_another_dimension_that_would_do_as_well_is_named() -> None:
    cells = [region(1, 128, "neither"), region(8, 128, "neither"), region(1, 2048, "wins"), region(8, 2048, "wins")]
    table = regions_of(cells)
    assert "rows >= 2048" == table.rule
    assert table.limits is not None
    assert table.limits.endswith("; sequence >= 2048 would fit these cells as well")


@pytest.mark.parametrize(
    "cells",
    [
        [(1, 128, "wins"), (1, 512, "neither"), (1, 2048, "wins")],
        [(1, 128, "neither"), (1, 512, "wins"), (1, 2048, "loses")],
        [(1, 512, "wins"), (1, 1024, "unknown"), (1, 2048, "wins")],
        [(1, 128, "wins"), (1, 512, "wins")],
        [(1, 128, "neither"), (1, 512, "loses")],
    ],
)
def test_without_a_single_threshold_there_is_no_rule(cells: list[tuple[int, int, Standing]]) -> None:
    table = regions_of([region(*cell) for cell in cells])
    assert (None, None) == (table.rule, table.limits)
    assert len(cells) == len(table.cells)


@pytest.mark.parametrize("outcome", [Outcome.INCORRECT, Outcome.FAILED])
def test_there_is_no_rule_beside_a_cell_where_the_kernel_is_wrong_or_does_not_run(outcome: Outcome) -> None:
    cells = [region(1, 128, "unknown", outcome=outcome), region(1, 512, "wins")]
    assert regions_of(cells).rule is None
