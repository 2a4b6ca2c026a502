"""A kernel that trains by itself: what its forward saves, the scratch it gets, the backward that sees both again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from e2e import registry
from e2e.binding import NO_BACKWARD, trainable
from e2e.errors import CandidateError, UsageError
from e2e.protocols import BuildTarget
from e2e.reading import read_kernel

SHIPPED = Path(__file__).parents[2] / "kernels"
OP = registry.load_op("rms_norm")
PYTHON = """\
# /// e2e
# op: rms_norm
# entry: forward
# backward: backward
# saves: [{rstd: "rows, float32"}]
# ///
import torch

def forward(x, weight, eps):
    rstd = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return x * rstd * weight, rstd

def backward(gradient, x, weight, rstd):
    n, g = x * rstd, gradient * weight
    return rstd * (g - n * (g * n).mean(-1, keepdim=True)), (gradient * n).sum(tuple(range(x.dim() - 1)))
"""
SCRATCH = """\
// /// e2e
// op: rms_norm
// entry: scaled
// device: cpu
// dtypes: [float32]
// args: [x, total, weight, eps, out, hidden]
// workspace: [{total: "rows, 2, float32"}]
// ///
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>
#include <cmath>
using tvm::ffi::TensorView;
float* at(const TensorView& t) { return reinterpret_cast<float*>(static_cast<char*>(t.data_ptr()) + t.byte_offset()); }
void scaled(TensorView x, TensorView total, TensorView weight, double eps, TensorView out, int64_t hidden) {
  for (int64_t row = 0; row < total.size(0); ++row) {
    float* sum = at(total) + 2 * row;
    sum[0] = 0;
    for (int64_t i = 0; i < hidden; ++i) sum[0] += at(x)[row * hidden + i] * at(x)[row * hidden + i];
    sum[1] = 1 / std::sqrt(sum[0] / hidden + eps);
    for (int64_t i = 0; i < hidden; ++i) at(out)[row * hidden + i] = at(x)[row * hidden + i] * sum[1] * at(weight)[i];
  }
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(scaled, scaled);
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def bound(path: Path, cache: Path) -> Any:
    kernel = read_kernel(str(path), op=None)
    builder = registry.load("builders", kernel.manifest.binding)
    return builder.bind(builder.build(kernel, BuildTarget("cpu", None, cache, 120.0)), OP, "float32")


def inputs(*, needs_gradient: bool = True) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    made = [torch.randn(*shape, generator=generator) for shape in ((3, 5, 24), (24,))]
    return [tensor.requires_grad_(needs_gradient) for tensor in made]


@pytest.mark.parametrize("source", ["native", "python"])
def test_the_kernels_own_backward_gives_the_references_gradients(source: str, tmp_path: Path, cache: Path) -> None:
    path = SHIPPED / "rmsnorm_train.cpp"
    if source == "python":
        path = tmp_path / "norm.py"
        path.write_text(PYTHON)
    kernel = bound(path, cache)
    upstream = torch.randn(3, 5, 24, generator=torch.Generator().manual_seed(2))
    ours, theirs = inputs(), inputs()
    y = trainable(OP, kernel)(*ours, 1e-5)
    y.backward(upstream)
    OP.reference(*theirs, 1e-5).backward(upstream)
    torch.testing.assert_close(y, OP.reference(*theirs, 1e-5))
    for mine, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, wanted.grad, rtol=1e-5, atol=1e-5)


def test_a_backward_that_forgets_a_gradient_is_refused(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "norm.py"
    path.write_text(
        PYTHON.replace("(g * n).mean(-1, keepdim=True)), (gradient", "(g * n).mean(-1, keepdim=True)) + (gradient")
    )
    with pytest.raises(CandidateError, match="backward: gave 1 gradients for 2 tensors"):
        trainable(OP, bound(path, cache))(*inputs(), 1e-5).sum().backward()


def test_a_forward_that_saves_gives_only_the_ops_output(cache: Path) -> None:
    kernel = bound(SHIPPED / "rmsnorm_train.cpp", cache)
    x, weight = inputs(needs_gradient=False)
    torch.testing.assert_close(kernel(x, weight, 1e-5), OP.reference(x, weight, 1e-5))
    assert [tuple(item.shape) for item in kernel.saving(x, weight, 1e-5)[1]] == [(15,)]


def test_scratch_memory_is_made_in_the_size_that_the_block_says(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "scratch.cpp"
    path.write_text(SCRATCH)
    x, weight = inputs(needs_gradient=False)
    kernel = bound(path, cache)
    torch.testing.assert_close(kernel(x, weight, 1e-5), OP.reference(x, weight, 1e-5))
    with pytest.raises(RuntimeError, match=NO_BACKWARD):
        trainable(OP, kernel)(*inputs(), 1e-5).sum().backward()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("rows, 2, float32", "float32", "must be sizes, then a dtype"),
        ("rows, 2, float32", "rows, 2", "must be sizes, then a dtype"),
        ("rows, 2, float32", "rows * , float32", "not an expression"),
        ("hidden]", "hidden, total]", "must name `total` once"),
        ("rows, 2, float32", "columns, 2, float32", "rms_norm has no dimension 'columns'"),
    ],
)
def test_mistakes_in_scratch_memory_are_named(tmp_path: Path, cache: Path, old: str, new: str, said: str) -> None:
    path = tmp_path / "scratch.cpp"
    path.write_text(SCRATCH.replace(old, new))
    with pytest.raises((UsageError, CandidateError), match=said):
        bound(path, cache)(*inputs(needs_gradient=False), 1e-5)


def test_a_backward_that_is_not_exported_is_named(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "norm.cpp"
    shipped = (SHIPPED / "rmsnorm_train.cpp").read_text()
    wrong = shipped.replace("backward: rms_norm_backward", "backward: back")
    (tmp_path / "more.h").write_text("")
    path.write_text(f'{wrong}#include "more.h"\n')  # which could export more than the text shows
    with pytest.raises(CandidateError, match="'back' is not exported; exported: rms_norm_backward, rms_norm_forward"):
        bound(path, cache)
