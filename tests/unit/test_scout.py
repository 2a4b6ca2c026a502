"""A patch is run once: what it did is kept to one copy, bit for bit, and everything else is as it was."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.llama import modeling_llama

from e2e.errors import CandidateError
from e2e.scout import Replica, Shared, replica_of
from tests import tiny
from tests.patches import llama as patches

torch.set_num_threads(1)

IDS = torch.arange(24).reshape(2, 12)
Patch = Callable[..., Any]
STYLES = [patches.on_model, patches.before_model, patches.on_classes, patches.with_options]
LAYERS = [f"model.layers.{number}" for number in range(tiny.LAYERS)]
NORMS = {f"{layer}.{name}" for layer in LAYERS for name in ("input_layernorm", "post_attention_layernorm")}
NORMS |= {"model.norm"}
MLPS = {f"{layer}.mlp" for layer in LAYERS}
ATTENTIONS = {f"{layer}.self_attn" for layer in LAYERS}


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return tiny.llama().requires_grad_(False)


def step(model: nn.Module) -> tuple[Tensor, ...]:
    with torch.no_grad():
        found = model(input_ids=IDS, use_cache=False)
    return (found.logits,)


def logits(model: nn.Module) -> Tensor:
    return step(model)[0]


def spaces(model: nn.Module) -> dict[Any, dict[str, Any]]:
    """`vars()` of the classes of all modules and of the files they are written in."""
    kinds = {kind for module in model.modules() for kind in type(module).__mro__ if kind is not object}
    return {space: dict(vars(space)) for space in (*kinds, *(sys.modules[kind.__module__] for kind in kinds))}


@contextlib.contextmanager
def put_back_afterwards(model: nn.Module) -> Iterator[None]:
    before = spaces(model)
    try:
        yield
    finally:
        for space, names in before.items():
            for name, value in names.items():
                if vars(space)[name] is not value:
                    setattr(space, name, value)


def really(entry: Patch, model: nn.Module) -> Tensor:
    """What a user of the patch gets: the patch applied to a model of its own, and nothing undone before the step."""
    with put_back_afterwards(model):
        if entry is patches.before_model:
            entry()
            own = tiny.llama()
        else:
            own = tiny.llama()
            entry(model=own)
        return logits(own.requires_grad_(False))


# ---- What the copy does


@pytest.mark.parametrize("entry", STYLES)
def test_the_copy_equals_the_really_patched_model_bit_for_bit(entry: Patch, model: nn.Module) -> None:
    expected, own = really(entry, model), logits(model)
    assert not torch.equal(expected, own), "else the comparison could not fail"
    torch.testing.assert_close(expected, own)
    assert torch.equal(expected, logits(replica_of(entry, model, step).model))
    assert torch.equal(expected, logits(replica_of(entry, model).into(())))


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (patches.on_model, NORMS | MLPS | ATTENTIONS),
        (patches.before_model, NORMS | MLPS | ATTENTIONS),
        (patches.on_classes, NORMS | ATTENTIONS),
        (patches.wrong, NORMS),
        (patches.nothing, set()),
    ],
)
def test_its_sites_are_the_modules_whose_behaviour_it_touches(
    entry: Patch, expected: set[str], model: nn.Module
) -> None:
    assert expected == set(replica_of(entry, model).fqns)


def test_every_tree_of_the_copy_is_its_own_over_the_same_weights(model: nn.Module) -> None:
    replica = replica_of(patches.on_model, model)
    one, other = replica.into(()), replica.into(())
    for tree in (one, other):
        assert {id(p) for p in model.parameters()} == {id(p) for p in tree.parameters()}
        own = set(tree.modules())
        bound = [vars(module)["forward"].__self__ for module in own if "forward" in vars(module)]
        assert len(NORMS | MLPS) == len(bound)
        assert all(owner in own for owner in bound), "a method reaches another arm's modules"
    assert not set(one.modules()) & set(other.modules())


@pytest.mark.parametrize("entry", STYLES)
def test_the_copy_compiles_in_one_piece_as_a_user_would(entry: Patch, model: nn.Module) -> None:
    tree = replica_of(entry, model).into(())
    compiled = torch.compile(tree, fullgraph=True, dynamic=False, backend="eager")
    baseline = torch.compile(model, fullgraph=True, dynamic=False, backend="eager")
    assert torch.equal(logits(tree), logits(compiled))
    assert torch.equal(logits(model), logits(baseline))


# ---- What stays as it was


@pytest.mark.parametrize("entry", [*STYLES, patches.raises, patches.needs_more, patches.everywhere])
def test_classes_and_files_are_exactly_as_before(entry: Patch, model: nn.Module) -> None:
    before, own, silu = spaces(model), logits(model), torch.nn.functional.silu
    instances = {name: dict(vars(module)) for name, module in model.named_modules()}
    with contextlib.suppress(CandidateError, ValueError):
        replica_of(entry, model, step)
    assert before == spaces(model)
    assert silu is torch.nn.functional.silu
    assert instances == {name: dict(vars(module)) for name, module in model.named_modules()}
    assert torch.equal(own, logits(model))


def test_names_that_came_go_and_names_that_went_come_back(model: nn.Module) -> None:
    before = spaces(model)
    shared = Shared(model)
    kept = modeling_llama.LlamaMLP.forward
    modeling_llama.LlamaMLP.flavour = "new"  # type: ignore[attr-defined]
    modeling_llama.another_name = 1  # type: ignore[attr-defined]
    del modeling_llama.LlamaMLP.forward
    assert {"flavour", "forward"} == set(shared.changes()[modeling_llama.LlamaMLP])
    shared.restore()
    assert before == spaces(model)
    assert kept is modeling_llama.LlamaMLP.forward


# ---- What is refused


def test_a_patch_that_changes_a_function_found_by_its_path_is_refused_by_that_name(model: nn.Module) -> None:
    with pytest.raises(CandidateError, match=r"cannot be kept to one copy.*torch\.nn\.functional\.silu") as caught:
        replica_of(patches.everywhere, model, step)
    assert "bind_failed" == caught.value.code


def test_a_patch_that_writes_into_the_weights_is_refused() -> None:
    with pytest.raises(CandidateError, match="cannot be put back"):
        replica_of(patches.in_weights, tiny.llama().requires_grad_(False), step)


def test_a_patch_whose_outputs_do_not_repeat_is_not_accused_of_it(model: nn.Module) -> None:
    def shaken(net: Any) -> None:
        net.model.norm.register_forward_hook(lambda module, args, output: output + torch.rand_like(output))

    assert ("model.norm",) == replica_of(shaken, model, step).fqns


def test_what_it_raises_is_its_own(model: nn.Module) -> None:
    with pytest.raises(ValueError, match="not supported"):
        replica_of(patches.raises, model)


def test_arguments_that_nobody_can_give_are_named(model: nn.Module) -> None:
    with pytest.raises(CandidateError, match="requires the arguments model, level"):
        replica_of(patches.needs_more, model)


def test_a_model_without_a_config_cannot_be_built_after_the_patch() -> None:
    own = modeling_llama.LlamaMLP.forward
    with pytest.raises(CandidateError, match="Linear has no config"):
        replica_of(patches.before_model, nn.Linear(2, 2))
    assert own is modeling_llama.LlamaMLP.forward, "also what no module of the model comes from is put back"


def test_a_class_with_other_weights_cannot_take_those_of_the_model(model: nn.Module) -> None:
    def with_bias() -> None:
        modeling_llama.LlamaRMSNorm = BiasedNorm  # type: ignore[misc, assignment]

    class BiasedNorm(patches.FusedNorm):
        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named)
            self.bias = nn.Parameter(torch.zeros(1))

    with pytest.raises(CandidateError, match=r"other weights: .*bias"):
        replica_of(with_bias, model)


# ---- Other things that patches do


def test_a_module_put_in_anothers_place_is_a_site(model: nn.Module) -> None:
    class Doubled(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Any:
            return 2 * self.inner(x)

    def wrap(net: Any) -> None:
        net.model.layers[0].mlp = Doubled(net.model.layers[0].mlp)

    replica = replica_of(wrap, model, step)
    assert ("model.layers.0.mlp",) == replica.fqns
    x = torch.randn(2, tiny.HIDDEN)
    assert torch.equal(2 * model.get_submodule("model.layers.0.mlp")(x), replica(x, "model.layers.0.mlp"))


def test_the_model_that_it_returns_is_the_one_that_counts(model: nn.Module) -> None:
    other = tiny.llama(rms_norm_eps=0.5).requires_grad_(False)
    assert torch.equal(logits(other), logits(replica_of(lambda net: other, model).model))


def test_a_hook_is_a_change(model: nn.Module) -> None:
    def hook(net: Any) -> None:
        net.model.norm.register_forward_hook(lambda module, args, output: output * 2)

    replica = replica_of(hook, model, step)
    assert ("model.norm",) == replica.fqns
    assert torch.allclose(2 * logits(model), logits(replica.model))


def test_a_replica_is_called_like_a_kernel_of_the_op(model: nn.Module) -> None:
    replica = replica_of(patches.on_model, model)
    assert isinstance(replica, Replica)
    norm: Any = model.get_submodule("model.norm")
    x = torch.randn(3, tiny.HIDDEN)
    assert torch.equal(patches.fused_norm(norm, x), replica(x, "model.norm"))
