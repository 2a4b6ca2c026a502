from __future__ import annotations

import importlib.metadata
from typing import Any

import pytest

from e2e.surroundings import Comparison, Surroundings, compare, packages

CPU_RUN = {"packages": {"torch": "2.11.0", "triton": "3.6.0", "numpy": "2.0"}, "device": "a CPU", "arch": None}
GPU_RUN = {**CPU_RUN, "device": "NVIDIA H200", "arch": "90", "driver": "580.65.06"}
THERE = Surroundings({"torch": "2.11.0", "triton": "3.6.0"}, ("NVIDIA H200",), "580.65.06")


def test_the_same_environment_is_no_change() -> None:
    assert compare(GPU_RUN, THERE) == Comparison()
    assert compare(CPU_RUN, THERE) == Comparison()


@pytest.mark.parametrize(
    ("here", "changed"),
    [
        (Surroundings({"torch": "2.12.0", "triton": "3.6.0"}, THERE.gpus, THERE.driver), "torch 2.11.0 -> 2.12.0"),
        (Surroundings(THERE.packages, ("NVIDIA B200",), THERE.driver), "GPU NVIDIA H200 -> NVIDIA B200"),
        (Surroundings(THERE.packages, THERE.gpus, "590.1"), "driver 580.65.06 -> 590.1"),
    ],
)
def test_another_torch_gpu_or_driver_is_named(here: Surroundings, changed: str) -> None:
    assert compare(GPU_RUN, here) == Comparison((changed,))


def test_the_right_gpu_may_stand_beside_others() -> None:
    several = Surroundings(THERE.packages, ("NVIDIA T4", "NVIDIA H200"), THERE.driver)
    assert compare(GPU_RUN, several) == Comparison()


def test_a_ci_job_without_a_gpu_compares_nothing_whatever_torch_it_has() -> None:
    assert compare(GPU_RUN, Surroundings()) == Comparison(unseen="no CUDA device here")
    assert compare(GPU_RUN, Surroundings({"torch": "2.12.0+cpu"})) == Comparison(unseen="no CUDA device here")


def test_what_is_not_installed_here_is_no_change_and_is_said() -> None:
    assert compare(CPU_RUN, Surroundings()) == Comparison(unseen="torch, triton cannot be seen here")
    changed = compare(CPU_RUN, Surroundings({"torch": "2.12.0"}))
    assert changed == Comparison(("torch 2.11.0 -> 2.12.0",), "triton cannot be seen here")


@pytest.mark.parametrize("stored", [{}, {"packages": None}, {"packages": ["torch"]}])
def test_a_run_that_stored_nothing_is_not_compared(stored: dict[str, Any]) -> None:
    assert compare(stored, THERE) == Comparison(unseen="the run stored none")


def test_packages_are_those_installed_in_their_versions() -> None:
    assert packages()["torch"] == importlib.metadata.version("torch")
