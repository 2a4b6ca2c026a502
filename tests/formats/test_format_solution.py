"""FlashInfer-Bench and SOL-ExecBench: solutions of both dialects, their definitions, and what is wrong with them."""

from __future__ import annotations

import contextlib
import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from e2e import registry
from e2e.errors import CandidateError, UsageError
from e2e.reading import read_kernel
from e2e.schema.kernel import Kernel
from tests.formats.bound import HERE, bound, check_norm, refusal

DATA = HERE / "flashinfer_bench"
PLACE = DATA / "solutions" / "somebody" / "rmsnorm" / "rmsnorm_h384" / "somebodys_rmsnorm.json"
DEFINITION = json.loads((DATA / "definitions" / "rmsnorm" / "rmsnorm_h384.json").read_text())
SOLUTION = json.loads(PLACE.read_text())
EXPORT = "TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run_impl);\n"
CPU_NORM = """\
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include "rows.h"

void run_impl(tvm::ffi::TensorView x, tvm::ffi::TensorView weight, tvm::ffi::TensorView out) {
  for (int64_t row = 0; row < x.size(0); ++row) {
    norm_row(static_cast<const float*>(x.data_ptr()) + row * x.size(1), static_cast<const float*>(weight.data_ptr()),
             static_cast<float*>(out.data_ptr()) + row * x.size(1), x.size(1));
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run_impl);
"""
CPU_ROWS = """\
#include "rows.h"

#include <cmath>

void norm_row(const float* x, const float* weight, float* out, int64_t hidden) {
  double sum = 0;
  for (int64_t i = 0; i < hidden; ++i) sum += static_cast<double>(x[i]) * x[i];
  const double scale = 1 / std::sqrt(sum / hidden + 1e-5);
  for (int64_t i = 0; i < hidden; ++i) out[i] = static_cast<float>(x[i] * scale * weight[i]);
}
"""
HEADER = "#pragma once\n#include <cstdint>\nvoid norm_row(const float*, const float*, float*, int64_t);\n"


@pytest.fixture(autouse=True)
def _own_cache(e2e_cache: Path) -> None:
    """Sources are unpacked into the cache."""


def written(folder: Path, *, beside: dict[str, Any] | None = None, spec: Any = (), **fields: Any) -> Path:
    """A solution with its definition beside it; `spec` and `fields` replace what they name."""
    solution = {**copy.deepcopy(SOLUTION), **fields}
    solution["spec"] |= dict(spec)
    (folder / "definition.json").write_text(json.dumps({**DEFINITION, **(beside or {})}))
    (folder / "solution.json").write_text(json.dumps(solution))
    return folder / "solution.json"


def sources(**contents: str) -> list[dict[str, str]]:
    return [{"path": name.replace("_dot_", "."), "content": content} for name, content in contents.items()]


def read(path: Path, *, op: str | None = None) -> Kernel:
    return read_kernel(str(path), op=op)


# ---- Solutions that are read


def test_a_solution_in_a_data_set_finds_its_definition_and_its_traces() -> None:
    kernel = read(PLACE)
    manifest = kernel.manifest
    assert (kernel.format, manifest.op, manifest.entry, manifest.binding) == ("solution", "rms_norm", "run", "python")
    assert (manifest.args, manifest.ranks, manifest.outputs) == (["x", "weight"], {"x": 2}, "last")
    assert (manifest.dtypes, manifest.constraints, manifest.device) == (["float32"], ["hidden == 384"], None)
    assert manifest.claim is not None
    assert manifest.claim.speedup == pytest.approx(4.0)
    assert manifest.claim.shapes == "2 traced workloads"


def test_a_solution_computes_on_rows_into_an_output_that_is_handed_over(tmp_path: Path) -> None:
    check_norm(bound(read(PLACE), tmp_path))


def test_its_sources_lie_in_the_cache_under_their_own_hash(e2e_cache: Path, tmp_path: Path) -> None:
    first, again = read(PLACE), read(written(tmp_path))
    assert first.path == again.path
    assert Path(str(first.path)).is_relative_to(e2e_cache / "sources")
    assert Path(str(first.path)).read_text() == SOLUTION["sources"][0]["content"]


def test_sources_that_were_edited_in_the_cache_are_written_again() -> None:
    path = Path(str(read(PLACE).path))
    path.write_text("raise SystemExit\n")
    assert read(PLACE).path == str(path)
    assert path.read_text() == SOLUTION["sources"][0]["content"]


