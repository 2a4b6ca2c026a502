"""softmax: which forwards of real families call it by name, themselves or in eager attention."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from e2e import registry
from e2e.ops._sites import paths_to
from e2e.ops.softmax import Softmax
from e2e.patch import Patch, copy_sharing_weights, observed, sites_in
from e2e.protocols import OpCall
from tests import families
from tests.sessions import surveyed

torch.set_num_threads(1)

OP: Softmax = registry.load("ops", "softmax")
EAGER: dict[str, Any] = {"attn_implementation": "eager"}
ATTENTIONS = {**dict.fromkeys(families.FAMILIES, 2), "t5": 6, "whisper": 6, "mamba": 0}
ROUTED = ("mixtral", "qwen3_moe")


def original_softmaxes() -> tuple[Any, ...]:
    return F.softmax, nn.functional.softmax, torch.softmax, torch.nn.functional.softmax


class Mixed(nn.Module):
    """A softmax by each of its names, and one that has none."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.softmax(x, -1) + F.softmax(x, dim=0) + nn.functional.softmax(x, dim=-1, dtype=torch.float64).float()
        return y + torch.nn.functional.softmax(x, 1) + x.softmax(-1)


# ---- Sites


@pytest.mark.parametrize("family", families.FAMILIES)
def test_eager_attentions_and_routers_are_found(family: str, tmp_path: Path) -> None:
    refused = surveyed(OP, family, tmp_path, families.model_of(family, **EAGER))
    called = [fqn for fqn, why in refused.items() if why is None]
    assert len(called) == ATTENTIONS[family] + (2 if family in ROUTED else 0)
    assert {why for why in refused.values() if why} <= {"it is not called in this step"}


def test_a_softmax_inside_another_attention_is_refused_in_words() -> None:
    sites = OP.find_sites(families.model_of("llama", attn_implementation="sdpa"))
    reason = "its attention is 'sdpa', which has its own softmax inside; only eager attention calls one by name"
    assert [site.incompatible for site in sites] == [reason] * 2


def test_routers_are_sites_whatever_the_attention_is() -> None:
    sites = OP.find_sites(families.model_of("mixtral", attn_implementation="sdpa"))
    assert [type(site.module).__name__ for site in sites if not site.incompatible].count("MixtralTopKRouter") == 2


# ---- Calls


def test_a_softmax_is_replaced_under_every_name_and_nowhere_else() -> None:
    model, seen = nn.Sequential(Mixed()), list[OpCall]()
    x, before = torch.randn(3, 4), original_softmaxes()
    own = model(x)
    with observed(OP, OP.find_sites(model), lambda site, call, output: seen.append(call)):
        assert torch.equal(own, model(x))
        assert original_softmaxes() == before
    assert [call.scalars for call in seen] == [(-1,), (0,), (-1,), (1,)]


def test_a_wider_result_is_the_op_on_the_widened_scores() -> None:
    seen: list[OpCall] = []
    model = families.model_of("llama", **EAGER)
    half = copy_sharing_weights(model).bfloat16()
    with observed(OP, OP.find_sites(half), lambda site, call, output: seen.append(call)):
        families.run("llama", half)
    assert {call.tensors[0].dtype for call in seen} == {torch.float32}


def test_the_owner_and_the_attention_it_names_keep_their_globals() -> None:
    model = families.model_of("llama", **EAGER)
    forward = OP.find_sites(model)[0].module.forward.__func__
    arm = copy_sharing_weights(model)
    Patch(OP, sites_in(arm, OP.find_sites(model)), lambda site: OP.reference)
    families.run("llama", arm)
    owner = importlib.import_module(type(OP.find_sites(model)[0].module).__module__)
    assert owner.nn is nn
    assert OP.find_sites(model)[0].module.forward.__func__ is forward


def test_paths_are_those_that_the_code_writes() -> None:
    found = paths_to(Mixed.forward, (torch.softmax, F.softmax))
    assert found == (
        ("torch", "softmax"),
        ("F", "softmax"),
        ("nn", "functional", "softmax"),
        ("torch", "nn", "functional", "softmax"),
    )
