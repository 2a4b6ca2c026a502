"""What one process saw of an op's inputs, another sees again: values, strides, offsets and sharing of memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from e2e.numerics.captures import (
    ALTERED,
    ALTERED_CALLS,
    Captured,
    altered,
    clone_call,
    load_calls,
    save_calls,
    select,
)
from e2e.protocols import OpCall

torch.set_num_threads(1)


def captured(
    *tensors: Tensor | None, scalars: tuple[float, ...] = (1e-6,), site: str = "s", label: str = "captured"
) -> Captured:
    return Captured(site, label, OpCall(tensors, scalars))


def round_trip(folder: Path, *calls: Captured) -> list[Captured]:
    save_calls(folder / "calls.safetensors", calls)
    return load_calls(folder / "calls.safetensors", "cpu")


def geometry(tensor: Tensor) -> tuple[object, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype


def odd_views() -> dict[str, Tensor]:
    base = torch.arange(2 * 6 * 4 * 8, dtype=torch.float32).reshape(2, 6, 4, 8)
    return {
        "contiguous": base,
        "attention's query": base.transpose(1, 2),
        "a slice of a fused projection": base.reshape(2, 6, 32)[..., 8:24],
        "last token": base.reshape(2, 6, 32)[:, -1:, :],
        "every other row": base.reshape(12, 32)[::2],
        "expanded": torch.arange(8.0).expand(5, 8),
        "an odd offset": torch.arange(33.0)[1:].reshape(4, 8),
        "a scalar's shape": torch.tensor(3.0),
        "no rows": torch.empty(0, 8),
        "bfloat16": base.bfloat16()[:, 1:],
        "integers": torch.arange(10)[::3],
    }


# ---- Files


def test_a_tensor_that_a_call_does_not_have_stays_absent(tmp_path: Path) -> None:
    bias = torch.arange(3.0)
    (found,) = round_trip(tmp_path, captured(torch.ones(2, 3), None, bias))
    assert found.call.tensors[1] is None
    assert torch.equal(bias, found.call.tensors[2])


@pytest.mark.parametrize("name", list(odd_views()))
def test_values_strides_and_offset_come_back(tmp_path: Path, name: str) -> None:
    view = odd_views()[name]
    (back,) = round_trip(tmp_path, captured(view))
    (tensor,) = back.call.tensors
    assert geometry(tensor) == geometry(view)
    assert torch.equal(tensor, view)


def test_order_sites_labels_and_scalars_come_back(tmp_path: Path) -> None:
    calls = [
        captured(torch.ones(2), site="a", scalars=(1e-5,)),
        captured(torch.ones(3), site="b", label="one row", scalars=(True, 7, 0.1 + 0.2)),
    ]
    back = round_trip(tmp_path, *calls)
    assert [(item.site, item.label, item.call.scalars) for item in back] == [
        ("a", "captured", (1e-5,)),
        ("b", "one row", (True, 7, 0.1 + 0.2)),
    ]


def test_what_is_not_finite_comes_back_bit_for_bit(tmp_path: Path) -> None:
    odd = torch.tensor([float("nan"), float("inf"), -0.0, 1e-45])
    (back,) = round_trip(tmp_path, captured(odd))
    assert torch.equal(back.call.tensors[0].view(torch.int32), odd.view(torch.int32))


def test_no_call_can_spoil_another_calls_inputs(tmp_path: Path) -> None:
    """One weight serves many calls; a kernel that writes into it must not make the next call wrong."""
    weight = torch.ones(4)
    first, second = round_trip(tmp_path, captured(torch.zeros(2, 4), weight), captured(torch.ones(2, 4), weight))
    first.call.tensors[1].fill_(9)
    assert torch.equal(second.call.tensors[1], torch.ones(4))


def test_a_shared_storage_is_written_once(tmp_path: Path) -> None:
    big = torch.zeros(10_000)
    save_calls(tmp_path / "one", [captured(big)])
    save_calls(tmp_path / "many", [captured(big[:100]), captured(big[100:200]), captured(big)])
    assert (tmp_path / "many").stat().st_size < 1.1 * (tmp_path / "one").stat().st_size


def test_one_storage_seen_as_two_dtypes_comes_back_as_both(tmp_path: Path) -> None:
    ints = torch.arange(8, dtype=torch.int32)
    floats = ints.view(torch.float32)
    first, second, third = round_trip(tmp_path, captured(ints), captured(floats), captured(ints))
    assert torch.equal(first.call.tensors[0], ints)
    assert torch.equal(second.call.tensors[0], floats)
    assert torch.equal(third.call.tensors[0], ints)


def test_a_saved_call_does_not_follow_later_writes(tmp_path: Path) -> None:
    x = torch.ones(4)
    save_calls(tmp_path / "f", [captured(x)])
    x.zero_()
    assert torch.equal(load_calls(tmp_path / "f", "cpu")[0].call.tensors[0], torch.ones(4))


# ---- Clones


@pytest.mark.parametrize("name", list(odd_views()))
def test_a_clone_has_the_same_values_and_strides_in_memory_of_its_own(name: str) -> None:
    view = odd_views()[name]
    before = view.clone()
    (cloned,) = clone_call(OpCall((view,), ())).tensors
    assert torch.equal(cloned, view)
    assert cloned.stride() == view.stride()
    assert cloned.storage_offset() % 64 == view.storage_offset() % 64, "the alignment a kernel sees"
    if cloned.numel():
        if 0 in cloned.stride():
            cloned = cloned[:1]
        cloned.fill_(0)
        assert torch.equal(view, before)


def test_a_small_view_of_something_huge_is_cloned_without_its_neighbours() -> None:
    huge = torch.zeros(100, 1000, 8)
    view = huge[:, -1:, :][50:51]
    (cloned,) = clone_call(OpCall((view,), ())).tensors
    assert cloned.stride() == view.stride()
    assert cloned.untyped_storage().nbytes() < huge.untyped_storage().nbytes() / 100


@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    order=st.randoms(use_true_random=False),
    step=st.integers(1, 2),
    offset=st.integers(0, 70),
)
def test_any_view_survives_cloning(shape: list[int], order: object, step: int, offset: int) -> None:
    extent = 1
    for size in shape:
        extent *= size * step
    base = torch.arange(offset + extent, dtype=torch.float32)[offset:]
    view = base.reshape([size * step for size in shape])[tuple(slice(None, None, step) for _ in shape)]
    axes = list(range(len(shape)))
    order.shuffle(axes)  # type: ignore[attr-defined]
    view = view.permute(axes)
    (cloned,) = clone_call(OpCall((view,), ())).tensors
    assert torch.equal(cloned, view)
    assert cloned.stride() == view.stride()


def test_scalars_are_kept_by_a_clone() -> None:
    assert clone_call(OpCall((torch.ones(1),), (1e-6, 3))).scalars == (1e-6, 3)


# ---- What is kept within a budget


def calls_of(*rows: int) -> list[Captured]:
    return [captured(torch.zeros(count, 8), site=f"site {place}") for place, count in enumerate(rows)]


def sites(calls: list[Captured]) -> list[str]:
    return [item.site for item in calls]


def test_everything_is_kept_where_the_budget_allows() -> None:
    assert len(select(calls_of(1, 2, 3, 4), 10**9)) == 4


def test_every_distinct_shape_comes_before_a_repeated_one() -> None:
    calls = calls_of(4, 4, 4, 1, 4)
    one_of_each = 4 * 8 * 4 + 1 * 8 * 4
    assert sorted(item.call.tensors[0].shape[0] for item in select(calls, one_of_each)) == [1, 4]


def test_the_first_site_is_kept_whatever_the_budget() -> None:
    assert sites(select(calls_of(100, 100), 1)) == ["site 0"]


def test_first_middle_and_last_come_before_the_rest() -> None:
    calls = calls_of(4, 4, 4, 4, 4)
    assert sorted(sites(select(calls, 3 * 4 * 8 * 4))) == ["site 0", "site 2", "site 4"]


def test_nothing_to_keep_is_no_error() -> None:
    assert select([], 100) == []


def test_few_elements_differ_and_other_ones_in_every_altered_call() -> None:
    original = captured(torch.randn(40, 50))
    calls = [item.call.tensors[0] for item in altered(original, seed=3)]
    changed = [set((tensor != original.call.tensors[0]).flatten().nonzero().flatten().tolist()) for tensor in calls]
    assert len(changed) == ALTERED_CALLS and all(0 < len(places) <= ALTERED for places in changed)
    assert not set.intersection(*changed)
