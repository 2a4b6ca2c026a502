"""Models come from the hub by the parent, with the token; whoever could hold a candidate gets neither."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

from e2e.errors import E2EError, EnvironmentFault, UsageError
from e2e.fetching import fetch, wanted
from e2e.schema.workload import ModelSpec
from tests.unit.test_crew import crew_in

FILES = [
    *("config.json", "tokenizer.json", "merges.txt", "tokenizer.model", "chat_template.jinja", "modeling_own.py"),
    *("model.safetensors.index.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"),
    *("consolidated.safetensors", "pytorch_model.bin", "README.md", "onnx/model.onnx", "original/params.json"),
]
TEXTS = {"config.json", "tokenizer.json", "merges.txt", "tokenizer.model", "chat_template.jinja"}
INDEX = "model.safetensors.index.json"


class Hub:
    """Says what it has, and who asked for what with which token."""

    def __init__(self, error: type[Exception] | None = None) -> None:
        self._error = error
        self.asked: list[tuple[str, str, list[str], str | None]] = []

    def list_repo_files(self, repository: str, *, revision: str) -> list[str]:
        if self._error is not None:
            raise self._error("not for you\nand more") if self._error is OSError else _answered(self._error)
        return FILES

    def snapshot_download(self, repository: str, *, revision: str, allow_patterns: list[str]) -> str:
        self.asked.append((repository, revision, allow_patterns, os.environ.get("HF_TOKEN")))
        return ""


def _answered(kind: type[Exception]) -> Exception:
    """An error as the hub's client raises it, whatever its version needs to make one."""
    error = kind.__new__(kind)
    Exception.__init__(error, "401\nand more")
    return error


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    return placed(Hub(), monkeypatch)


def placed(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.snapshot_download)
    return hub


def spec(**fields: Any) -> ModelSpec:
    return ModelSpec(**{"id": "a/b", "dtype": "float32", **fields})


def test_weights_come_in_the_form_that_transformers_takes_and_in_no_other() -> None:
    whole = set(wanted(FILES, with_weights=True, with_code=False))
    assert TEXTS | {INDEX} | {name for name in FILES if name.startswith("model-")} == whole
    older = [name for name in FILES if "safetensors" not in name]
    assert TEXTS | {"pytorch_model.bin"} == set(wanted(older, with_weights=True, with_code=False))
    assert TEXTS | {INDEX} == set(wanted(FILES, with_weights=False, with_code=False))
    assert "modeling_own.py" in wanted(FILES, with_weights=False, with_code=True)


def test_the_token_is_the_downloads_and_no_workers(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.setenv(name, "hf_planted")
    fetch("a/b", spec(revision="abc"))
    ((repository, revision, _, token),) = hub.asked
    assert ("a/b", "abc", "hf_planted") == (repository, revision, token)
    for clean in (True, False):
        given = crew_in(tmp_path)._environment(clean)
        assert "hf_planted" not in given.values()
        assert "1" == given["HF_HUB_DISABLE_IMPLICIT_TOKEN"], "one that lies on disk is not sent either"


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (GatedRepoError, EnvironmentFault, "accept its terms on its page, then set HF_TOKEN"),
        (RepositoryNotFoundError, UsageError, "no 'a/b' on the hub, or it needs a token"),
        (RevisionNotFoundError, UsageError, "a/b has no 'main'"),
        (OSError, EnvironmentFault, "could not be downloaded: not for you$"),
    ],
)
def test_what_the_hub_refuses_is_said_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception], kind: type[E2EError], words: str
) -> None:
    placed(Hub(error), monkeypatch)
    with pytest.raises(kind, match=words):
        fetch("a/b", spec())
