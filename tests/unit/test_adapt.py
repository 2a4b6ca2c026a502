"""Entries with a calling convention of their own, as the op's call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from e2e import registry
from e2e.builders._adapt import adapted
from e2e.errors import CandidateError
from e2e.protocols import Built
from e2e.schema.kernel import Kernel, Manifest

ROWS = torch.arange(24.0).reshape(2, 3, 4)


def call_of(function: Callable[..., Any], op: str = "rms_norm", **fields: Any) -> Callable[..., Any]:
    manifest = Manifest(op=op, entry="f", **{"binding": "python", **fields})
    kernel = Kernel(spec="k.py", path="k.py", sha256="0", manifest=manifest, format="block")
    built = Built(kernel=kernel, builder="python", artifact="k.py", seconds=0.0, cached=False)
    return adapted(function, registry.load_op(op), built)


def test_an_entry_with_the_ops_own_convention_is_left_as_it_is() -> None:
    def entry(*args: Any) -> Any: ...

    assert call_of(entry) is entry
    assert call_of(entry, args=["x", "weight", "eps"]) is entry


def test_arguments_are_picked_and_ordered() -> None:
    assert call_of(lambda *args: args, args=["eps", "x"])("X", "W", 0.5) == (0.5, "X")


def test_leading_dimensions_are_folded_and_come_back_in_the_output() -> None:
    def doubled(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        assert x.shape == (6, 4)
        return 2 * x

    assert torch.equal(call_of(doubled, ranks={"x": 2})(ROWS, None, 0.5), 2 * ROWS)


def test_what_has_no_more_dimensions_than_stated_comes_as_it_is() -> None:
    assert call_of(lambda x, *rest: x, ranks={"x": 2})(ROWS[0], None, 0.5) is not None
    assert torch.equal(call_of(lambda x, *rest: x, ranks={"x": 2})(ROWS[0], None, 0.5), ROWS[0])


@pytest.mark.parametrize("x", [ROWS, ROWS.transpose(0, 1), ROWS[:, :0]], ids=["dense", "not contiguous", "no rows"])
def test_outputs_are_handed_over_folded_and_given_back_whole(x: torch.Tensor) -> None:
    def filling(x: torch.Tensor, out: torch.Tensor) -> None:
        assert x.dim() == out.dim() == 2
        out.copy_(2 * x)

    call = call_of(filling, args=["x"], outputs="last", ranks={"x": 2})
    assert torch.equal(call(x, None, 0.5), 2 * x)


def test_several_outputs_are_handed_over_one_by_one_where_out_stands() -> None:
    def turned(first: torch.Tensor, second: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> None:
        first.copy_(q + 1)
        second.copy_(k + 2)

    call = call_of(turned, "rope", args=["out", "q", "k"], outputs="last")
    q, k, angles = torch.zeros(1, 2, 3, 4), torch.zeros(1, 1, 3, 4), torch.zeros(1, 3, 4)
    first, second = call(q, k, angles, angles)
    assert torch.equal(first, q + 1)
    assert torch.equal(second, k + 2)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"args": ["x", "wieght"]}, "no 'wieght' in this op; did you mean 'weight'?"),
        ({"ranks": {"hidden": 2}}, "no 'hidden' in this op"),
        ({"args": ["x", "out"]}, "no 'out' in this op"),
        ({"args": ["x", "out"], "binding": "tvm-ffi", "outputs": "return"}, "no 'out' in this op"),
    ],
)
def test_a_name_that_the_op_does_not_have_is_told(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(CandidateError, match=said.replace("?", r"\?")) as caught:
        call_of(lambda *args: None, **fields)
    assert caught.value.code == "bind_failed"
