"""BackendBench: the file's name says the operator, the builder how ATen calls it."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.builders.aten import CALLS
from e2e.errors import CandidateError
from e2e.formats import backendbench
from e2e.reading import read_kernel
from tests.formats.bound import HERE, bound, check_norm, refusal

FOLDER = HERE / "backendbench" / "rms_norm__default"
FILE = FOLDER / "rms_norm__default_implementation_v1.py"


def written(folder: Path, name: str, *, entry: str | None = None) -> Path:
    place = folder / name
    place.mkdir()
    path = place / f"{name}_implementation_v1.py"
    path.write_text(f"def {entry or f'{name}_kernel_impl'}(*args): return args\n")
    return path


def test_every_operator_that_is_read_can_be_called() -> None:
    assert set(backendbench._OPS) == set(CALLS)


@pytest.mark.parametrize("spec", [FOLDER, FILE])
def test_the_folder_and_the_file_name_the_same_kernel(spec: Path, tmp_path: Path) -> None:
    kernel = read_kernel(str(spec), op=None)
    assert (kernel.format, kernel.manifest.op, kernel.manifest.binding) == ("backendbench", "rms_norm", "aten")
    assert kernel.path == str(FILE)
    check_norm(bound(kernel, tmp_path))


def test_messages_about_a_folder_name_the_file_in_it() -> None:
    assert read_kernel(str(FOLDER), op=None).shown == f"{FOLDER} ({FILE.name})"
    assert read_kernel(str(FILE), op=None).shown == str(FILE)


def test_of_several_versions_the_first_is_taken(tmp_path: Path) -> None:
    path = written(tmp_path, "rms_norm")
    (path.parent / "rms_norm_implementation_v2.py").write_text(path.read_text())
    assert read_kernel(str(path.parent), op=None).path == str(path)


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("add__Tensor", "aten:add.Tensor"),
        ("relu", "aten:relu.default"),
        ("softmax__Dimname", "aten:softmax.Dimname"),
        ("_log_softmax__default", "aten:_log_softmax.default"),
    ],
)
def test_an_operator_without_an_op_stands_for_itself(tmp_path: Path, name: str, op: str) -> None:
    assert read_kernel(str(written(tmp_path, name)), op=None).manifest.op == op


def test_an_operator_with_an_op_stands_for_itself_where_it_is_asked_to() -> None:
    assert read_kernel(str(FOLDER), op="aten:rms_norm.default").manifest.op == "aten:rms_norm.default"


def test_arguments_stand_where_the_operator_has_them(tmp_path: Path) -> None:
    path = written(tmp_path, "addmm__default")
    path.write_text("def addmm__default_kernel_impl(*args, **named): return args, named\n")
    assert bound(read_kernel(str(path), op=None), tmp_path)("self", "mat1", "mat2", 0.5, 2.0) == (
        ("self", "mat1", "mat2"),
        {"beta": 0.5, "alpha": 2.0},
    )


def test_a_file_without_its_function_is_refused(tmp_path: Path) -> None:
    said = refusal(written(tmp_path, "rms_norm", entry="rms_norm"))
    assert "rms_norm_implementation_v1.py:1: rms_norm_kernel_impl: no such function" in said


def test_an_op_that_nobody_registered_gives_the_ordinary_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(backendbench._OPS, "fft", "fft_norm")
    assert "no op called 'fft_norm'" in refusal(written(tmp_path, "fft"))


def test_another_op_than_asked_for_is_refused() -> None:
    assert "it is for rms_norm, where 'rope' is wanted" in refusal(FOLDER, op="rope")


def test_a_name_that_is_no_operator_is_told_when_it_is_bound(tmp_path: Path) -> None:
    path = tmp_path / "k.py"
    path.write_text("# /// e2e\n# op: rms_norm\n# entry: f\n# binding: aten\n# ///\ndef f(): ...\n")
    with pytest.raises(CandidateError, match="'f' is no OPERATOR_kernel_impl of: rms_norm"):
        bound(read_kernel(str(path), op=None), tmp_path)


def test_each_operator_gets_its_arguments_where_aten_has_them() -> None:
    import torch

    x, weight, bias = torch.ones(2, 3), torch.ones(3), torch.zeros(3)
    calls = {
        "rms_norm": ((x, weight, 0.1), torch.rms_norm),
        "layer_norm": ((x, weight, bias, 0.1), torch.layer_norm),
        "native_layer_norm": ((x, weight, bias, 0.1), torch.native_layer_norm),
        "silu": ((x,), torch.ops.aten.silu),
        "gelu": ((x, True), torch.ops.aten.gelu),
        "softmax": ((x, 1), torch.softmax),
        "_softmax": ((x, 1), torch._softmax),
        "linear": ((x, torch.ones(5, 3), None), torch.ops.aten.linear),
        "embedding": ((torch.tensor([1]), x), torch.ops.aten.embedding),
    }
    assert set(calls) == set(CALLS)
    for operator, (call, own) in calls.items():
        assert isinstance(CALLS[operator](own)(*call), torch.Tensor), operator
