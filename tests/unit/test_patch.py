"""A patch changes one arm's own modules, nothing else, and leaves no trace when it is undone."""

from __future__ import annotations

import gc
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from e2e import registry
from e2e.ops.rms_norm import RmsNorm
from e2e.patch import Patch, copy_sharing_weights, observed, sites_in
from e2e.protocols import OpCall, Site
from tests import tiny

torch.set_num_threads(1)

OP: RmsNorm = registry.load("ops", "rms_norm")
IDS = torch.arange(12).reshape(2, 6)


@pytest.fixture(scope="module")
def shared_model() -> nn.Module:
    return tiny.llama().requires_grad_(False)


@pytest.fixture
def model(shared_model: nn.Module) -> nn.Module:
    return shared_model


def ones(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """A kernel that anyone would notice."""
    return torch.ones_like(x)


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(input_ids=IDS, use_cache=False).logits
    return found


def states(model: nn.Module) -> dict[str, dict[str, Any]]:
    """`vars()` of every module, with what their dictionaries hold."""
    return {
        name: {key: dict(value) if isinstance(value, dict) else value for key, value in vars(module).items()}
        for name, module in model.named_modules()
    }


def class_of(model: nn.Module) -> dict[str, Any]:
    owners = {type(module) for module in model.modules()}
    return {f"{owner.__name__}.{name}": value for owner in owners for name, value in vars(owner).items()}


# ---- Undo


def test_after_undo_the_state_of_every_module_is_what_it_was(model: nn.Module) -> None:
    before = states(model)
    patch = Patch(OP, OP.find_sites(model), lambda site: ones)
    assert states(model) != before
    patch.undo()
    assert states(model) == before


def test_after_undo_the_outputs_are_what_they_were(model: nn.Module) -> None:
    before = logits(model)
    patch = Patch(OP, OP.find_sites(model), lambda site: ones)
    assert not torch.equal(before, logits(model))
    patch.undo()
    assert torch.equal(before, logits(model))


def test_undo_twice_is_undo_once(model: nn.Module) -> None:
    before = states(model)
    patch = Patch(OP, OP.find_sites(model), lambda site: ones)
    patch.undo()
    patch.undo()
    assert states(model) == before


def test_a_patch_over_a_patch_is_refused_and_keeps_the_first(model: nn.Module) -> None:
    sites = OP.find_sites(model)
    first = Patch(OP, sites[2:3], lambda site: ones)
    patched = states(model)
    with pytest.raises(RuntimeError, match="already has a forward of its own"):
        Patch(OP, sites, lambda site: ones)
    assert states(model) == patched, "the sites patched before the conflict were put back"
    first.undo()


def test_a_patch_whose_function_cannot_be_made_leaves_nothing(model: nn.Module) -> None:
    before = states(model)

    def refuse_third(site: Site) -> Callable[..., Any]:
        if site.fqn == OP.find_sites(model)[2].fqn:
            raise ValueError("no kernel for this site")
        return ones

    with pytest.raises(ValueError, match="no kernel"):
        Patch(OP, OP.find_sites(model), refuse_third)
    assert states(model) == before


# ---- Reach


def test_a_patch_touches_no_class_and_no_global(model: nn.Module) -> None:
    import sys

    modeling = vars(sys.modules[type(model).__module__])
    before, globals_before = class_of(model), dict(modeling)
    patch = Patch(OP, OP.find_sites(model), lambda site: ones)
    assert class_of(model) == before
    assert modeling == globals_before
    patch.undo()


def test_another_arm_never_sees_the_candidate(model: nn.Module) -> None:
    original = logits(model)
    one, other = copy_sharing_weights(model), copy_sharing_weights(model)
    before = states(other)
    Patch(OP, sites_in(one, OP.find_sites(model)), lambda site: ones)
    assert not torch.equal(original, logits(one))
    assert torch.equal(original, logits(other))
    assert torch.equal(original, logits(model))
    assert states(other) == before


def test_no_bound_method_of_an_arm_reaches_another_arm(model: nn.Module) -> None:
    """A deepcopy may carry an instance's `forward` along, bound to the module it was copied from."""
    arms = [copy_sharing_weights(model) for _ in range(2)]
    Patch(OP, sites_in(arms[0], OP.find_sites(model)), lambda site: ones)
    arms.append(copy_sharing_weights(model))
    for arm in arms:
        own = {id(module) for module in arm.modules()}
        for module in arm.modules():
            bound = [value for value in vars(module).values() if isinstance(value, types.MethodType)]
            assert all(id(method.__self__) in own for method in bound)


def test_only_the_sites_that_were_given_are_patched(model: nn.Module) -> None:
    sites = OP.find_sites(model)
    patch = Patch(OP, sites[:2], lambda site: ones)
    assert ["forward" in vars(site.module) for site in sites] == [True, True, False, False, False]
    patch.undo()


def test_every_site_gets_a_function_of_its_own(model: nn.Module) -> None:
    asked: list[str] = []
    sites = OP.find_sites(model)

    def function_for(site: Site) -> Callable[..., Any]:
        asked.append(site.fqn)
        return ones

    Patch(OP, sites, function_for).undo()
    assert [site.fqn for site in sites] == asked
    assert len(set(asked)) == tiny.SITES


def test_no_function_means_the_modules_own_maths(model: nn.Module) -> None:
    """The sham: patched all the same, and bit for bit the model as shipped."""
    before = logits(model)
    patch = Patch(OP, OP.find_sites(model), lambda site: None)
    assert all("forward" in vars(site.module) for site in OP.find_sites(model))
    assert torch.equal(before, logits(model))
    patch.undo()


# ---- Shared weights


def test_parameters_and_buffers_of_a_copy_are_the_same_objects(model: nn.Module) -> None:
    copied = copy_sharing_weights(model)
    assert [id(p) for p in model.parameters()] == [id(p) for p in copied.parameters()]
    assert [id(b) for b in model.buffers()] == [id(b) for b in copied.buffers()]
    assert len(list(model.buffers())) > 0


def test_modules_and_config_of_a_copy_are_its_own(model: nn.Module) -> None:
    copied = copy_sharing_weights(model)
    assert not {id(module) for module in model.modules()} & {id(module) for module in copied.modules()}
    assert copied.config is not model.config
    assert copied.config.to_dict() == model.config.to_dict()  # type: ignore[operator, union-attr]


def test_tied_weights_stay_tied_in_a_copy() -> None:
    model: Any = tiny.llama(tie_word_embeddings=True)
    copied: Any = copy_sharing_weights(model)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert copied.lm_head.weight is copied.model.embed_tokens.weight is model.lm_head.weight


def test_a_copy_computes_the_same_bits(model: nn.Module) -> None:
    assert torch.equal(logits(model), logits(copy_sharing_weights(model)))


def test_a_copy_that_is_dropped_takes_nothing_with_it(model: nn.Module) -> None:
    before = logits(model)
    copied = copy_sharing_weights(model)
    Patch(OP, sites_in(copied, OP.find_sites(model)), lambda site: ones)
    del copied
    gc.collect()
    assert torch.equal(before, logits(model))


def test_sites_in_a_copy_are_the_same_places_in_its_own_modules(model: nn.Module) -> None:
    copied = copy_sharing_weights(model)
    sites = OP.find_sites(model)
    moved = sites_in(copied, sites)
    assert [site.fqn for site in moved] == [site.fqn for site in sites]
    assert all(site.module is copied.get_submodule(site.fqn) for site in moved)
    assert [site.scalars for site in moved] == [site.scalars for site in sites]


# ---- Observed


def test_observed_sees_every_call_with_arguments_and_output(model: nn.Module) -> None:
    seen: list[tuple[str, tuple[int, ...], Any, tuple[int, ...]]] = []
    sites = OP.find_sites(model)

    def see(site: Site, call: OpCall, output: Tensor) -> None:
        seen.append((site.fqn, tuple(call.tensors[0].shape), call.scalars, tuple(output.shape)))

    with observed(OP, sites, see):
        logits(model)
    shape = (2, 6, tiny.HIDDEN)
    assert sorted(seen) == sorted((site.fqn, shape, (1e-5,), shape) for site in sites)


def test_observing_leaves_nothing_behind_even_after_an_error(model: nn.Module) -> None:
    before = states(model)
    with pytest.raises(ZeroDivisionError), observed(OP, OP.find_sites(model), lambda *_: 1 / 0):
        logits(model)
    assert states(model) == before
