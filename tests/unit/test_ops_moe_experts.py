"""Expert modules: which are found, which are refused and in which words, and Transformers' own ways as alternatives."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from e2e import registry
from e2e.ops import moe_experts
from e2e.ops.moe_experts import MoeExperts
from tests import families
from tests.sessions import surveyed

torch.set_num_threads(1)

OP: MoeExperts = registry.load("ops", "moe_experts")
MIXTURES = {"mixtral", "qwen3_moe"}


@pytest.mark.parametrize("family", families.FAMILIES)
def test_the_experts_of_mixtures_are_sites_and_nothing_else_is(family: str, tmp_path: Path) -> None:
    found = surveyed(OP, family, tmp_path)
    assert found == dict.fromkeys(
        [f"model.layers.{layer}.mlp.experts" for layer in range(families.LAYERS)] if family in MIXTURES else []
    )


@pytest.mark.parametrize("implementation", ["eager", "batched_mm", "grouped_mm"])
def test_whatever_the_config_chose_is_the_op(implementation: str, tmp_path: Path) -> None:
    model: Any = copy.deepcopy(families.model_of("mixtral"))
    model.set_experts_implementation(implementation)
    assert set(surveyed(OP, "mixtral", tmp_path, model).values()) == {None}


@pytest.mark.parametrize(
    ("attribute", "value", "words"),
    [
        ("has_bias", True, "its experts have biases"),
        ("has_gate", False, "its experts have no gate"),
        ("is_transposed", True, "it keeps its weights transposed"),
        ("is_concatenated", False, "gate and up are interleaved in its weights"),
        ("has_post_expert_norm", True, "it normalises what its experts give"),
        ("_is_expert_parallel", True, "its experts are spread over devices"),
        ("act_fn", nn.GELU(), "its activation is GELU; moe_experts has SiLU"),
    ],
)
def test_experts_of_another_form_are_refused_in_words(attribute: str, value: Any, words: str) -> None:
    model = copy.deepcopy(families.model_of("mixtral"))
    for site in OP.find_sites(model):
        setattr(site.module, attribute, value)
    assert [site.incompatible for site in OP.find_sites(model)] == [words] * families.LAYERS


def test_a_gate_of_its_own_is_found_out_by_what_it_computes(tmp_path: Path) -> None:
    model: Any = copy.deepcopy(families.model_of("mixtral"))
    model.set_experts_implementation("grouped_mm")
    for site in OP.find_sites(model):
        site.module._apply_gate = lambda both: both.chunk(2, -1)[0].sigmoid() * both.chunk(2, -1)[1]
    found = surveyed(OP, "mixtral", tmp_path, model)
    assert all("its own forward is not moe_experts" in str(problem) for problem in found.values())


@pytest.mark.parametrize("name", ["grouped_mm", "batched_mm"])
def test_alternatives_trace_into_one_graph(name: str) -> None:
    call = OP.example("float32", "cpu", 1)
    compiled = torch.compile(OP.alternatives[name], fullgraph=True, dynamic=False, backend="eager")
    torch.testing.assert_close(compiled(*call.tensors), OP.reference(*call.tensors), rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()


def test_gathering_more_weights_than_fit_is_refused_aloud(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moe_experts, "MOST_GATHERED", 1000)
    with pytest.raises(NotImplementedError, match="would copy 8,388,608 weights"):
        OP.alternatives["batched_mm"](*OP.example("float32", "cpu", 1).tensors)
