"""gelu, silu and gelu_mul: which modules of real families are which function, and which are another."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from e2e import registry
from e2e.numerics.compare import exactly, judge_outputs
from e2e.patch import Patch, copy_sharing_weights, observed, sites_in
from e2e.protocols import Op, OpCall, Site
from tests import families
from tests.sessions import surveyed

torch.set_num_threads(1)

GELU, SILU, GELU_MUL = (registry.load("ops", name) for name in ("gelu", "silu", "gelu_mul"))
EXACT, TANH = {"approximate": False}, {"approximate": True}
GELUS = {
    **dict.fromkeys(("bert", "gpt_neox", "modernbert", "vit", "whisper"), EXACT),
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text", "gpt2", "phi"), TANH),
}
SILUS = ("llama", "qwen2", "qwen3", "mistral", "phi3", "mixtral", "qwen3_moe", "mamba")
GATED_BY_TANH = ("gemma", "gemma2", "gemma3_text")
GATED_T5 = {"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu_new", "is_gated_act": True}


def one_site(op: Op, activation: nn.Module) -> Site:
    (site,) = op.find_sites(nn.Sequential(activation))
    return site


class Doubled(nn.GELU):
    """Twice as much, under an inherited name."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


class GeluWithWeight(nn.Module):
    """Named for the activation, and more than that."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.gelu(x) * self.weight


# ---- Sites


@pytest.mark.parametrize("family", families.FAMILIES)
def test_gelus_are_found_in_the_families_that_have_them_each_with_its_form(family: str) -> None:
    sites = GELU.find_sites(families.model_of(family))
    assert [site.scalars for site in sites] == [GELUS.get(family)] * len(sites)
    assert bool(sites) == (family in GELUS)
    assert all(site.incompatible is None for site in sites)


@pytest.mark.parametrize("family", families.FAMILIES)
def test_silus_are_found_in_the_families_that_have_them(family: str) -> None:
    sites = SILU.find_sites(families.model_of(family))
    assert bool(sites) == (family in SILUS)
    assert all(site.incompatible is None for site in sites)


@pytest.mark.parametrize("family", families.FAMILIES)
def test_products_with_a_gelu_by_tanh_are_found(family: str) -> None:
    sites = GELU_MUL.find_sites(families.model_of(family))
    assert len([site for site in sites if site.incompatible is None]) == (2 if family in GATED_BY_TANH else 0)


def test_the_exact_gelu_of_modernbert_is_another_ops() -> None:
    reasons = {site.incompatible for site in GELU_MUL.find_sites(families.model_of("modernbert"))}
    assert reasons == {"its activation is the exact GELU; gelu_mul is the approximation by tanh"}


@pytest.mark.parametrize(
    ("op", "family", "changes"),
    [
        (GELU, "gpt2", {}),
        (GELU, "whisper", {}),
        (SILU, "mixtral", {}),
        (GELU_MUL, "t5", GATED_T5),
        (GELU_MUL, "modernbert", {"hidden_activation": "gelu_pytorch_tanh"}),
        (registry.load("ops", "silu_mul"), "modernbert", {"hidden_activation": "silu"}),
    ],
    ids=lambda item: getattr(item, "name", item if isinstance(item, str) else ""),
)
def test_a_survey_finds_nothing_wrong_with_the_sites(
    op: Op, family: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    refused = surveyed(op, family, tmp_path, families.model_of(family, **changes))
    assert len(refused) >= 2
    assert set(refused.values()) == {None}


# ---- Which function it is


@pytest.mark.parametrize("name", ["gelu", "gelu_python"])
def test_the_exact_form_is_known_however_it_is_written(name: str) -> None:
    assert one_site(GELU, ACT2FN[name]).scalars == EXACT


@pytest.mark.parametrize("name", ["gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_accurate"])
def test_the_approximation_is_known_however_it_is_written(name: str) -> None:
    assert one_site(GELU, ACT2FN[name]).scalars == TANH


@pytest.mark.parametrize(("approximate", "scalars"), [("none", EXACT), ("tanh", TANH)])
def test_torchs_own_module_is_either(approximate: str, scalars: dict[str, bool]) -> None:
    assert one_site(GELU, nn.GELU(approximate=approximate)).scalars == scalars


@pytest.mark.parametrize("activation", [ACT2FN["quick_gelu"], ACT2FN["gelu_10"], Doubled()], ids=type)
def test_what_only_has_the_name_of_a_gelu_is_refused(activation: nn.Module) -> None:
    assert one_site(GELU, activation).incompatible == "tried on values from -12 to 12, it is neither form of GELU"


def test_a_module_with_parameters_is_no_activation() -> None:
    assert GELU.find_sites(GeluWithWeight()) == []


def test_the_other_form_is_wrong_where_the_models_own_code_is_exact_enough_to_tell() -> None:
    model = copy.deepcopy(families.model_of("bert")).bfloat16()
    site, call = first_call(GELU, "bert", model)
    calls = [call, *(edge for _, edge in GELU.edge_calls(call, 1))]
    other = [judged(GELU, site, edge, GELU.reference(edge.tensors[0].double(), True).bfloat16()) for edge in calls]
    assert any(code is not None for code in other)


# ---- The check keeps its power where the model's own code rounds at every step


def first_call(op: Op, family: str, model: nn.Module) -> tuple[Site, OpCall]:
    found: list[tuple[Site, OpCall]] = []
    with observed(op, op.find_sites(model), lambda site, call, output: found.append((site, call))):
        families.run(family, model)
    return found[0]


def judged(op: Op, site: Site, call: OpCall, value: Any) -> object:
    own = op.own(site)(*call.tensors, *call.scalars)
    return judge_outputs(value, own, exactly(op, call), ratio=2.0)[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("op", "family", "changes"), [(GELU, "gpt2", {}), (GELU_MUL, "t5", GATED_T5)], ids=["gelu", "gelu_mul"]
)
def test_every_mutant_is_rejected_beside_a_gelu_written_out(
    op: Op, family: str, changes: dict[str, Any], dtype: torch.dtype
) -> None:
    model = copy.deepcopy(families.model_of(family, **changes)).to(dtype)
    site, call = first_call(op, family, model)
    calls = [call, *(edge for _, edge in op.edge_calls(call, 1))]
    for name, mutant in op.mutants().items():
        assert any(judged(op, site, c, mutant(*c.tensors, *c.scalars)) is not None for c in calls), name


def test_a_product_of_t5_keeps_its_output_layer_in_float32_as_its_owner_does() -> None:
    model = copy.deepcopy(families.model_of("t5", **GATED_T5)).bfloat16()
    for name, module in model.named_modules():
        if name.endswith("DenseReluDense.wo"):
            module.float()
    own = families.run("t5", model)
    arm = copy_sharing_weights(model)
    sites = GELU_MUL.find_sites(model)
    assert sites
    Patch(GELU_MUL, sites_in(arm, sites), GELU_MUL.own)
    assert torch.equal(own, families.run("t5", arm))
