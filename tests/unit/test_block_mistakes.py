"""Every mistake in a kernel's block that source, op and block show is told before anything runs, with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.errors import UsageError
from e2e.reading import read_kernel
from e2e.schema.kernel import Kernel

CPP = """\
#include <tvm/ffi/function.h>
using tvm::ffi::TensorView;
void norm(TensorView x, TensorView weight, double eps, TensorView out) {}
void saving(TensorView x, TensorView weight, double eps, TensorView out, TensorView rstd) {}
void back(TensorView g, TensorView x, TensorView weight, TensorView rstd, TensorView gx, TensorView gw) {}
void mixed(TensorView x, double eps, TensorView weight, TensorView out) {}
void packed(TensorView x, TensorView turned, double eps, TensorView out) {}
void turn(TensorView weight, TensorView turned) {}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(norm, norm);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(saving, ::saving);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(back, back);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(mixed, mixed);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(packed, packed);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(turn, turn);
"""
RAW = """\
extern "C" __global__ void norm(const float* x, const float* weight, float eps, float* out, long long hidden) {}
extern "C" __global__ void wide(const float* x, const float* weight, double eps, float* out) {}
extern "C" __global__ void small(const float* x, const float* weight, float eps, float* out) {}
"""
PY = """\
import torch
import triton
from torch import nn

EPS = 1e-5


def norm(x, weight, eps):
    return x


def saving(x, weight, eps):
    return x, eps


def back(grad, x, weight, rstd):
    return x, weight


def short(x, weight):
    return x


def silent(x, weight, eps):
    x.add_(1)


def keyword(x, weight, *, eps):
    return x


def turn(weight):
    return weight


async def later(x, weight, eps):
    return x


@triton.jit
def device(x, weight, eps):
    pass


class Norm(nn.Module):
    def forward(self, x):
        return x


def patch(model):
    pass


def two(model_, option):
    pass
