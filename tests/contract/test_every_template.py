"""Every template is a kernel of a registered op that builds and passes as it is."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

from e2e import registry
from e2e.errors import EnvironmentFault, UsageError
from e2e.kernel_template import TEMPLATES, Language, kernel_text, templates, write_kernel
from e2e.numerics.exercise import run_calls
from e2e.numerics.op_level import OpExaminer
from e2e.protocols import BuildTarget
from e2e.reading import read_kernel

torch.set_num_threads(1)

EVERY = [(op, language) for language in Language for op in templates(language)]
DTYPES = ["float32", "float16", "bfloat16"]


def test_there_are_templates_and_each_op_has_one_in_every_language() -> None:
    assert templates(Language.CPP)
    assert templates(Language.CPP) == templates(Language.CU) == templates(Language.TRITON)
    assert {*templates(Language.CPP)} <= {*registry.names("ops")}
    assert {path.suffix for path in TEMPLATES.iterdir()} == {".cpp", ".cu", ".h", ".triton"}


@pytest.mark.parametrize(("op", "language"), EVERY)
def test_it_describes_itself(op: str, language: Language, tmp_path: Path) -> None:
    file = write_kernel(op, language, tmp_path / f"own{'.py' if language is Language.TRITON else f'.{language}'}")
    kernel = read_kernel(str(file), op=None)
    assert (kernel.manifest.op, kernel.manifest.entry, kernel.block_line) == (op, op, 1)
    assert kernel.manifest.device == ("cpu" if language is Language.CPP else "cuda")
    assert kernel.manifest.dtypes == DTYPES
    text = file.read_text()
    assert "$" not in text
    assert f"e2e check {file}" in text
    if language is Language.TRITON:
        ast.parse(text)


@pytest.mark.parametrize("op", templates(Language.CPP))
def test_it_builds_and_is_right_on_every_input_in_every_dtype(op: str, tmp_path: Path) -> None:
    kernel = read_kernel(str(write_kernel(op, Language.CPP, tmp_path / "own.cpp")), op=None)
    builder, plugin = registry.load("builders", "tvm-ffi"), registry.load_op(op)
    built = builder.build(kernel, BuildTarget(device="cpu", arch=None, cache=tmp_path / "cache", timeout_s=120))
    calls, outputs = tmp_path / "calls", tmp_path / "outputs.st"
    for dtype in DTYPES:
        examiner = OpExaminer(plugin, "cpu")
        examiner.draw(dtype=dtype, seed=3, path=calls)
        function = builder.bind(built, plugin, dtype)
        remarks = run_calls(plugin, function, inputs=calls, outputs=outputs, constraints=[], device="cpu")
        rows = examiner.compare_ops(outputs=outputs, ratio=2.0)
        assert [row["label"] for row in rows if row["status"] != "passed"] == []
        assert not any(remark["layout"] or remark["inputs_changed"] or remark["aliased"] for remark in remarks)


@pytest.mark.nvcc
@pytest.mark.parametrize("op", templates(Language.CU))
def test_it_builds_for_a_gpu(op: str, tmp_path: Path) -> None:
    file = tmp_path / "own.cu"
    text = kernel_text(op, Language.CU, name="own.cu").replace("// dtypes:", "// flags: [-arch=sm_90]\n// dtypes:")
    file.write_text(text)
    kernel = read_kernel(str(file), op=None)
    target = BuildTarget(device="cuda", arch=None, cache=tmp_path / "cache", timeout_s=240)
    assert Path(registry.load("builders", "tvm-ffi").build(kernel, target).artifact).is_file()


# ---- What cannot be written


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "own.cpp").write_text("mine")
    with pytest.raises(UsageError, match="nothing is overwritten"):
        write_kernel("rms_norm", Language.CPP, tmp_path / "own.cpp")
    assert (tmp_path / "own.cpp").read_text() == "mine"


@pytest.mark.parametrize(
    ("op", "file", "words"),
    [
        ("rms_nrom", None, "did you mean 'rms_norm'"),
        ("module:LlamaMLP", None, "no cpp template for module:LlamaMLP; there are some for: .*rms_norm"),
        ("rms_norm", "own.cu", "ends with .cpp"),
    ],
)
def test_what_cannot_be_written_says_what_can(op: str, file: str | None, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        write_kernel(op, Language.CPP, tmp_path / file if file else None)


def test_a_folder_that_does_not_exist_is_told(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="cannot write"):
        write_kernel("rms_norm", Language.CPP, tmp_path / "none" / "own.cpp")
