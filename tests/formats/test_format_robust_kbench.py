"""robust-kbench: functions bound through torch, their parameters, a backward of the kernel's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e import registry
from e2e.errors import CandidateError
from e2e.reading import read_kernel
from tests.formats.bound import HERE, bound, check_norm, refusal

NORM = HERE / "robust_kbench" / "rmsnorm" / "kernel.cpp"
MODULE = "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{ {} }}\n"
FORWARD = 'm.def("forward", &forward);'


def written(folder: Path, text: str, *, name: str = "rmsnorm.cu", bindings: str = FORWARD) -> Path:
    path = folder / name
    path.write_text(text + MODULE.format(bindings))
    return path


def test_the_tasks_folder_says_the_op_and_the_parameters_its_arguments() -> None:
    kernel = read_kernel(str(NORM), op=None)
    manifest = kernel.manifest
    assert (kernel.format, manifest.op, manifest.binding, manifest.device) == (
        "robust_kbench",
        "rms_norm",
        "torch",
        "cpu",
    )
    assert (manifest.entry, manifest.backward, manifest.args) == ("forward", "backward", ["x", "weight", "eps"])


def test_cuda_is_compiled_as_the_harness_does_and_that_is_said(tmp_path: Path) -> None:
    kernel = read_kernel(
        str(written(tmp_path, "torch::Tensor forward(torch::Tensor x, torch::Tensor w) {}\n")), op=None
    )
    assert (kernel.manifest.device, kernel.manifest.flags) == ("cuda", ["--use_fast_math"])
    assert kernel.notes == ["compiled with fast maths, as robust-kbench does: --use_fast_math"]
    assert kernel.manifest.backward is None


def test_a_block_of_ours_comes_first(tmp_path: Path) -> None:
    block = "// /// e2e\n// op: rms_norm\n// entry: go\n// backward: back\n// ///\n"
    kernel = read_kernel(str(written(tmp_path, block, bindings='m.def("go", &go); m.def("back", &back);')), op=None)
    assert (kernel.format, kernel.manifest.binding, kernel.manifest.backward) == ("block", "torch", "back")


@pytest.mark.parametrize(
    ("text", "bindings", "said"),
    [
        ("int x;\n", FORWARD, "rmsnorm.cu:1: forward: bound, but not defined in this file"),
        (
            "\nTensor forward(Tensor x, int groups) {}\n",
            FORWARD,
            "rmsnorm.cu:2: forward: parameter 'groups' is none of rms_norm's: x, weight, eps",
        ),
        (
            "T forward(T x) {}\nT backward(T x, T grad) {}\n",
            FORWARD + 'm.def("backward", &backward);',
            "rmsnorm.cu:2: backward: takes x, grad; it is called with the gradient of each output, then the tensors",
        ),
        (
            "T forward(T x) {}\nT backward(T grad, T weight, T x) {}\n",
            FORWARD + 'm.def("backward", &backward);',
            "rmsnorm.cu:2: backward: takes grad, weight, x; it is called with",
        ),
    ],
)
def test_what_cannot_be_called_is_told_with_its_line(tmp_path: Path, text: str, bindings: str, said: str) -> None:
    assert said in refusal(written(tmp_path, text, bindings=bindings))


def test_a_file_that_names_no_op_asks_for_one(tmp_path: Path) -> None:
    path = written(tmp_path, "T forward(T x) {}\n", name="kernel.cu")
    assert "kernel.cu: which op does it replace? Pass --op NAME" in refusal(path)


@pytest.mark.slow
def test_an_extension_computes_and_differentiates_by_itself(tmp_path: Path) -> None:
    """One build serves both: torch's headers take a minute."""
    import torch

    kernel = read_kernel(str(NORM), op=None)
    call = bound(kernel, tmp_path)
    check_norm(call)
    x, weight = torch.randn(2, 3, 8, requires_grad=True), torch.nn.Parameter(torch.randn(8))
    call(x, weight, 1e-5).pow(2).sum().backward()
    own = x.grad, weight.grad
    x.grad = weight.grad = None
    registry.load_op("rms_norm").reference(x, weight, 1e-5).pow(2).sum().backward()
    torch.testing.assert_close(own, (x.grad, weight.grad))
    missing = kernel.model_copy(update={"manifest": kernel.manifest.model_copy(update={"entry": "go"})})
    with pytest.raises(CandidateError, match="'go' is not exported; exported: backward, forward"):
        bound(missing, tmp_path)
