"""Attention's sites in real families, and the calls that are not the op's."""

from __future__ import annotations

import copy
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import StaticCache

from e2e import registry
from e2e.numerics.compare import exactly, judge_outputs
from e2e.ops import attention
from e2e.ops.attention import Attention
from e2e.patch import Patch, copy_sharing_weights, observed, sites_in
from e2e.protocols import OpCall, Site
from tests import families
from tests.sessions import surveyed

torch.set_num_threads(1)

OP: Attention = registry.load("ops", "attention")
BIASED = "it adds a position bias to the scores; attention has no argument for it"
SITES = {
    **dict.fromkeys(families.FAMILIES, 2),
    "whisper": 6,  # two layers of an encoder, two of a decoder with two each
    "t5": 6,
    "mamba": 0,
}


def calls_of(family: str, model: nn.Module) -> list[tuple[Site, OpCall]]:
    found: list[tuple[Site, OpCall]] = []
    with observed(OP, OP.find_sites(model), lambda site, call, output: found.append((site, call))):
        families.run(family, model)
    return found


def patched(model: nn.Module, function: Any) -> nn.Module:
    arm = copy_sharing_weights(model)
    Patch(OP, sites_in(arm, OP.find_sites(model)), lambda site: function)
    return arm


class Asked:
    """The reference, counting."""

    def __init__(self) -> None:
        self.calls: list[OpCall] = []

    def __call__(self, *call: Any) -> Tensor:
        self.calls.append(OpCall(call[:4], call[4:]))
        return OP.reference(*call)


# ---- Sites


@pytest.mark.parametrize("family", families.FAMILIES)
def test_every_attention_of_a_family_is_a_site_that_computes_the_op_or_says_why_not(
    family: str, tmp_path: Path
) -> None:
    found = surveyed(OP, family, tmp_path)
    assert len(found) == SITES[family]
    assert set(found.values()) <= ({BIASED} if family == "t5" else {None})


def test_eager_attention_is_a_site_too_though_a_kernel_leaves_its_weights_out(tmp_path: Path) -> None:
    assert set(surveyed(OP, "llama", tmp_path, families.model_of("llama", attn_implementation="eager")).values()) == {
        None
    }


def test_an_implementation_whose_masks_are_not_known_is_refused_in_words() -> None:
    model: Any = copy.deepcopy(families.model_of("llama"))
    model.config._attn_implementation = "flex_attention"
    assert [site.incompatible for site in OP.find_sites(model)] == [
        "its attention implementation is 'flex_attention'; whom it masks is known of sdpa and eager"
    ] * 2


@pytest.mark.parametrize(
    ("family", "causal", "masked", "softcap"),
    [
        ("llama", True, False, None),
        ("bert", False, False, None),
        ("vit", False, False, None),
        ("mistral", False, True, None),  # its mask says what its window says
        ("gemma2", False, True, 50.0),
    ],
)
def test_a_call_says_what_the_site_does(family: str, causal: bool, masked: bool, softcap: float | None) -> None:
    for _, call in calls_of(family, families.model_of(family)):
        _, is_causal, cap, window = call.scalars
        assert (is_causal, call.tensors[3] is not None, cap, window) == (causal, masked, softcap, None)


def test_queries_of_a_decoder_may_look_at_an_encoders_keys() -> None:
    calls = [call for site, call in calls_of("whisper", families.model_of("whisper")) if "encoder_attn" in site.fqn]
    assert [(call.tensors[0].shape[2], call.tensors[1].shape[2], call.scalars[1]) for call in calls] == [
        (12, 32, False)
    ] * 2


# ---- Inputs of other families than the one that the contract is tested in


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("family", ["gemma2", "mistral", "whisper"])
def test_in_every_family_right_maths_pass_and_mutants_do_not(family: str, dtype: torch.dtype) -> None:
    model = copy.deepcopy(families.model_of(family)).to(dtype)
    site, first = calls_of(family, model)[0]
    calls = [first, *(call for _, call in OP.edge_calls(first, 1))]
    own = [OP.own(site)(*call.tensors, *call.scalars) for call in calls]
    exact = [exactly(OP, call) for call in calls]
    assert all(
        judge_outputs(right.to(dtype), base, right, ratio=2.0)[0] is None
        for base, right in zip(own, exact, strict=True)
    )
    survivors = [
        name
        for name, mutant in OP.mutants().items()
        if all(
            judge_outputs(mutant(*call.tensors, *call.scalars), base, right, ratio=2.0)[0] is None
            for call, base, right in zip(calls, own, exact, strict=True)
        )
    ]
    assert survivors == []