def test_an_epsilon_that_the_definition_fixes_is_said() -> None:
    assert read(PLACE).notes == [
        "definition rmsnorm_h384 fixes epsilon at 1e-5: at a site with another one it is wrong"
    ]


def test_an_epsilon_among_the_inputs_is_passed_in_its_place(tmp_path: Path) -> None:
    inputs = {"eps": {"shape": None, "dtype": "float32"}, **DEFINITION["inputs"]}
    text = "def run(eps, x, weight, out):\n    assert (eps, x.shape) == (0.5, (6, 384))\n    out.copy_(x * weight)\n"
    kernel = read(written(tmp_path, beside={"inputs": inputs}, sources=sources(main_dot_py=text)))
    assert kernel.manifest.args == ["eps", "x", "weight"]
    assert kernel.notes == []
    import torch

    x, weight = torch.randn(2, 3, 384), torch.randn(384)
    assert torch.equal(bound(kernel, tmp_path)(x, weight, 0.5), x * weight)


def test_a_solution_of_the_other_dialect_is_read_alike(tmp_path: Path) -> None:
    path = written(tmp_path, spec={"languages": ["pytorch"], "binding": None, "compile_options": None})
    data = json.loads(path.read_text())
    del data["spec"]["language"]
    path.write_text(json.dumps(data))
    check_norm(bound(read(path), tmp_path))


@pytest.mark.parametrize("stated", [False, None])
def test_a_solution_may_return_its_output(tmp_path: Path, stated: bool | None) -> None:
    """Stated, or seen from its parameters where nothing is stated."""
    text = "def run(x, w):\n    return x * (x.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * w\n"
    path = written(tmp_path, sources=sources(main_dot_py=text), spec={"destination_passing_style": stated})
    assert read(path).manifest.outputs == "return"
    check_norm(bound(read(path), tmp_path))


def test_sources_may_import_each_other(tmp_path: Path) -> None:
    texts = sources(
        main_dot_py="from rows_of_solution import scale\ndef run(x, w, out):\n    out.copy_(x * scale(x) * w)\n",
        rows_of_solution_dot_py="def scale(x):\n    return (x.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt()\n",
    )
    kernel = read(written(tmp_path, sources=texts))
    assert [Path(other).name for other in kernel.others] == ["rows_of_solution.py"]
    check_norm(bound(kernel, tmp_path))


def test_a_source_that_changes_before_it_is_bound_is_noticed(tmp_path: Path) -> None:
    texts = sources(main_dot_py="def run(x, w, out): ...\n", other_dot_py="A = 1\n")
    kernel = read(written(tmp_path, sources=texts))
    Path(kernel.others[0]).write_text("A = 2\n")
    with pytest.raises(CandidateError, match="changed during the run"):
        bound(kernel, tmp_path)


def test_triton_needs_a_device(tmp_path: Path) -> None:
    assert read(written(tmp_path, spec={"language": "triton"})).manifest.device == "cuda"


def test_a_line_in_an_unpacked_source_is_told_with_its_name(tmp_path: Path) -> None:
    kernel = read(written(tmp_path, sources=sources(main_dot_py="def run(x, w, out):\n    oops(\n")))
    with pytest.raises(CandidateError) as caught:
        bound(kernel, tmp_path)
    assert "solution.json (main.py):2: " in caught.value.message


@pytest.mark.parametrize(
    ("name", "kind", "inputs", "op"),
    [
        ("layernorm_h384", "layernorm", ("hidden_states", "weight", "bias"), "layer_norm"),
        ("fused_add_rmsnorm_h384", "rmsnorm", ("hidden_states", "residual", "weight"), "add_rms_norm"),
        ("somebodys_own_name", "rmsnorm", ("input", "w"), "rms_norm"),
        ("silu_and_mul", "activation", ("gate", "up"), "silu_mul"),
        ("gemm_n128_k384", "gemm", ("A", "B"), "linear"),
    ],
)
def test_definitions_that_mean_an_op_of_ours_are_known(
    tmp_path: Path, name: str, kind: str, inputs: tuple[str, ...], op: str
) -> None:
    shapes = {item: {"shape": ["batch_size", "hidden_size"], "dtype": "float32"} for item in inputs}
    path = written(tmp_path, beside={"name": name, "op_type": kind, "inputs": shapes}, definition=name)
    if op in registry.names("ops"):
        assert read(path).manifest.op == op
    else:
        assert f"no op called {op!r}" in refusal(path)


