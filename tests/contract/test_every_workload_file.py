"""Every file in `workloads/` loads, and every name in it, also in its comments, leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from e2e import registry
from e2e.configuration import load_policy, load_workload
from e2e.listing import rows
from e2e.preflight import check_fit
from e2e.reading import read_kernel
from e2e.schema.words import Stage
from e2e.schema.workload import SYNTHETIC, cells_of

REPOSITORY = Path(__file__).parents[2]
FILES = sorted((REPOSITORY / "workloads").glob("*.y*ml"))
COMMAND = re.compile(r"e2e validate (\S+) --kernel (\S+)(.*)")

every_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)


def test_there_are_workloads_for_inference_and_training_with_and_without_a_gpu() -> None:
    here = {"tiny_llama_infer", "tiny_llama_train", "planted_slow_op", "tiny_vit_infer", "tiny_moe_infer"}
    packaged = {"minilm_embed", "smollm2_prefill", "smollm2_decode", "smollm2_generate"}
    large = {"llama_infer", "llama_decode", "llama_generate", "llama_train", "bert_large", "vit_large", "moe_infer"}
    assert here | packaged | large <= {file.stem for file in FILES}


@every_file
def test_random_weights_can_always_be_asked_for_or_its_files_are_at_hand(file: Path) -> None:
    """Without a hub every shipped workload still runs, if only with random weights."""
    model = load_workload(str(file)).workload.model
    assert "model_type" in model.config or model.package or "/" not in str(model.id)


@every_file
def test_fields_laid_over_a_config_are_fields_of_that_model(file: Path) -> None:
    from transformers import AutoConfig

    from e2e.tasks._model import _check_names

    fields = dict(load_workload(str(file)).workload.model.config)
    if fields:
        _check_names(AutoConfig.for_model(fields.pop("model_type")), fields)


@every_file
def test_it_loads_and_has_a_cell(file: Path) -> None:
    loaded = load_workload(str(file))
    assert cells_of(loaded.workload)
    assert loaded.workload.description


@every_file
def test_its_name_is_its_files_name(file: Path) -> None:
    assert load_workload(str(file)).workload.name == file.stem.replace("_", "-")


@every_file
def test_it_is_found_by_its_bare_name(file: Path) -> None:
    assert load_workload(file.stem).path == file


@every_file
def test_its_task_and_its_policy_exist(file: Path) -> None:
    loaded = load_workload(str(file))
    assert loaded.workload.task in registry.names("tasks")
    assert load_policy(None, workload=loaded).name


@every_file
def test_its_files_exist_beside_it(file: Path) -> None:
    workload = load_workload(str(file)).workload
    assert workload.data.path == SYNTHETIC or (file.parent / workload.data.path).is_file()
    if workload.model.factory:
        source, _, function = workload.model.factory.rpartition(":")
        assert f"def {function}(" in (file.parent / source).read_text()


@every_file
def test_a_model_in_the_repository_is_whole(file: Path) -> None:
    """A hub id has one slash; anything without one is a folder here."""
    model = load_workload(str(file)).workload.model
    if model.id is not None and "/" not in model.id:
        folder = file.parent / model.id
        assert (folder / "config.json").is_file()
        assert sum(path.stat().st_size for path in folder.glob("*.safetensors")) > 0


@every_file
def test_the_list_shows_what_it_is_for(file: Path) -> None:
    shown = {row.name: row.detail for row in rows("workloads")}
    assert len(shown[file.stem]) > 20


@every_file
def test_commands_in_its_comments_name_existing_files_and_fit(file: Path) -> None:
    for workload, spec, rest in COMMAND.findall(file.read_text()):
        assert Path(workload) == file.relative_to(REPOSITORY)
        check_fit(load_workload(workload), read_kernel(spec, op=None))
        if "--until" in rest:
            assert rest.split("--until")[1].split()[0] in list(Stage)
