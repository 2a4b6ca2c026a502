"""A checksum changes whenever the work was not this step's, and only then."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from e2e.measure import fingerprint
from e2e.measure.fingerprint import Ring, checksum, checksums

torch.set_num_threads(1)

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int8, torch.bool]
FLOATS = [torch.float32, torch.float16, torch.bfloat16]
SHAPES = [(1,), (7,), (8,), (1, 1), (3, 5), (4, 6), (2, 3, 7), (2, 3, 4, 5), (1, 1, 256)]


def digest(*outputs: Tensor) -> int:
    ring = Ring(2, "cpu")
    ring.commit(outputs, 1)
    checksum, _ = ring.read(2)[1]
    return checksum


def sketch(output: Tensor) -> list[float]:
    ring = Ring(1, "cpu")
    ring.commit([output], 0)
    return ring.read(1)[0][1]


def draw(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator) * 50
    return values > 0 if dtype is torch.bool else values.to(dtype)


# ---- Equal


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equal_outputs_have_equal_checksums(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    assert digest(draw(shape, dtype)) == digest(draw(shape, dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_layout_in_memory_does_not_matter(dtype: torch.dtype) -> None:
    """A compiled arm may return other strides than an eager one; the values are what was computed."""
    whole = draw((4, 6, 10), dtype)
    plain = whole[:, :, ::2].contiguous()
    views = [
        whole[:, :, ::2],
        torch.cat([draw((1,), dtype), plain.flatten()])[1:].reshape(plain.shape),  # an odd offset
        torch.cat([plain, plain], dim=-1)[:, :, :5],  # padded rows
        plain.transpose(0, 1).contiguous().transpose(0, 1),
        plain.transpose(1, 2).contiguous().transpose(1, 2),
    ]
    assert {digest(view) for view in views} == {digest(plain)}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_pairs_of_two_byte_values_read_the_same_from_any_view(dtype: torch.dtype) -> None:
    """Even sizes are summed as 32-bit words where the view allows it, else one by one: both must agree."""
    plain = draw((4, 6), dtype)
    shifted = torch.cat([draw((1,), dtype), plain.flatten()])[1:].reshape(4, 6)
    odd_rows = torch.cat([plain, draw((4, 1), dtype)], dim=-1)[:, :6]
    assert {digest(shifted), digest(odd_rows)} == {digest(plain)}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_outputs_of_one_form_summed_together_read_as_they_do_alone(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    alike = [draw(shape, dtype, seed) for seed in range(3)]
    assert checksums(alike).tolist() == [int(checksum(tensor)) for tensor in alike]


def test_however_outputs_are_grouped_the_digest_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = [draw((4, 6), torch.float32, 1), *(draw((2, 3, 8), torch.bfloat16, seed) for seed in range(5))]
    together = digest(*outputs)
    monkeypatch.setattr(fingerprint, "TOGETHER_BYTES", 0)
    assert digest(*outputs) == together
    assert digest(outputs[0], *reversed(outputs[1:])) != together


def test_a_slot_is_overwritten_and_its_neighbours_are_not() -> None:
    ring = Ring(3, "cpu")
    first, second = draw((4, 4), torch.float32, 1), draw((4, 4), torch.float32, 2)
    for place in range(3):
        ring.commit([first], place)
    ring.commit([second], 1)
    assert [checksum for checksum, _ in ring.read(3)] == [digest(first), digest(second), digest(first)]
    assert [found for _, found in ring.read(3)] == [sketch(first), sketch(second), sketch(first)]


def test_reading_fewer_slots_gives_the_first_ones() -> None:
    ring = Ring(3, "cpu")
    for place in range(3):
        ring.commit([torch.tensor([float(place)])], place)
    assert len(ring.read(2)) == 2
    assert ring.read(2) == ring.read(3)[:2]


def test_the_same_outputs_give_the_same_checksum_in_any_ring_and_process() -> None:
    """A pinned value: the audit compares numbers that two processes computed."""
    outputs = (torch.arange(12, dtype=torch.float32).reshape(3, 4), torch.arange(6, dtype=torch.int64))
    assert digest(*outputs) == 3028339451166886518


# ---- Different


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_one_changed_element_anywhere_changes_the_checksum(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    value = draw(shape, dtype)
    before = digest(value)
    for place in range(value.numel()):
        changed = value.clone()
        flat = changed.view(-1)
        flat[place] = ~flat[place] if dtype is torch.bool else flat[place] + 1
        assert not torch.equal(changed, value)
        assert digest(changed) != before


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_smallest_possible_change_changes_the_checksum(dtype: torch.dtype) -> None:
    value = draw((3, 8), dtype)
    bits = value.clone().view(torch.int32 if dtype is torch.float32 else torch.int16)
    bits[1, 3] ^= 1
    assert digest(bits.view(dtype)) != digest(value)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_changed_sign_of_zero_counts_as_a_change(dtype: torch.dtype) -> None:
    assert digest(torch.tensor([0.0], dtype=dtype)) != digest(torch.tensor([-0.0], dtype=dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_swapped_rows_change_the_checksum(dtype: torch.dtype) -> None:
    value = draw((5, 8), dtype)
    for one in range(5):
        for other in range(one):
            order = list(range(5))
            order[one], order[other] = other, one
            assert digest(value[order]) != digest(value)


def test_rows_of_another_batch_element_change_the_checksum() -> None:
    value = draw((2, 3, 4, 8), torch.float32)
    assert digest(value.flip(0)) != digest(value)
    assert digest(value.flip(1)) != digest(value)
    assert digest(value.transpose(1, 2).reshape(value.shape)) != digest(value)


def test_the_output_of_the_step_before_is_another_checksum() -> None:
    steps = [draw((1, 1, 64), torch.bfloat16, seed) for seed in range(200)]
    assert len({digest(step) for step in steps}) == 200


def test_an_output_that_stayed_zero_is_noticed() -> None:
    assert digest(torch.zeros(4, 8)) != digest(draw((4, 8), torch.float32))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite_leave_their_own_checksum(value: float) -> None:
    good, bad = draw((4, 8), torch.float32), draw((4, 8), torch.float32)
    bad[2, 3] = value
    assert digest(bad) != digest(good)
    assert digest(bad) == digest(bad.clone())


def test_every_output_counts_and_so_does_their_order() -> None:
    one, two, three = (draw((2, 8), torch.float32, seed) for seed in range(3))
    found = {digest(one, two), digest(two, one), digest(one, three), digest(one), digest(one, two, three)}
    assert len(found) == 5


def test_a_late_output_that_is_stale_is_noticed() -> None:
    """Keys and values of every layer are outputs too: one layer's may be left from the step before."""
    fresh = [draw((2, 4, 8), torch.float32, seed) for seed in range(33)]
    stale = [*fresh[:20], draw((2, 4, 8), torch.float32, 99), *fresh[21:]]
    assert digest(*stale) != digest(*fresh)


