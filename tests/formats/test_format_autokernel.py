"""AutoKernel: the type says the op, the parameters' names its arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.reading import read_kernel
from tests.formats.bound import HERE, bound, check_norm, refusal

NORM = HERE / "autokernel" / "kernel.py"


def written(folder: Path, kind: str, function: str = "def kernel_fn(x): ...\n") -> Path:
    path = folder / "kernel.py"
    path.write_text(f"KERNEL_TYPE = {kind!r}\n\n{function}")
    return path


def test_the_type_says_the_op_and_the_parameters_its_arguments(tmp_path: Path) -> None:
    kernel = read_kernel(str(NORM), op=None)
    assert (kernel.format, kernel.manifest.op, kernel.manifest.entry) == ("autokernel", "rms_norm", "kernel_fn")
    assert kernel.manifest.args == ["x", "weight", "eps"]
    check_norm(bound(kernel, tmp_path))


def test_an_epsilon_that_the_kernel_fixes_is_not_passed(tmp_path: Path) -> None:
    function = "def kernel_fn(hidden_states, gamma): return hidden_states, gamma\n"
    kernel = read_kernel(str(written(tmp_path, "rmsnorm", function)), op=None)
    assert kernel.manifest.args == ["x", "weight"]
    assert bound(kernel, tmp_path)("x", "weight", 1e-5) == ("x", "weight")


def test_triton_in_it_asks_for_a_device(tmp_path: Path) -> None:
    path = written(tmp_path, "rmsnorm", "import triton\ndef kernel_fn(x, weight): ...\n")
    assert read_kernel(str(path), op=None).manifest.device == "cuda"


@pytest.mark.parametrize(
    ("kind", "function", "said"),
    [
        ("matmul", "", "kernel.py:1: KERNEL_TYPE: 'matmul' is no op of e2e: its second matrix is not transposed"),
        ("fft", "", "kernel.py:1: KERNEL_TYPE: 'fft' is no op of e2e; known: rmsnorm"),
        ("rmsnorm", "", "kernel.py:1: kernel_fn: no such function"),
        (
            "rmsnorm",
            "def kernel_fn(x, weight, stride): ...\n",
            "kernel.py:3: kernel_fn: parameter 'stride' is none of rms_norm's: x, weight, eps",
        ),
    ],
)
def test_what_is_not_read_is_told_with_its_line(tmp_path: Path, kind: str, function: str, said: str) -> None:
    assert said in refusal(written(tmp_path, kind, function))


def test_the_option_and_the_file_may_not_disagree(tmp_path: Path) -> None:
    path = written(tmp_path, "rmsnorm", "def kernel_fn(x, weight): ...\n")
    assert "kernel.py:1: KERNEL_TYPE: it is for rms_norm, where 'rope' is wanted" in refusal(path, op="rope")
