"""Every file in `kernels/` describes itself, and every name in its description exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from e2e import registry
from e2e.listing import rows
from e2e.numerics.compare import exactly, judge_outputs
from e2e.protocols import BuildTarget
from e2e.reading import read_kernel
from e2e.schema.kernel import Kernel

REPOSITORY = Path(__file__).parents[2]
FILES = sorted(path for path in (REPOSITORY / "kernels").iterdir() if path.suffix in (".cu", ".cpp", ".py"))
PLANTED = sorted(
    path for path in (REPOSITORY / "tests" / "kernels" / "bad").iterdir() if path.suffix in (".cpp", ".py")
)
RUN_HERE = [file for file in FILES if file.suffix == ".cpp" and "op: module:" not in file.read_text()]
"""Kernels for the CPU whose op has calls apart from a model's."""
BINDINGS = {"tvm-ffi": "TVM_FFI_DLL_EXPORT_TYPED_FUNC({}", "raw": "__global__ void {}(", "python": "def {}("}

every_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)


def read(file: Path) -> Kernel:
    return read_kernel(str(file), op=None)


def entries(kernel: Kernel) -> list[str]:
    entry = kernel.manifest.entry
    return [entry] if isinstance(entry, str) else list(entry.values())


def test_there_is_a_kernel_of_every_kind() -> None:
    kinds = {(read(file).manifest.binding, read(file).manifest.device) for file in FILES}
    assert {("tvm-ffi", "cuda"), ("tvm-ffi", "cpu"), ("raw", "cuda"), ("python", "cuda")} <= kinds


@every_file
def test_it_reads_to_a_kernel_with_a_block_of_its_own(file: Path) -> None:
    kernel = read(file)
    assert kernel.block_line == 1
    assert kernel.manifest.dtypes
    assert kernel.manifest.device in ("cpu", "cuda")


@every_file
def test_its_op_and_its_builder_exist(file: Path) -> None:
    manifest = read(file).manifest
    assert manifest.op.partition(":")[0] in registry.names("ops")
    assert manifest.binding in registry.names("builders")


@every_file
def test_its_entries_are_in_its_source(file: Path) -> None:
    kernel = read(file)
    for entry in entries(kernel):
        assert BINDINGS[kernel.manifest.binding].format(entry) in file.read_text()


@every_file
def test_it_has_one_entry_for_every_dtype_it_declares(file: Path) -> None:
    manifest = read(file).manifest
    if not isinstance(manifest.entry, str):
        assert list(manifest.entry) == list(manifest.dtypes)


@every_file
def test_its_arguments_are_the_ops_its_dimensions_or_the_output(file: Path) -> None:
    manifest = read(file).manifest
    if manifest.args is not None:
        assert manifest.args.count("out") == 1
        assert len(set(manifest.args)) == len(manifest.args)


@every_file
def test_it_teaches(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More prose than its block, and first words that the list can show."""
    prose = r"^\s*//" if file.suffix in (".cu", ".cpp") else r"^\s*(#|\w)"
    assert len(re.findall(prose, file.read_text(), re.MULTILINE)) > 10
    monkeypatch.chdir(REPOSITORY)
    op, _, words = {row.name: row.detail for row in rows("kernels")}[f"kernels/{file.name}"].rpartition(": ")
    assert op.startswith(read(file).manifest.op.partition(":")[0])
    assert len(words) > 10


@pytest.mark.parametrize("file", [file for file in FILES if file.suffix == ".py"], ids=lambda file: file.name)
def test_a_python_kernel_parses_without_being_run(file: Path) -> None:
    assert ast.get_docstring(ast.parse(file.read_text()))


@pytest.mark.parametrize("file", RUN_HERE, ids=lambda file: file.name)
def test_a_cpu_kernel_is_as_right_as_plain_torch_on_its_ops_hard_inputs(file: Path, e2e_cache: Path) -> None:
    """Twice as lenient as a run: which of two sound kernels rounds the luckier way depends on the machine."""
    kernel = read(file)
    op, builder = registry.load_op(kernel.manifest.op), registry.load("builders", kernel.manifest.binding)
    built = builder.build(kernel, BuildTarget("cpu", None, e2e_cache, 300))
    for dtype in kernel.manifest.dtypes:
        function, example = builder.bind(built, op, dtype), op.example(dtype, "cpu", 1)
        for label, call in [("example", example), *op.edge_calls(example, 1)]:
            value, plain = (f(*call.tensors, *call.scalars) for f in (function, op.reference))
            assert judge_outputs(value, plain, exactly(op, call), ratio=4)[0] is None, (dtype, label)


@pytest.mark.parametrize("file", PLANTED, ids=lambda file: file.name)
def test_a_planted_kernel_is_faulty_for_one_reason_only(file: Path) -> None:
    """Its description is sound: what a test sees is the fault that the file is named for."""
    kernel = read(file)
    assert kernel.block_line == 1
    assert kernel.manifest.op.partition(":")[0] in registry.names("ops")
