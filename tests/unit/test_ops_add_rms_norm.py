"""A layer's sum and norm: which layers are rebuilt, and that those of another build are left alone."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from e2e import registry
from e2e.ops.add_rms_norm import AddRmsNorm
from tests import families
from tests.sessions import surveyed

torch.set_num_threads(1)

OP: AddRmsNorm = registry.load("ops", "add_rms_norm")
LIKE_LLAMA = {"llama", "qwen2", "qwen3", "mistral", "mixtral", "qwen3_moe"}
LAYERS = [f"model.layers.{layer}" for layer in range(families.LAYERS)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", families.FAMILIES)
def test_layers_built_like_llamas_are_sites(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    found = surveyed(OP, family, tmp_path, copy.deepcopy(families.model_of(family)).to(dtype))
    if family == "gemma":  # the same build, and a norm that adds one to its weight
        assert list(found) == LAYERS
        assert all("its own forward is not add_rms_norm" in str(problem) for problem in found.values())
    else:
        assert found == dict.fromkeys(LAYERS if family in LIKE_LLAMA else [])


def test_a_layer_that_weighs_its_sums_is_refused_in_words() -> None:
    """In low precision a small factor is too little for the comparison of outputs to be sure of."""
    model = copy.deepcopy(families.model_of("llama"))
    layer: Any = model.get_submodule("model.layers.0")

    class Weighing(type(layer)):  # type: ignore[misc]
        residual_multiplier = 0.22

        def forward(self, hidden_states: Tensor, **named: object) -> Tensor:
            output: Tensor = super().forward(hidden_states, **named) * self.residual_multiplier
            return output

    layer.__class__ = Weighing
    found = {site.fqn: site.incompatible for site in OP.find_sites(model)}
    assert found == {LAYERS[0]: "its forward also uses forward, residual_multiplier", LAYERS[1]: None}


def test_a_layer_of_the_same_children_that_does_something_else_is_found_out(tmp_path: Path) -> None:
    model = copy.deepcopy(families.model_of("llama"))
    layer = model.get_submodule("model.layers.0")
    plain = type(layer).forward

    class Scaled(type(layer)):  # type: ignore[misc]
        def forward(self, hidden_states: Tensor, **named: object) -> Tensor:
            output: Tensor = plain(self, hidden_states, **named)
            return 1.5 * output

    for name in LAYERS:
        model.get_submodule(name).__class__ = Scaled
    found = surveyed(OP, "llama", tmp_path, model)
    words = "its forward gives other outputs with its own code in the kernel's place"
    assert found == dict.fromkeys(LAYERS, words)
