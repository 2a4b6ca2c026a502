"""What a candidate may not change is seen when it has; what honest code does to a process is not held against it."""

from __future__ import annotations

import gc
import os
import statistics
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import library as lib

from e2e.errors import CandidateError
from e2e.integrity import ledger
from e2e.integrity.ledger import Ledger
from e2e.measure.fingerprint import Ring

torch.set_num_threads(1)


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as found:
        yield found


def code_of(book: Ledger) -> str | None:
    try:
        book.verify("then")
    except CandidateError as error:
        return error.code
    return None


def test_a_process_that_nobody_changed_passes_again_and_again() -> None:
    book = Ledger()
    assert [code_of(book) for _ in range(3)] == [None] * 3


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (time, "perf_counter"),
        (statistics, "median"),
        (torch.nn.functional, "dropout"),
        (torch.Tensor, "clone"),
        (torch.cuda, "synchronize"),
        (torch.cuda.Event, "elapsed_time"),
        (Ring, "commit"),
        (ledger, "settings"),
    ],
)
def test_a_function_that_was_replaced_is_named(patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    book = Ledger()
    patch.setattr(owner, name, lambda *args, **named: None)
    with pytest.raises(CandidateError, match=rf"{name}") as caught:
        book.verify("then")
    assert caught.value.code == "tampered"


def test_other_code_under_the_same_name_is_seen(patch: pytest.MonkeyPatch) -> None:
    book = Ledger()
    patch.setattr(Ring.commit, "__code__", (lambda self, outputs, slot: None).__code__)
    assert code_of(book) == "tampered"


def test_a_module_in_the_place_of_another_is_seen(patch: pytest.MonkeyPatch) -> None:
    book = Ledger()
    patch.setitem(sys.modules, "torch.nn.functional", types.ModuleType("torch.nn.functional"))
    assert "module torch.nn.functional" in book.replaced()


def test_a_kernel_registered_over_torchs_own_is_seen() -> None:
    book = Ledger()
    library = lib.Library("aten", "IMPL")
    with warnings.catch_warnings(action="ignore"):
        library.impl("hardshrink", lambda x, lambd=0.5: x, "CPU")
    assert book.replaced() == ["torch.ops aten/hardshrink/CPU"]
    library._destroy()
    assert book.replaced() == []


def test_an_operator_of_the_candidates_own_is_nobodys_business() -> None:
    book = Ledger()
    library = lib.Library("ledger_test", "DEF")
    library.define("double(Tensor x) -> Tensor")
    library.impl("double", lambda x: 2 * x, "CPU")
    assert code_of(book) is None
    library._destroy()


@pytest.mark.parametrize(
    ("change", "restore", "name"),
    [
        (
            lambda: torch.set_default_dtype(torch.float64),
            lambda: torch.set_default_dtype(torch.float32),
            "default dtype",
        ),
        (lambda: torch.set_num_threads(3), lambda: torch.set_num_threads(1), "threads"),
        (lambda: torch.set_float32_matmul_precision("medium"), None, "matmul precision"),
        (lambda: torch.set_flush_denormal(True), lambda: torch.set_flush_denormal(False), "denormals"),
        (lambda: torch.set_grad_enabled(False), lambda: torch.set_grad_enabled(True), "gradients"),
        (lambda: torch.use_deterministic_algorithms(True), lambda: torch.use_deterministic_algorithms(False), "determ"),
        (lambda: torch._C._set_mkldnn_enabled(False), lambda: torch._C._set_mkldnn_enabled(True), "mkldnn"),
        (gc.disable, gc.enable, "garbage collection"),
        (lambda: sys.setswitchinterval(1.0), lambda: sys.setswitchinterval(0.005), "switch interval"),
        (lambda: threading.settrace(print), lambda: threading.settrace(None), "tracing"),
        (lambda: gc.callbacks.append(print), lambda: gc.callbacks.remove(print), "collection callbacks"),
    ],
    ids=lambda item: item if isinstance(item, str) else "",
)
def test_a_setting_that_was_changed_is_named_with_both_values(
    change: Callable[[], Any], restore: Callable[[], Any] | None, name: str
) -> None:
    book = Ledger()
    change()
    try:
        with pytest.raises(CandidateError, match=f"{name}.*before.*now") as caught:
            book.verify("then")
    finally:
        (restore or (lambda: torch.set_float32_matmul_precision("highest")))()
    assert caught.value.code == "settings_changed"
    assert code_of(book) is None


@pytest.mark.parametrize(
    ("variable", "code"),
    [
        ("NVIDIA_TF32_OVERRIDE", "settings_changed"),
        ("OMP_NUM_THREADS", "settings_changed"),
        ("TORCH_CUDA_ARCH_LIST", None),
        ("TRITON_PRINT_AUTOTUNING", None),
        ("MY_KERNELS_CACHE", None),
    ],
)
def test_variables_that_steer_libraries_are_watched_and_no_others(
    patch: pytest.MonkeyPatch, variable: str, code: str | None
) -> None:
    book = Ledger()
    patch.setitem(os.environ, variable, "7")
    assert code_of(book) == code


def test_a_hook_on_every_module_is_seen() -> None:
    book = Ledger()
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *args: None)
    assert code_of(book) == "settings_changed"
    handle.remove()
    assert code_of(book) is None


def test_settings_that_e2e_changed_itself_are_taken_down_anew() -> None:
    book = Ledger()
    gc.disable()
    book.renew()
    assert code_of(book) is None
    gc.enable()
    assert code_of(book) == "settings_changed"


def test_what_torchs_own_compiler_changes_is_not_held_against_anyone() -> None:
    book = Ledger()
    compiled = torch.compile(lambda x: x.sin() + 1, backend="eager")
    compiled(torch.ones(4))
    assert code_of(book) is None