"""
ARGS = "args: [x, weight, eps, out, hidden]"
LAUNCH = "launch: {grid: [rows], block: [256]}"

OF_CPP = [
    (("entry: nrom",), 3, "entry: no function 'nrom' in this file; did you mean 'norm'?"),
    (("entry: {float32: norm, float16: go}",), 3, "entry: no function 'go' in this file"),
    (("entry: saving",), 3, "entry: saving takes 5 arguments (x, weight, eps, out, rstd), and is called with 4"),
    (("entry: mixed",), 3, "entry: parameter 2 of mixed, eps, is a double, and gets weight (Tensor); state `args:`"),
    (
        ("entry: norm", "args: [x, weigth, eps, out]"),
        4,
        "args: rms_norm has no 'weigth' for it; did you mean 'weight'?",
    ),
    (("entry: norm", "args: [x, weight, eps]"), 4, "args: must name `out` once"),
    (("entry: norm", "args: [out, x, weight, out]"), 4, "args: must name `out` once"),
    (("entry: norm", "ranks: {x: 99}"), 4, "ranks.x: must be from 1 to 8, not 99"),
    (("entry: norm", "ranks: {x: 0}"), 4, "ranks.x: must be from 1 to 8, not 0"),
    (("entry: norm", "ranks: {y: 2}"), 4, "ranks: rms_norm has no tensor 'y'; it has: x, weight"),
    (("entry: norm", "ranks: {weight: 2}"), 4, "ranks.weight: weight has 1 dimensions (hidden), not 2"),
    (("entry: norm", "mutates: [y]"), 4, "mutates: rms_norm has no tensor 'y'; it has: x, weight"),
    (("entry: norm", "backward: bakc"), 4, "backward: no function 'bakc' in this file; did you mean 'back'?"),
    (("entry: norm", "backward: back"), 4, "backward: back takes 6 arguments (g, x, weight, rstd, gx, gw), and is"),
    (("entry: norm", "backward: 'a b'"), 4, "backward: 'a b' is not a function's name"),
    (("entry: saving", 'saves: [{rstd: "rows, float32"}]'), 4, "saves: only beside a `backward` of the kernel's own"),
    (
        ("entry: saving", 'saves: [{rstd: "rows, float32"}]', "backward: reference"),
        4,
        "saves: only beside a `backward` of the kernel's own, and the op's own takes nothing of it",
    ),
    (
        ("entry: norm", 'saves: [{rstd: "rows, float32"}]', "backward: back"),
        3,
        "entry: norm takes 4 arguments (x, weight, eps, out), and is called with 5 (x, weight, eps, out, rstd)",
    ),
    (
        ("entry: saving", 'saves: [{rstd: "row, float32"}]', "backward: back"),
        4,
        "saves[0]: rms_norm has no dimension 'row'; did you mean 'rows'?",
    ),
    (
        ("entry: saving", 'saves: [{rows: "rows, float32"}]', "backward: back"),
        4,
        "saves[0]: 'rows' is rms_norm's own; take another name",
    ),
    (("entry: saving", 'workspace: [{x: "rows, float32"}]'), 4, "workspace[0]: 'x' is rms_norm's own"),
    (("entry: saving", 'workspace: [{"a b": "rows, float32"}]'), 4, "workspace[0]: 'a b' is not a name"),
    (("entry: saving", 'workspace: [{s: "rows"}]'), 4, "workspace: 'rows' must be sizes, then a dtype"),
    (
        ("entry: saving", 'workspace: [{s: "rows, float32"}, {s: "rows, float32"}]'),
        4,
        "workspace: 's' twice; every tensor has a name of its own",
    ),
    (("entry: norm", "outputs: return", 'workspace: [{s: "rows, int8"}]'), 4, "outputs: not together with `workspace`"),
    (("entry: norm", "ranks: {x: 2}", "backward: back"), 4, "ranks: not together with `backward` in a tvm-ffi kernel"),
    (("entry: packed", "prepare: turn"), 2, "prepared: missing: what `prepare` fills"),
    (("entry: packed", 'prepared: [{turned: "hidden, float32"}]'), 4, "prepared: only beside `prepare`"),
    (
        ("entry: packed", "prepare: trun", 'prepared: [{turned: "hidden, float32"}]'),
        4,
        "prepare: no function 'trun' in this file; did you mean 'turn'?",
    ),
    (
        ("entry: packed", "prepare: norm", 'prepared: [{turned: "hidden, float32"}]'),
        4,
        "prepare: norm takes 4 arguments (x, weight, eps, out), and is called with 2",
    ),
    (
        ("entry: packed", "prepare: turn", 'prepared: [{turned: "hiden, float32"}]'),
        5,
        "prepared[0]: rms_norm has no dimension 'hiden'; did you mean 'hidden'?",
    ),
    (
        ("entry: norm", 'constraints: ["hidden % 8 == 0", "hiden > 2"]'),
        4,
        "constraints[1]: rms_norm has no dimension 'hiden'; did you mean 'hidden'?",
    ),
    (("entry: norm", "constraints: [\"dtype == 'fp32'\"]"), 4, "constraints[0]: no dtype 'fp32'"),
    (("entry: norm", 'constraints: ["hidden"]'), 4, "constraints: 'hidden' must be a comparison"),
    (("entry: norm", "dtypes: [float32, float32]"), 4, "dtypes: float32 twice; keep one"),
    (("entry: norm", "dtypes: [float8]"), 4, "dtypes[0]: must be 'float32', 'float16' or 'bfloat16', not 'float8'"),
    (("entry: {float32: norm}", "dtypes: [float16]"), 3, "entry: no function for float16, which `dtypes` lists"),
    (("entry: norm", "arch: sm_90"), 4, "arch: only for CUDA sources"),
    (("entry: norm", "arch: 90"), 4, "arch: must be a valid list, not 90"),
    (("entry: norm", "layout: bshd"), 4, "layout: no 'bshd': rms_norm has one only"),
    (("entry: norm", LAUNCH), 4, "launch: only for `binding: raw`; tvm-ffi launches by itself"),
    (("entry: norm", "binding: python"), 4, "binding: a .cpp file is bound by tvm-ffi, raw or torch, not python"),
    (("entry: norm", "binding: raw"), 4, "binding: raw needs a .cu file, not .cpp"),
    (("entry: norm", "outputs: first"), 4, "outputs: must be 'return' or 'last', not 'first'"),
    (("entry: norm", "precision: int3"), 4, "precision: "),
    (("entry: norm", "claim: {speedup: -1}"), 4, "claim.speedup: must be greater than 0, not -1"),
    (("entry: norm", "deterministic: perhaps"), 4, "deterministic: must be a valid boolean, not 'perhaps'"),
    (("entry: norm", "device: gpu"), 4, "device: must be 'cpu' or 'cuda', not 'gpu'"),
    (("entry: norm", "kind: layer"), 4, "kind: must be 'op' or 'patch', not 'layer'"),
    (("entry: norm", "flags: -O2"), 4, "flags: must be a valid list, not '-O2'"),
]
OF_RAW = [
    (("entry: norm", LAUNCH), 3, "entry: norm takes 5 arguments (x, weight, eps, out, hidden), and is called with 4"),
    (("entry: wide", LAUNCH), 3, "entry: parameter 3 of wide, eps, is a double, and gets eps (float); state `args:`"),
    (("entry: small", "launch: {grid: [row], block: [1]}"), 4, "launch[0].grid: rms_norm has no dimension 'row'; did"),
    (("entry: small", "launch: {grid: [dtype], block: [1]}"), 4, "launch[0].grid: rms_norm has no dimension 'dtype'"),
    (("entry: small", "launch: {grid: [0], block: [1]}"), 4, "launch[0]: grid: x must be from 1 to 2147483647, not 0"),
    (("entry: small", "launch: {grid: [1], block: [2048]}"), 4, "launch[0]: block: x must be from 1 to 1024, not 2048"),
    (("entry: small", "launch: {grid: [1], block: [32, 64]}"), 4, "launch[0]: block: 2048 threads, where a block has"),
    (("entry: small", "launch: {grid: [1], block: [1, 1, 65]}"), 4, "launch[0]: block: z must be from 1 to 64, not 65"),
    (
        ("entry: small", "launch: {grid: [1], block: [1], shared_bytes: 300000}"),
        4,
        "launch[0]: shared_bytes: must be from 0 to 232448, not 300000",
    ),
    (
        ("entry: small", 'launch: {grid: [1], block: [1], shared_bytes: "4 * hiden"}'),
        4,
        "launch[0].shared_bytes: rms_norm has no dimension 'hiden'; did you mean 'hidden'?",
    ),
    (("entry: small", "launch: []"), 4, "launch: missing; raw needs one"),
    (("entry: norm", LAUNCH, "args: [x, weight, eps, hidden, rows]"), 4, "launch: no launch is given `out`"),
    (("entry: norm", LAUNCH, "args: [x, weight, eps, out, width]"), 5, "args: rms_norm has no 'width' for it"),
    (
        ("launch: [{entry: norm, grid: [1], block: [1], args: [x, weight, eps, out, size]}]",),
        3,
        "launch[0].args: rms_norm has no 'size' for it",
    ),
    (("launch: [{entry: nor, grid: [1], block: [1]}]",), 3, "launch[0]: no function 'nor' in this file; did you mean"),
    (("entry: small", LAUNCH, "outputs: return"), 5, "outputs: not for `binding: raw`, whose outputs are preallocated"),
    (("entry: small", LAUNCH, "ranks: {x: 2}"), 5, "ranks: not for `binding: raw`"),
    (("entry: small", LAUNCH, "backward: small"), 5, "backward: not for `binding: raw`"),
    (("entry: small", LAUNCH, "prepare: small"), 5, "prepare: not for `binding: raw`; for tvm-ffi, torch, python"),
    (("entry: small", LAUNCH, "device: cpu"), 5, "device: a .cu file runs on cuda"),
]
OF_PYTHON = [
    (("entry: nrom",), 3, "entry: no function 'nrom' in this file; did you mean 'norm'?"),
    (("entry: short",), 3, "entry: short takes 2 arguments (x, weight), and is called with 3 (x, weight, eps)"),
    (
        ("entry: keyword",),
        3,
        "entry: keyword (line 28) is a function with keyword-only parameters",
    ),
    (("entry: silent",), 3, "entry: silent returns nothing; expected are 1"),
    (("entry: saving",), 3, "entry: saving returns 2 values; expected are 1"),
    (("entry: EPS",), 3, "entry: EPS (line 5) is a value; wanted is a function that is called by position"),
    (("entry: later",), 3, "entry: later (line 36) is a coroutine; wanted is a function"),
    (("entry: device",), 3, "entry: device (line 41) is a Triton kernel, which a function has to launch; wanted"),
    (("entry: Norm",), 3, "entry: Norm (line 45) is a class derived from nn.Module; say `kind: module`"),
    (("kind: module", "entry: norm"), 4, "entry: norm (line 8) is no class derived from nn.Module"),
    (("kind: module", "entry: Norm", "args: [x]"), 5, "args: not for `binding: module`, which says by itself what"),
    (("kind: module", "entry: Norm", "outputs: last"), 5, "outputs: not for `binding: module`"),
    (("kind: module", "entry: Norm", "prepare: turn"), 5, "prepare: not for `binding: module`"),
    (("entry: norm", "prepare: nope"), 4, "prepare: no function 'nope' in this file"),
    (("entry: norm", "prepare: norm"), 4, "prepare: norm takes 3 arguments (x, weight, eps), and is called with 1"),
    (("entry: norm", 'workspace: [{s: "rows, int8"}]'), 4, "workspace: not for `binding: python`"),
    (
        ("entry: saving", 'saves: [{a: "rows, int8"}, {b: "rows, int8"}]', "backward: back"),
        3,
        "entry: saving returns 2 values; expected are 3 (2 of them listed in `saves`)",
    ),
    (
        ("entry: saving", 'saves: [{a: "rows, int8"}, {b: "rows, int8"}]', "backward: back"),
        5,
        "backward: back takes 4 arguments (grad, x, weight, rstd), and is called with 5",
    ),
    (("entry: norm", "args: [x, weight, rows]"), 4, "args: rms_norm has no 'rows' for it"),
    (("entry: norm", "args: [x, weight, out]"), 4, "args: rms_norm has no 'out' for it"),
    (("entry: norm", "flags: [-O3]"), 4, "flags: only for C++ and CUDA sources"),
    (("entry: norm", "arch: sm_90"), 4, "arch: only for CUDA sources"),
    (("entry: norm", LAUNCH), 4, "launch: only for `binding: raw`"),
    (("entry: norm", "binding: raw"), 4, "binding: a .py file is bound by python or module, not raw"),
]
OF_OTHER_OPS = [
    ("softmax", ("entry: norm", "prepare: turn"), "prepare: a site of softmax has no parameters to prepare"),
    ("adamw", ("entry: norm", "backward: back"), "backward: adamw works in place: nothing flows back through it"),
    ("adamw", ("entry: norm",), "entry: norm takes 3 arguments (x, weight, eps), and is called with 10 (params"),
    ("attention", ("entry: norm", "ranks: {q: 5}"), "ranks.q: q has 4 dimensions (b, h, s, d), not 5"),
    ("attention", ("entry: norm", "layout: bdhs"), "layout: no 'bdhs': attention has bhsd and bshd"),
    ("module:Thing", ("entry: norm", 'constraints: ["dims1 > 2"]'), "constraints[0]: module:Thing has no dimension"),
    ("aten:silu.default", ("entry: norm", "backward: reference"), "backward: not for an operator of ATen"),
]


def refused(folder: Path, name: str, rows: tuple[str, ...], source: str, op: str = "rms_norm") -> list[str]:
    with pytest.raises(UsageError) as caught:
        read(folder, name, rows, source, op)
    return caught.value.message.splitlines()


def read(folder: Path, name: str, rows: tuple[str, ...], source: str, op: str = "rms_norm") -> Kernel:
    mark = "#" if name.endswith(".py") else "//"
    block = "".join(f"{mark} {row}\n" for row in ("/// e2e", f"op: {op}", *rows, "///"))
    (folder / name).write_text(source + block if name.endswith(".py") else block + source)
    return read_kernel(str(folder / name), op=None)


def test_mistakes_of_all_kinds_are_told_at_once(tmp_path: Path) -> None:
    rows = ("entry: nrom", "ranks: {x: 99}", "dtypes: [float8]", 'constraints: ["hiden > 2"]', "flags: [-O3]")
    messages = refused(tmp_path, "k.py", (*rows, "prepare: nope"), PY)
    assert [
        "58: entry: no function 'nrom' in this file; did you mean 'norm'?",
        "59: ranks.x: must be from 1 to 8, not 99",
        "60: dtypes[0]: must be 'float32', 'float16' or 'bfloat16', not 'float8'; did you mean 'float32'?",
        "61: constraints[0]: rms_norm has no dimension 'hiden'; did you mean 'hidden'?",
        "62: flags: only for C++ and CUDA sources; nothing compiles a .py file",
        "63: prepare: no function 'nope' in this file",
    ] == [message.removeprefix(f"{tmp_path}/k.py:").partition("; known")[0] for message in messages]


@pytest.mark.parametrize(("rows", "line", "said"), OF_CPP)
def test_a_mistake_in_the_block_of_a_cpp_file_is_told(
    tmp_path: Path, rows: tuple[str, ...], line: int, said: str
) -> None:
    assert any(
        message.startswith(f"{tmp_path}/k.cpp:{line if line > 2 else 1}: {said}")
        for message in refused(tmp_path, "k.cpp", rows, CPP)
    ), refused(tmp_path, "k.cpp", rows, CPP)


@pytest.mark.parametrize(("rows", "line", "said"), OF_RAW)
def test_a_mistake_in_the_block_of_a_raw_kernel_is_told(
    tmp_path: Path, rows: tuple[str, ...], line: int, said: str
) -> None:
    messages = refused(tmp_path, "k.cu", rows, RAW)
    assert any(message.startswith(f"{tmp_path}/k.cu:{line}: {said}") for message in messages), messages


@pytest.mark.parametrize(("rows", "line", "said"), OF_PYTHON)
def test_a_mistake_in_the_block_of_a_python_file_is_told(
    tmp_path: Path, rows: tuple[str, ...], line: int, said: str
) -> None:
    messages = refused(tmp_path, "k.py", rows, PY)
    shown = line + PY.count("\n")
    assert any(message.startswith(f"{tmp_path}/k.py:{shown}: {said}") for message in messages), messages


@pytest.mark.parametrize(("op", "rows", "said"), OF_OTHER_OPS)
def test_a_mistake_about_another_op_is_told(tmp_path: Path, op: str, rows: tuple[str, ...], said: str) -> None:
    messages = refused(tmp_path, "k.py", rows, PY, op)
    assert any(said in message for message in messages), messages
