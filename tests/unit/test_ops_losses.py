"""Losses stand in a model's own loss function: where they are found, and that a training step passes through them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from e2e import registry
from e2e.numerics.exercise import gradients
from e2e.ops import cross_entropy
from e2e.ops.cross_entropy import CrossEntropy
from tests import families
from tests.sessions import LlamaSession, surveyed

torch.set_num_threads(1)

OP: CrossEntropy = registry.load("ops", "cross_entropy")
ENCODERS = {"bert", "modernbert", "vit"}
INLINE = {"t5", "whisper"}
"""Their forward makes a loss module of its own."""


@pytest.mark.parametrize("family", families.FAMILIES)
def test_a_causal_model_given_labels_is_a_site(family: str, tmp_path: Path) -> None:
    found = surveyed(OP, family, tmp_path, labels=family not in ENCODERS)
    assert found == ({} if family in ENCODERS | INLINE else {"": None})


def test_a_step_without_labels_has_no_loss(tmp_path: Path) -> None:
    assert surveyed(OP, "llama", tmp_path) == {"": "it is not called in this step"}


def test_a_loss_of_another_kind_is_no_site() -> None:
    model: Any = copy.deepcopy(families.model_of("llama"))
    model.loss_function = lambda logits, labels, **_: logits.mean()
    assert OP.find_sites(model) == []


def test_a_training_step_passes_through_the_kernel_and_its_gradients_stay(tmp_path: Path) -> None:
    session = LlamaSession(step="train")
    sites = OP.find_sites(session.model)
    rows = [
        gradients(session, OP, sites, kernel, backward="reference", seed=1, native=False, path=tmp_path / name)
        for name, kernel in (("own", None), ("kernel", OP.reference))
    ]
    assert [row["calls"] for row in rows] == [{}, {"": 1}]
    assert rows[0]["loss"] == pytest.approx(rows[1]["loss"], rel=1e-6)
    own, mine = (load_file(tmp_path / name) for name in ("own", "kernel"))
    assert set(own) == set(mine)
    for name, gradient in own.items():
        torch.testing.assert_close(mine[name], gradient, rtol=1e-3, atol=1e-6)


def test_a_sum_over_counted_items_is_divided_outside_the_kernel() -> None:
    model: Any = families.model_of("llama")
    seen: list[tuple[Any, ...]] = []

    def kernel(*call: Any) -> Tensor:
        seen.append(call[2:])
        return OP.reference(*call)

    (site,) = OP.find_sites(model)
    forward: Any = OP.forward_with(site, kernel)
    ids = torch.arange(3, 15)[None]
    with torch.no_grad():
        mine = forward(model, input_ids=ids, labels=ids, num_items_in_batch=22).loss
        own = model(input_ids=ids, labels=ids, num_items_in_batch=22).loss
    assert seen == [(-100, "sum", 0.0)]
    torch.testing.assert_close(mine, own)


def test_the_reference_in_small_blocks_is_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    call = OP.example("float64", "cpu", 1)
    whole = OP.reference(*call.tensors, *call.scalars)
    monkeypatch.setattr(cross_entropy, "BLOCK", 5 * 4096)
    torch.testing.assert_close(OP.reference(*call.tensors, *call.scalars), whole, rtol=1e-13, atol=0.0)
