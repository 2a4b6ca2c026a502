"""layer_norm: which modules of real families are it, and which only have its name."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig
from transformers.models.cohere.modeling_cohere import CohereLayerNorm
from transformers.models.olmo.modeling_olmo import OlmoLayerNorm

from e2e import registry
from e2e.numerics.compare import exactly, judge_outputs
from e2e.ops.layer_norm import LayerNorm
from e2e.patch import observed
from e2e.protocols import OpCall, Site
from tests import families
from tests.sessions import surveyed

torch.set_num_threads(1)

OP: LayerNorm = registry.load("ops", "layer_norm")
NORMS = {"phi": 3, "gpt2": 5, "gpt_neox": 5, "bert": 5, "modernbert": 5, "vit": 5, "whisper": 12}


def one_site(norm: nn.Module) -> Site:
    (site,) = OP.find_sites(nn.Sequential(norm))
    return site


class UnitOffset(nn.LayerNorm):
    """As Nemotron has it: the weight is one more than what is stored."""

    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.layer_norm(input, self.normalized_shape, self.weight + 1, self.bias, self.eps)


@pytest.mark.parametrize("family", [family for family in families.FAMILIES if family != "t5"])
def test_layer_norms_are_found_and_every_other_norm_is_left_alone(family: str, tmp_path: Path) -> None:
    if family not in NORMS:
        assert OP.find_sites(families.model_of(family)) == []
        return
    refused = surveyed(OP, family, tmp_path)
    assert list(refused.values()) == [None] * NORMS[family]


def test_the_norms_that_t5_calls_layer_norms_are_refused_on_their_activations(tmp_path: Path) -> None:
    refused = surveyed(OP, "t5", tmp_path)
    assert len(refused) == 12
    assert all((why or "").startswith("its own forward is not layer_norm") for why in refused.values())


def test_epsilon_is_the_sites_own() -> None:
    assert one_site(nn.LayerNorm(8, eps=3e-4)).scalars == {"eps": 3e-4}
    assert one_site(CohereLayerNorm(8, eps=2e-4)).scalars == {"eps": 2e-4}


@pytest.mark.parametrize(
    ("norm", "why"),
    [
        (nn.LayerNorm((4, 8)), "it normalises over 2 dimensions; layer_norm over the last one"),
        (nn.LayerNorm(8, elementwise_affine=False), "it has no weight"),
        (OlmoLayerNorm(8), "it has no weight"),
        (CohereLayerNorm((2, 8)), "it has parameters {'weight': (2, 8)}; layer_norm needs a vector `weight`"),
    ],
    ids=["two dimensions", "no weight", "olmo", "weight by head"],
)
def test_what_the_op_cannot_express_is_refused_in_words(norm: nn.Module, why: str) -> None:
    assert (one_site(norm).incompatible or "").startswith(why)


def test_a_layer_norm_whose_weight_is_stored_less_one_is_refused_on_its_activations(tmp_path: Path) -> None:
    model = copy.deepcopy(families.model_of("bert"))
    for layer in model.encoder.layer:
        layer.output.LayerNorm.__class__ = UnitOffset
    refused = surveyed(OP, "bert", tmp_path, model)
    assert sum("is not layer_norm" in (why or "") for why in refused.values()) == 2


def test_a_look_alike_without_a_bias_is_called_with_none() -> None:
    config = AutoConfig.for_model("cohere", hidden_size=16)
    norm = CohereLayerNorm(config.hidden_size, eps=1e-5)
    x, seen = torch.randn(3, 16), list[OpCall]()
    own = norm(x)
    with observed(OP, [one_site(norm)], lambda site, call, output: seen.append(call)):
        assert torch.equal(own, norm(x))
    assert seen[0].tensors[2] is None
    torch.testing.assert_close(exactly(OP, seen[0]).float(), own)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_every_mutant_is_rejected_where_there_is_no_bias(dtype: torch.dtype) -> None:
    call = OP.example(str(dtype).removeprefix("torch."), "cpu", 1)
    x, weight, _ = call.tensors
    calls = [edge for _, edge in OP.edge_calls(OpCall((x, weight, None), call.scalars), 1)]
    for name, mutant in OP.mutants().items():
        judged = [
            judge_outputs(
                mutant(*c.tensors, *c.scalars),
                nn.functional.layer_norm(c.tensors[0], (1024,), c.tensors[1], None, *c.scalars),
                exactly(OP, c),
                ratio=2.0,
            )[0]
            for c in calls
        ]
        assert any(code is not None for code in judged), name