def test_the_option_says_the_op_where_the_definition_does_not(tmp_path: Path) -> None:
    path = written(tmp_path, beside={"name": "norm_of_ours", "op_type": "x"}, definition="norm_of_ours")
    assert "solution.json: definition: 'norm_of_ours' (op_type 'x') is no op of e2e; pass --op NAME" in refusal(path)
    assert read(path, op="rms_norm").manifest.args == ["x", "weight"]


# ---- Compiled solutions


def compiled(folder: Path, *, spec: Any = (), **contents: str) -> Path:
    entry = {"language": "cpp", "entry_point": "main.cpp::run", "binding": "tvm-ffi", **dict(spec)}
    return written(folder, spec=entry, sources=sources(**contents))


def test_a_compiled_solution_of_several_sources_is_built_by_one_call(tmp_path: Path) -> None:
    kernel = read(compiled(tmp_path, main_dot_cpp=CPU_NORM, rows_dot_cpp=CPU_ROWS, rows_dot_h=HEADER))
    assert (kernel.manifest.binding, kernel.manifest.device) == ("tvm-ffi", "cpu")
    assert Path(str(kernel.path)).read_text() == '#include "rows.cpp"\n#include "main.cpp"\n'
    check_norm(bound(kernel, tmp_path / "cache"))


def test_sources_bound_through_torch_are_built_as_such(tmp_path: Path) -> None:
    text = 'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }\n'
    spec = {"binding": "torch", "destination_passing_style": False}
    manifest = read(compiled(tmp_path, spec=spec, main_dot_cpp=text)).manifest
    assert (manifest.binding, manifest.outputs, manifest.entry) == ("torch", "return", "run")


def test_cuda_sources_need_a_device_and_keep_their_flags(tmp_path: Path) -> None:
    options = {"cuda_cflags": ["-O3", "--use_fast_math"], "ld_flags": ["-lcuda"]}
    spec = {"languages": ["cuda_cpp"], "entry_point": "main.cu::run", "compile_options": options}
    kernel = read(compiled(tmp_path, spec=spec, main_dot_cu=EXPORT))
    assert (kernel.manifest.device, kernel.manifest.outputs) == ("cuda", "last")
    assert kernel.manifest.flags == ["-O3", "--use_fast_math", "-lcuda"]
    assert kernel.notes[0] == "compiled with fast maths, as the solution asks: --use_fast_math"


@pytest.mark.parametrize(
    ("spec", "text", "said"),
    [
        ({"binding": "torch"}, EXPORT, "spec.binding: torch, but the sources are bound by tvm-ffi"),
        (
            {"binding": "odd"},
            EXPORT,
            "spec.binding: odd, but the sources are bound by tvm-ffi; tvm-ffi and",
        ),
        (
            {"binding": None},
            'extern "C" __global__ void run() {}',
            "binding: none, but the sources are bound by raw",
        ),
        ({}, "int x;", "solution.json: spec.entry_point: 'run' is not exported; exported: nothing"),
        ({}, EXPORT.replace("(run,", "(go,"), "spec.entry_point: 'run' is not exported; exported: go"),
        ({"language": "hip"}, EXPORT, "solution.json: spec.language: hip is not read; known: python, pytorch"),
        ({"language": "", "languages": ["cuda", "triton"]}, EXPORT, "spec.language: cuda, triton is not read"),
    ],
)
def test_what_cannot_be_built_is_refused_by_its_field(tmp_path: Path, spec: Any, text: str, said: str) -> None:
    assert said in refusal(compiled(tmp_path, spec=spec, main_dot_cpp=text))


# ---- Damaged ones