def test_the_reference_in_small_blocks_is_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    call = OP.example("float64", "cpu", 1)
    whole = OP.reference(*call.tensors, *call.scalars)
    monkeypatch.setattr(attention, "BLOCK", 100)
    torch.testing.assert_close(OP.reference(*call.tensors, *call.scalars), whole, rtol=1e-13, atol=1e-13)


def test_a_query_that_sees_nothing_gives_zeros() -> None:
    q, k, v, _ = OP.example("float64", "cpu", 1).tensors
    blind = torch.ones(64, 64, dtype=torch.bool)
    blind[3] = False
    y = OP.reference(q, k, v, blind, 0.125, False, None, None)
    assert not y[:, :, 3].any()
    assert y[:, :, 4].all()


@pytest.mark.parametrize("name", ["sdpa", "sdpa_math", "sdpa_flash", "maths"])
def test_alternatives_trace_into_one_graph(name: str) -> None:
    call = OP.example("float32", "cpu", 1)
    compiled = torch.compile(OP.alternatives[name], fullgraph=True, dynamic=False, backend="eager")
    found = compiled(*call.tensors, *call.scalars)
    torch.testing.assert_close(found, OP.reference(*call.tensors, *call.scalars), rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()


def test_an_alternative_without_a_softcap_says_so() -> None:
    call = OP.example("float32", "cpu", 1)
    with pytest.raises(NotImplementedError, match="softcap"):
        OP.alternatives["sdpa"](*call.tensors, 0.125, True, 50.0, None)


# ---- Calls


def test_dropout_in_training_is_left_to_the_models_own_code() -> None:
    model = copy.deepcopy(families.model_of("llama", attention_dropout=0.5))
    asked = Asked()
    arm = patched(model, asked)
    families.run("llama", arm)
    assert len(asked.calls) == 2
    families.run("llama", arm.train())
    assert len(asked.calls) == 2


def test_attention_sinks_and_asked_for_weights_are_left_to_the_models_own_code() -> None:
    site = OP.find_sites(families.model_of("llama"))[0]
    asked = Asked()
    attend = attention._adapted(site.module, asked)
    q, k, v, _ = OP.example("float32", "cpu", 1).tensors
    q, k, v = q[:, :4], k, v
    own, _ = attend(site.module, q, k, v, None, scaling=0.125, output_attentions=True)
    attend(site.module, q, k, v, None, scaling=0.125, s_aux=torch.zeros(4))
    assert asked.calls == []
    mine, _ = attend(site.module, q, k, v, None, scaling=0.125)
    assert len(asked.calls) == 1
    torch.testing.assert_close(mine, own, rtol=1e-4, atol=1e-5)


def test_a_caller_may_say_that_a_causal_module_is_not_causal_here() -> None:
    site = OP.find_sites(families.model_of("llama"))[0]
    asked = Asked()
    q, k, v, _ = OP.example("float32", "cpu", 1).tensors
    attention._adapted(site.module, asked)(site.module, q, k, v, None, scaling=0.125, is_causal=False)
    assert asked.calls[0].scalars == (0.125, False, None, None)


@pytest.mark.parametrize("length", [5, 1])
def test_with_a_static_cache_the_reference_is_the_model(length: int) -> None:
    model: Any = families.model_of("llama")
    asked = Asked()
    arm: Any = patched(model, asked)
    ids = torch.arange(3, 3 + length)[None]
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"

    def logits(of: Any) -> list[Tensor]:
        cache = StaticCache(config=model.config, max_cache_len=16)
        with torch.no_grad():
            return [of(input_ids=part, use_cache=True, **{name: cache}).logits for part in (ids, ids[:, :1] + 9)]

    for mine, own in zip(logits(arm), logits(model), strict=True):
        torch.testing.assert_close(mine, own, rtol=1e-4, atol=1e-4)
    assert len(asked.calls) == 4
