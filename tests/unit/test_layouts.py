"""Kernels that take tensors in another layout: views of the op's own, and sites that mean something else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from e2e import registry
from e2e.binding import trainable
from e2e.bound import bound_to
from e2e.errors import UsageError
from e2e.layouts import InLayout, Relaid
from e2e.numerics.compare import exactly, judge_outputs, layout_of
from e2e.numerics.constraints import declined_by
from e2e.protocols import BuildTarget, OpCall, outputs_of
from e2e.reading import read_kernel
from tests import families
from tests.sessions import surveyed

torch.set_num_threads(1)

KERNELS = Path(__file__).parents[1] / "kernels"
ATTENTION = registry.load_op("attention")
TURNED = registry.load_op("rope:interleaved")
VIEW = InLayout(ATTENTION, ATTENTION.layouts["bshd"])


def call_of(file: str, cache: Path) -> Callable[..., Any]:
    kernel = read_kernel(str(KERNELS / file), op=None)
    built = registry.load("builders", kernel.manifest.binding).build(kernel, BuildTarget("cpu", None, cache, 120))
    return bound_to(built, registry.load_op(kernel.manifest.op), "float32").call


def heads(*shape: int) -> Tensor:
    """(B, H, S, D) in memory as (B, S, H, D): how projections leave them."""
    batch, count, length, size = shape
    return torch.randn(batch, length, count, size).transpose(1, 2)


class Seen:
    """A kernel in the other layout that remembers what it was handed."""

    def __call__(self, *call: Any) -> Any:
        self.call = call
        return VIEW.allocate(*call).zero_()


@pytest.mark.parametrize("file", ["attention_bshd.py", "attention_bshd.cpp"])
def test_a_kernel_in_another_layout_is_right_on_what_it_takes(file: str, e2e_cache: Path) -> None:
    kernel, constraints = call_of(file, e2e_cache), read_kernel(str(KERNELS / file), op=None).manifest.constraints
    taken = 0
    for _, call in ATTENTION.edge_calls(ATTENTION.example("float32", "cpu", 1), 1):
        if declined_by(constraints, ATTENTION.dims(call)) is not None:
            continue
        try:
            value = kernel(*call.tensors, *call.scalars)
        except (NotImplementedError, ValueError):  # not dense
            continue
        taken += 1
        plain = ATTENTION.reference(*call.tensors, *call.scalars)
        assert judge_outputs(value, plain, exactly(ATTENTION, call), ratio=4)[0] is None
        assert layout_of(value) == layout_of(ATTENTION.allocate(*call.tensors, *call.scalars))
    assert taken >= 3


def test_tensors_and_outputs_are_views_in_the_kernels_layout() -> None:
    seen = Seen()
    q, k, v = heads(2, 8, 5, 4), heads(2, 2, 7, 4), heads(2, 2, 7, 6)
    mask = torch.ones(1, 1, 5, 7, dtype=torch.bool)
    y = Relaid(VIEW, seen)(q, k, v, mask, 0.5, False, None, None)
    assert [tuple(item.shape) for item in seen.call[:3]] == [(2, 5, 8, 4), (2, 7, 2, 4), (2, 7, 2, 6)]
    assert [item.data_ptr() for item in seen.call[:3]] == [item.data_ptr() for item in (q, k, v)]
    assert all(item.is_contiguous() for item in seen.call[:3])
    assert seen.call[3] is mask
    assert y.shape == (2, 8, 5, 6)
    assert layout_of(y) == layout_of(ATTENTION.allocate(q, k, v))


def test_memory_for_the_output_is_dense_in_the_kernels_layout() -> None:
    q, k, v = (item.transpose(1, 2) for item in (heads(2, 8, 5, 4), heads(2, 2, 7, 4), heads(2, 2, 7, 6)))
    out = VIEW.allocate(q, k, v, None, 0.5, False, None, None)
    assert tuple(out.shape) == (2, 5, 8, 6)
    assert out.is_contiguous()


def test_named_dimensions_are_the_ops_own() -> None:
    call = ATTENTION.example("float32", "cpu", 1)
    assert VIEW.dims(OpCall(VIEW.tensors(call.tensors), call.scalars)) == ATTENTION.dims(call)


class Averaging:
    """Mean of the values over keys, in the other layout, with a backward of its own."""

    def saving(self, *call: Any) -> tuple[Any, tuple[Any, ...]]:
        q, k, v = call[:3]
        mean = v.mean(1, keepdim=True)
        return mean.repeat_interleave(q.shape[2] // k.shape[2], 2).expand(-1, q.shape[1], -1, -1).contiguous(), (v,)

    def backward(self, gradients: Any, tensors: Any, saved: Any) -> Any:
        (gradient,), (q, k, v, _), (kept,) = gradients, tensors, saved
        assert torch.equal(kept, v)
        assert gradient.shape[:3] == q.shape[:3]
        of_v = gradient.sum(1, keepdim=True).unflatten(2, (k.shape[2], -1)).sum(3) / v.shape[1]
        return torch.zeros_like(q), torch.zeros_like(k), of_v.expand_as(v), None


def test_a_backward_sees_and_gives_everything_in_the_kernels_layout() -> None:
    q, k, v = (item.requires_grad_() for item in (heads(2, 4, 5, 3), heads(2, 2, 7, 3), heads(2, 2, 7, 3)))
    y = trainable(ATTENTION, Relaid(VIEW, Averaging()))(q, k, v, None, 0.0, False, None, None)  # type: ignore[arg-type]
    torch.testing.assert_close(y, ATTENTION.reference(q, k, v, None, 0.0, False, None, None))
    upstream = torch.randn_like(y)
    mine = torch.autograd.grad(y, [q, k, v], upstream)
    wanted = torch.autograd.grad(ATTENTION.reference(q, k, v, None, 0.0, False, None, None), [q, k, v], upstream)
    for found, exact in zip(mine, wanted, strict=True):
        torch.testing.assert_close(found, exact)


# ---- rope


def test_a_kernel_for_neighbouring_channels_is_right_by_the_op_of_that_layout(e2e_cache: Path) -> None:
    kernel, example = call_of("rope_interleaved.py", e2e_cache), TURNED.example("float32", "cpu", 1)
    for label, call in [("example", example), *TURNED.edge_calls(example, 1)]:
        value, plain = (function(*call.tensors) for function in (kernel, TURNED.reference))
        assert judge_outputs(outputs_of(value), plain, exactly(TURNED, call), ratio=4)[0] is None, label


def test_sites_in_which_other_channels_are_pairs_are_incompatible_in_words(tmp_path: Path) -> None:
    other = "its own forward is not rope:interleaved: relative difference"
    assert all(str(why).startswith(other) for why in surveyed(TURNED, "llama", tmp_path).values())
    found = surveyed(TURNED, "cohere", tmp_path)
    assert len(found) == families.LAYERS
    assert set(found.values()) == {None}
    halves = surveyed(registry.load_op("rope"), "cohere", tmp_path)
    assert all(str(why).startswith("its own forward is not rope: relative") for why in halves.values())


# ---- the block


def read(tmp_path: Path, *rows: str, op: str | None = None) -> Any:
    path = tmp_path / "k.py"
    path.write_text("\n".join(["# /// e2e", *(f"# {row}" for row in rows), "# ///", "def f(*call): ..."]))
    return read_kernel(str(path), op=op).manifest


def test_a_layout_that_pairs_other_channels_is_part_of_the_ops_name(tmp_path: Path) -> None:
    rows = ("op: rope", "layout: interleaved")
    assert read(tmp_path, *rows).op == "rope:interleaved"
    assert read(tmp_path, *rows, op="rope").op == "rope:interleaved"
    assert read(tmp_path, *rows, op="rope:interleaved").op == "rope:interleaved"
    assert read(tmp_path, "layout: interleaved", op="rope").op == "rope:interleaved"
    assert read(tmp_path, "op: rope", "layout: half_split").op == "rope"
    with pytest.raises(UsageError, match="the file says 'rope', where 'rope:interleaved' is wanted"):
        read(tmp_path, "op: rope", op="rope:interleaved")


@pytest.mark.parametrize(
    ("op", "layout", "said"),
    [
        ("attention", "sbhd", "layout: no 'sbhd': attention has bhsd and bshd"),
        ("rope", "bshd", "layout: no 'bshd': rope has half_split and interleaved"),
        ("rms_norm", "bshd", "layout: no 'bshd': rms_norm has one only"),
        ("attention", "interleaved", "layout: no 'interleaved': attention has"),
    ],
)
def test_a_layout_that_the_op_does_not_have_is_told(tmp_path: Path, op: str, layout: str, said: str) -> None:
    with pytest.raises(UsageError, match=f"k.py:3: {said}"):
        read(tmp_path, f"op: {op}", f"layout: {layout}")


def test_there_is_no_third_layout_of_rope() -> None:
    with pytest.raises(UsageError, match="no op called 'rope:sideways'"):
        registry.load_op("rope:sideways")