@pytest.mark.parametrize(
    ("spec", "fields", "said"),
    [
        ({"entry_point": "main.py"}, {}, "solution.json: spec.entry_point: must be 'file.py::function'"),
        ({"entry_point": "a.py::run"}, {}, "solution.json: spec.entry_point: 'a.py' is not among the sources: main.py"),
        (
            {"entry_point": "main.py::go"},
            {},
            "spec.entry_point: no function 'go' in main.py; it has: run",
        ),
        ({}, {"sources": []}, "solution.json: sources: "),
        ({}, {"sources": [{"path": "../x.py", "content": ""}]}, "sources[0].path: must be a relative path within"),
        ({}, {"sources": [{"path": "/x.py", "content": ""}]}, "sources[0].path: must be a relative path within"),
        ({}, {"sources": [{"path": "x.py"}]}, "solution.json: sources[0].content: missing; it is required"),
        ({}, {"sources": SOLUTION["sources"] * 2}, "solution.json: sources: 'main.py' is there twice"),
        ({}, {"spec": None}, "solution.json: spec: "),
        ({}, {"definition": "../x"}, "solution.json: definition: "),
        ({}, {"definition": "another"}, "solution.json: definition: 'another' is not beside it; put it there as"),
    ],
)
def test_a_damaged_solution_is_told_with_its_field(tmp_path: Path, spec: Any, fields: Any, said: str) -> None:
    if "spec" in fields:
        path = written(tmp_path)
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    else:
        path = written(tmp_path, spec=spec, **fields)
    assert said in refusal(path)


def test_every_mistake_comes_at_once(tmp_path: Path) -> None:
    path = tmp_path / "solution.json"
    path.write_text(json.dumps({"spec": {}, "sources": []}))
    said = refusal(path)
    for field in ("name: missing", "definition: missing", "spec.languages: missing", "spec.entry_point: missing"):
        assert f"solution.json: {field}" in said


@pytest.mark.parametrize(
    ("definition", "said"),
    [
        ({"inputs": {}}, "definition.json: inputs: "),
        ({"axes": {"a": {"type": "odd"}}}, "definition.json: axes.a.type: must be 'const', 'var' or 'expr'"),
        (
            {"inputs": {**DEFINITION["inputs"], "page_table": {"shape": ["batch_size"], "dtype": "int32"}}},
            "inputs.page_table: definition 'rmsnorm_h384' has an argument that rms_norm (x, weight, eps)",
        ),
        (
            {"inputs": {"hidden_states": {"shape": ["batch_size", "hidden_size"], "dtype": "float8_e4m3"}}},
            "solution.json: inputs.hidden_states.dtype: float8_e4m3 is none of",
        ),
    ],
)
def test_a_definition_that_does_not_fit_is_told_with_its_field(tmp_path: Path, definition: Any, said: str) -> None:
    assert said in refusal(written(tmp_path, beside=definition))


def test_a_file_that_is_no_json_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "solution.json"
    path.write_text('{"name": 1,\n "spec": }')
    assert "solution.json:2: not JSON: expecting value" in refusal(path)
    path.write_text("[" * 100_000)
    assert "solution.json:1: not JSON" in refusal(path)


def test_a_definition_in_a_solutions_place_is_told_as_one(tmp_path: Path) -> None:
    written(tmp_path)
    assert "this is a definition; name a solution of it" in refusal(tmp_path / "definition.json")


@pytest.mark.parametrize("text", ["[]", "3", "{}", '{"a": 1}'])
def test_json_of_other_kinds_is_no_kernel(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    assert "is not a kernel that e2e reads" in refusal(path)


def test_a_damaged_trace_claims_nothing(tmp_path: Path) -> None:
    root = shutil.copytree(DATA, tmp_path / "data")
    traces = next(root.glob("traces/**/*.jsonl"))
    traces.write_text('not JSON\n{"evaluation": null}\n{"solution": "somebodys_rmsnorm", "evaluation": {}}\n[]\n')
    assert read(next(root.glob("solutions/**/*.json"))).manifest.claim is None


def _paths(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path, *(found for key, value in items for found in _paths(value, (*path, key)))]


def _with(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    changed = copy.copy(data)
    changed[path[0]] = _with(data[path[0]], path[1:], value)
    return changed


ODD = [None, True, -1, 3, 1e400, "", "run", "\0", "../x", "main.py::run", [], {}, [None], [[1]], {"a": 1}, ["python"]]


@pytest.mark.parametrize("which", ["solution", "definition"])
def test_no_value_anywhere_raises_anything_but_a_usage_error(tmp_path: Path, which: str) -> None:
    written(tmp_path)
    file = tmp_path / f"{which}.json"
    data = json.loads(file.read_text())
    for path in _paths(data)[1:]:
        for value in ODD:
            file.write_text(json.dumps(_with(data, path, value)))
            with contextlib.suppress(UsageError):
                read(tmp_path / "solution.json")
