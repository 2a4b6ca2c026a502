"""Which file of captured inputs is meant, and what is said where there is none or the wrong one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from e2e.capture_files import file_name, find_captures
from e2e.errors import UsageError


def written(path: Path, **about: str) -> Path:
    """A file with a header alone, as safetensors begin."""
    header = json.dumps({"__metadata__": about}).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    written(tmp_path / "run" / "captures" / "rms_norm.safetensors", op="rms_norm", dtype="bfloat16", calls="[]")
    return tmp_path / "run"


def refusal(given: object, op: str = "rms_norm") -> str:
    with pytest.raises(UsageError) as caught:
        find_captures(str(given), op=op)
    return caught.value.message


def test_a_run_and_the_file_in_it_are_the_same_captures(run: Path) -> None:
    by_run = find_captures(str(run), op="rms_norm")
    assert by_run == find_captures(str(run / "captures" / "rms_norm.safetensors"), op="rms_norm")
    assert by_run.dtype == "bfloat16"


def test_a_name_with_a_class_in_it_becomes_a_file_name() -> None:
    assert file_name("module:LlamaMLP") == "module.LlamaMLP.safetensors"
    assert "/" not in file_name("../ops/own.py:Op")


def test_an_op_that_the_run_did_not_keep_is_refused_with_those_that_it_did(run: Path) -> None:
    assert "no inputs of rope; it has: rms_norm" in refusal(run, "rope")


def test_a_run_without_captures_says_how_to_make_some(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    assert "e2e profile WORKLOAD" in refusal(tmp_path / "run")


def test_a_run_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    assert "no run" in refusal(tmp_path / "nothing")


def test_inputs_of_another_op_are_refused(run: Path) -> None:
    message = refusal(run / "captures" / "rms_norm.safetensors", "layer_norm")
    assert "inputs of rms_norm, and the kernel is for layer_norm" in message


@pytest.mark.parametrize(
    "content",
    [b"", b"short", b"\xff" * 64, (10).to_bytes(8, "little") + b"not JSON!!", (2).to_bytes(8, "little") + b"[]"],
)
def test_a_file_of_another_kind_is_refused_as_such(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "odd.safetensors"
    path.write_bytes(content)
    assert "not a file of captured inputs" in refusal(path)


def test_weights_are_no_captured_inputs(tmp_path: Path) -> None:
    assert "not a file of captured inputs" in refusal(written(tmp_path / "model.safetensors", format="pt"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in refusal(tmp_path / "none.safetensors")
