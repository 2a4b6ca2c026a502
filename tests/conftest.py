"""Fixtures that several folders share: a cache of their own, and a workload small enough to run whole."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests import tiny

# The same examples every time, and no limit on the time of one: other processes share the cores.
settings.register_profile("e2e", deadline=None, derandomize=True, database=None)
settings.load_profile("e2e")


@pytest.fixture(scope="session")
def e2e_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """`E2E_CACHE_DIR` in a folder of this session, so that no test meets what another run left behind."""
    folder = tmp_path_factory.mktemp("e2e-cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("E2E_CACHE_DIR", str(folder))
        yield folder


@pytest.fixture(scope="session")
def tiny_workload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workload file of a random two-layer Llama, its text beside it."""
    return tiny.write_workload(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tiny_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy with small budgets and eager arms only."""
    return tiny.write_policy(tmp_path_factory.mktemp("policy") / "tiny.yaml")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need what is not here are skipped by their marks, whatever was selected."""
    absent = {
        "gpu": None if Path("/dev/nvidiactl").exists() else "needs a CUDA device",
        "browser": _browser_problem(),
    }
    for item in items:
        for mark, problem in absent.items():
            if problem is not None and item.get_closest_marker(mark) is not None:
                item.add_marker(pytest.mark.skip(reason=problem))


def _browser_problem() -> str | None:
    if importlib.util.find_spec("playwright") is None:
        return "needs playwright: pip install -e '.[browser]'"
    return None if shutil.which("chromium") else "needs a Chromium called chromium on the path"
