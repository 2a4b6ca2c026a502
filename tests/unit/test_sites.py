"""Where an op is looked for, and what is left alone."""

from __future__ import annotations

import types

import pytest
import torch
from torch import nn

from e2e import registry
from e2e.patch import TAKEN, Patch, sites_of
from tests import families

torch.set_num_threads(1)
NORM = registry.load_op("rms_norm")


def fresh(family: str = "llama") -> nn.Module:
    families.model_of.cache_clear()
    return families.model_of(family)


def test_only_sites_that_a_glob_matches_are_looked_at() -> None:
    model = fresh()
    names = [site.fqn for site in sites_of(NORM, model, ["model.layers.0.*", "model.norm"])]
    assert names == ["model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm", "model.norm"]
    assert sites_of(NORM, model, ["nowhere.*"]) == []


def test_a_module_with_a_forward_of_its_own_is_left_to_whoever_set_it() -> None:
    model = fresh()
    norm = model.get_submodule("model.norm")
    norm.forward = types.MethodType(type(norm).forward, norm)
    assert {site.fqn: site.incompatible for site in sites_of(NORM, model, ["*"])}["model.norm"] == TAKEN


def test_hooks_on_instances_stay_and_run() -> None:
    model, seen = fresh(), []
    model.get_submodule("model.norm").register_forward_hook(lambda *_: seen.append("after"))
    patch = Patch(NORM, sites_of(NORM, model, ["*"]), lambda site: NORM.reference)
    families.run("llama", model)
    assert seen == ["after"]
    patch.undo()
    families.run("llama", model)
    assert seen == ["after", "after"]


@pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")  # torch's own, on first import
@pytest.mark.parametrize("wrapped", ["compiled", "in another module"])
def test_sites_are_found_through_wrappers(wrapped: str) -> None:
    inner = fresh()
    model = torch.compile(inner) if wrapped == "compiled" else nn.ModuleDict({"policy": inner})
    assert len(sites_of(NORM, model, ["*"])) == len(sites_of(NORM, inner, ["*"]))


def test_modules_are_found_by_class_and_by_name() -> None:
    model = fresh()
    by_class = registry.load_op("module:LlamaMLP").find_sites(model)
    by_name = registry.load_op("module:model.layers.*.mlp").find_sites(model)
    assert [site.fqn for site in by_class] == [site.fqn for site in by_name]
    assert all(site.incompatible is None for site in by_name)


def test_modules_of_different_kinds_under_one_name_are_no_one_op() -> None:
    sites = registry.load_op("module:model.layers.0.*").find_sites(fresh())
    assert "and the first module of that name a" in str(sites[1].incompatible)


def test_the_norms_of_t5_are_rms_norms_whatever_their_name_and_those_with_a_mean_are_none() -> None:
    from transformers.models.t5.modeling_t5 import T5LayerNorm

    model = nn.ModuleDict({"t5": T5LayerNorm(8), "torch": nn.LayerNorm(8), "rms": nn.RMSNorm(8, eps=1e-6)})
    found = {site.fqn: site.incompatible for site in registry.load_op("rms_norm").find_sites(model)}
    assert {"t5": None, "rms": None} == found
    (site,) = [s for s in registry.load_op("rms_norm").find_sites(model) if s.fqn == "t5"]
    x = torch.randn(3, 8)
    torch.testing.assert_close(
        registry.load_op("rms_norm").reference(x, model["t5"].weight, site.scalars["eps"]), model["t5"](x)
    )