@given(
    one=st.lists(st.integers(-(2**15), 2**15 - 1), min_size=12, max_size=12),
    other=st.lists(st.integers(-(2**15), 2**15 - 1), min_size=12, max_size=12),
)
def test_rows_with_other_sums_never_collide_by_chance(one: list[int], other: list[int]) -> None:
    first, second = (torch.tensor(values, dtype=torch.int16).reshape(4, 3) for values in (one, other))
    sums_differ = first.sum(-1).tolist() != second.sum(-1).tolist()
    weighted = [sum((2 * place + 1) * total for place, total in enumerate(t.sum(-1).tolist())) for t in (first, second)]
    assert (digest(first) != digest(second)) == (weighted[0] != weighted[1])
    assert sums_differ or digest(first) == digest(second)


# ---- Sketches, for arms that do not repeat themselves bit for bit


def relative(one: list[float], other: list[float]) -> float:
    return math.dist(one, other) / math.hypot(*one)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_sketch_moves_about_as_far_as_the_output(dtype: torch.dtype) -> None:
    value = draw((1, 1, 4096), dtype)
    for size in (0.01, 0.1):
        noise = draw((1, 1, 4096), torch.float32, seed=9) / 50
        moved = (value.float() * (1 + size * noise)).to(dtype)
        assert size / 5 < relative(sketch(value), sketch(moved)) < 5 * size


def test_the_output_of_another_step_has_a_sketch_far_away() -> None:
    steps = [sketch(draw((1, 1, 256), torch.float32, seed)) for seed in range(30)]
    assert min(relative(a, b) for place, a in enumerate(steps) for b in steps[:place]) > 0.05


def test_equal_outputs_have_equal_sketches_in_any_ring() -> None:
    assert sketch(draw((2, 3, 8), torch.float32)) == sketch(draw((2, 3, 8), torch.float32))


def test_a_sketch_of_what_is_not_finite_can_be_sent() -> None:
    """NaN is not JSON; the checksum tells such outputs apart."""
    assert all(math.isfinite(value) for value in sketch(torch.full((1, 8), float("nan"))))
    assert all(math.isfinite(value) for value in sketch(torch.full((1, 8), float("inf"))))


def test_outputs_of_other_widths_may_follow_each_other() -> None:
    ring = Ring(2, "cpu")
    ring.commit([torch.ones(2, 8)], 0)
    ring.commit([torch.ones(2, 16)], 1)
    assert ring.read(2)[1][1] == sketch(torch.ones(2, 16))


def test_a_single_number_is_an_output_too() -> None:
    """A loss has no dimension."""
    assert digest(torch.tensor(1.5)) != digest(torch.tensor(2.5))
