"""linear and embedding: which layers of real families are they, and GPT-2's layers, whose weight lies the other way."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from e2e import registry
from e2e.ops.embedding import Embedding
from e2e.ops.linear import Linear
from e2e.patch import Patch, copy_sharing_weights, observed, sites_in
from e2e.protocols import OpCall, Site
from tests import families
from tests.sessions import surveyed

torch.set_num_threads(1)

LINEAR: Linear = registry.load("ops", "linear")
EMBEDDING: Embedding = registry.load("ops", "embedding")
OWN_FORWARD = "has a forward of its own, which does more than look rows up"
SCALED = {"gemma": "Gemma", "gemma2": "Gemma2", "gemma3_text": "Gemma3"}
TABLES = {"gpt2": 2, "bert": 3, "whisper": 2, "vit": 0, "t5": 1, **dict.fromkeys(SCALED, 0)}


class Masked(nn.Linear):
    """A linear layer that does more."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).tril()


def gpt2_calls() -> list[tuple[Site, OpCall]]:
    model, seen = families.model_of("gpt2"), list[tuple[Site, OpCall]]()
    with observed(LINEAR, LINEAR.find_sites(model), lambda site, call, output: seen.append((site, call))):
        families.run("gpt2", model)
    return seen


# ---- Linear


@pytest.mark.parametrize("family", families.FAMILIES)
def test_every_linear_layer_that_a_step_calls_is_one(family: str, tmp_path: Path) -> None:
    refused = surveyed(LINEAR, family, tmp_path)
    model = families.model_of(family)
    plain = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    assert set(plain) <= set(refused)
    assert len(refused) == len(plain) + (8 if family == "gpt2" else 0)
    assert {why for why in refused.values() if why} <= {"it is not called in this step"}
    assert sum(why is None for why in refused.values()) >= len(refused) - 4


def test_a_transposed_weight_is_handed_over_as_a_view() -> None:
    site, call = gpt2_calls()[0]
    _, weight, bias = call.tensors
    assert weight.shape == (192, 64)
    assert weight.stride() == (1, 192)
    assert weight.data_ptr() == site.module.weight.data_ptr()
    assert bias is site.module.bias


def test_a_transposed_layers_own_code_is_asked_with_other_weights() -> None:
    site, call = gpt2_calls()[0]
    x, weight, bias = call.tensors
    torch.testing.assert_close(LINEAR.own(site)(x, 2 * weight, bias), LINEAR.reference(x, 2 * weight, bias))
    assert LINEAR.own(site)(x[..., :3], weight[:5, :3], bias[:5]).shape == (*x.shape[:-1], 5)
    assert site.module.nf == 192


def test_identical_code_at_transposed_layers_changes_no_bit() -> None:
    model = families.model_of("gpt2")
    arm = copy_sharing_weights(model)
    Patch(LINEAR, sites_in(arm, LINEAR.find_sites(model)), LINEAR.own)
    assert torch.equal(families.run("gpt2", arm), families.run("gpt2", model))


def test_transposed_layers_trace_into_one_graph() -> None:
    model = families.model_of("gpt2")
    arm = copy_sharing_weights(model)
    Patch(LINEAR, sites_in(arm, LINEAR.find_sites(model)), lambda site: LINEAR.reference)
    compiled = torch.compile(arm, fullgraph=True, dynamic=False, backend="eager")
    torch.testing.assert_close(families.run("gpt2", compiled), families.run("gpt2", model), rtol=1e-4, atol=1e-4)
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("layer", "why"),
    [(Masked(4, 4), "Masked has a forward of its own, which does more than a linear layer's")],
)
def test_what_is_more_than_a_linear_layer_is_refused(layer: nn.Module, why: str) -> None:
    (site,) = LINEAR.find_sites(nn.Sequential(layer))
    assert site.incompatible == why


def test_a_quantized_weight_is_refused() -> None:
    layer = nn.Linear(4, 4)
    layer.weight = nn.Parameter(torch.zeros(4, 4, dtype=torch.int8), requires_grad=False)
    (site,) = LINEAR.find_sites(nn.Sequential(layer))
    assert site.incompatible == "its weight is int8: it is quantized"


# ---- Embedding


@pytest.mark.parametrize("family", families.FAMILIES)
def test_tables_are_found(family: str, tmp_path: Path) -> None:
    refused = surveyed(EMBEDDING, family, tmp_path)
    assert sum(why is None for why in refused.values()) >= TABLES.get(family, 1)


@pytest.mark.parametrize("family", SCALED)
def test_scaled_rows_are_refused(family: str, tmp_path: Path) -> None:
    assert list(surveyed(EMBEDDING, family, tmp_path).values()) == [
        f"{SCALED[family]}TextScaledWordEmbedding {OWN_FORWARD}"
    ]


def test_rows_chosen_by_position_are_refused(tmp_path: Path) -> None:
    assert f"WhisperPositionalEmbedding {OWN_FORWARD}" in surveyed(EMBEDDING, "whisper", tmp_path).values()


@pytest.mark.parametrize(
    ("table", "why"),
    [
        (nn.Embedding(4, 4, max_norm=1.0), "it shortens long rows in place as it looks them up (`max_norm`)"),
        (nn.Embedding(4, 4, sparse=True), "its gradient is another (`scale_grad_by_freq` or `sparse`)"),
        (nn.Embedding(4, 4, padding_idx=0), None),
    ],
    ids=["max_norm", "sparse", "padding_idx"],
)
def test_what_the_op_cannot_express_is_refused_in_words(table: nn.Embedding, why: str | None) -> None:
    (site,) = EMBEDDING.find_sites(nn.Sequential(table))
    assert site.incompatible == why
