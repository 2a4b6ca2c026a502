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
from e2e.binding import trainable
from e2e.numerics.exercise import gradients
from e2e.ops import cross_entropy
from e2e.ops.cross_entropy import CrossEntropy
from e2e.ops.linear_cross_entropy import LinearCrossEntropy
from e2e.patch import Standing
from tests import families
from tests.sessions import LlamaSession, surveyed

torch.set_num_threads(1)

OP: CrossEntropy = registry.load("ops", "cross_entropy")
FUSED: LinearCrossEntropy = registry.load("ops", "linear_cross_entropy")
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


@pytest.mark.parametrize("op", [OP, FUSED], ids=["cross_entropy", "linear_cross_entropy"])
def test_a_training_step_passes_through_the_kernel_and_its_gradients_stay(op: Any, tmp_path: Path) -> None:
    session = LlamaSession(step="train")
    sites = op.find_sites(session.model)
    rows = [
        gradients(session, kernels, seed=1, path=tmp_path / name)
        for name, kernels in (
            ("own", []),
            ("kernel", [Standing(op, sites, trainable(op, op.reference, borrowed=True))]),
        )
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


# ---- With the head


REFUSED = {
    "gemma2": "it changes its logits between head and loss: final_logit_softcapping",
    "phi": "its head has a bias; linear_cross_entropy has none",
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", families.FAMILIES)
def test_head_and_loss_are_one_site_where_nothing_lies_between(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = copy.deepcopy(families.model_of(family)).to(dtype)
    found = surveyed(FUSED, family, tmp_path, model, labels=family not in ENCODERS)
    assert found == ({} if family in ENCODERS | INLINE else {"": REFUSED.get(family)})


def test_a_cap_that_is_not_used_is_no_reason_to_refuse() -> None:
    (site,) = FUSED.find_sites(families.model_of("gemma2", final_logit_softcapping=None))
    assert site.incompatible is None


def test_logits_are_left_out_where_the_kernel_makes_the_loss_and_only_there() -> None:
    model: Any = families.model_of("llama")
    (site,) = FUSED.find_sites(model)
    forward: Any = FUSED.forward_with(site, FUSED.reference)
    ids = torch.arange(3, 15)[None]
    with torch.no_grad():
        learnt, plain = forward(model, input_ids=ids, labels=ids), forward(model, input_ids=ids)
        own = model(input_ids=ids, labels=ids)
    torch.testing.assert_close(learnt.loss, own.loss)
    assert learnt.logits is None
    assert torch.equal(plain.logits, own.logits)
