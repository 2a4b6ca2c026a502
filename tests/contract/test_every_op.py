"""What every op in `e2e/ops/` owes: exact maths, honest metadata, hard inputs, and mutants that cannot pass."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import library as lib

from e2e import registry
from e2e.binding import registered
from e2e.numerics.compare import judge_op
from e2e.patch import Patch, copy_sharing_weights, observed, sites_in
from e2e.protocols import Op, OpCall, Site
from tests import tiny

torch.set_num_threads(1)

IN_LLAMA = {"module": ["module:LlamaRMSNorm", "module:LlamaMLP"]}
"""Names under which an op occurs in the tiny Llama, where its file's name is not one of them."""
NAMES = [name for stem in registry.names("ops") for name in IN_LLAMA.get(stem, [stem])]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
RATIO = 2.0
IDS = torch.arange(14).reshape(2, 7)


@dataclass(frozen=True)
class Sample:
    """An op at its sites in a real model."""

    op: Op
    model: nn.Module
    sites: list[Site]
    captured: list[tuple[Site, OpCall, Tensor]]
    """Site, call, and what the site's own module returned."""

    @property
    def calls(self) -> list[OpCall]:
        """One captured call, then every edge."""
        _, first, _ = self.captured[0]
        return [first, *(call for _, call in self.op.edge_calls(first, 1))]

    def baseline(self, call: OpCall) -> Tensor:
        """What the first site's module makes of any call."""
        site = self.captured[0][0]
        module = copy.deepcopy(site.module)
        own = self.op.call_of(Site(site.fqn, module, site.scalars), call.tensors[:1], {})
        for mine, wanted in zip(own.tensors[1:], call.tensors[1:], strict=True):
            mine.data = wanted
        with torch.no_grad():
            result: Tensor = module(call.tensors[0])
        return result


@cache
def sample(name: str, dtype: torch.dtype) -> Sample:
    op = registry.load_op(name)
    model = tiny.llama().requires_grad_(False).to(dtype)
    sites = op.find_sites(model)
    assert sites, f"{name} has no site in the tiny Llama: give it a model here"
    captured: list[tuple[Site, OpCall, Tensor]] = []

    def see(site: Site, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        captured.append((site, op.call_of(site, args, kwargs), output))

    with torch.no_grad(), observed(sites, see):
        model(input_ids=IDS, use_cache=False)
    return Sample(op, model, sites, captured)


def exact(op: Op, call: OpCall) -> Tensor:
    result: Tensor = op.reference(*(tensor.double() for tensor in call.tensors), *call.scalars)
    return result


def verdict(found: Sample, call: OpCall, value: Tensor) -> object:
    return judge_op(value, found.baseline(call), exact(found.op, call), ratio=RATIO)[0]


def geometry(tensor: Tensor) -> tuple[object, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype


every_op = pytest.mark.parametrize("name", NAMES)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


# ---- Maths


@every_op
def test_the_reference_is_what_the_models_own_module_computes(name: str) -> None:
    found = sample(name, torch.float32)
    for _, call, output in found.captured:
        torch.testing.assert_close(exact(found.op, call).float(), output, rtol=1e-5, atol=1e-5)


@every_op
def test_in_float64_every_alternative_agrees_with_the_reference(name: str) -> None:
    op, calls = sample(name, torch.float32).op, sample(name, torch.float32).calls
    for function in op.alternatives.values():
        for call in calls:
            doubles = [tensor.double() for tensor in call.tensors]
            torch.testing.assert_close(function(*doubles, *call.scalars), exact(op, call), rtol=1e-11, atol=1e-11)


@every_op
@every_dtype
def test_alternatives_pass_the_check_that_candidates_must_pass(name: str, dtype: torch.dtype) -> None:
    found = sample(name, dtype)
    for function in found.op.alternatives.values():
        for call in found.calls:
            assert verdict(found, call, function(*call.tensors, *call.scalars)) is None


@every_op
@every_dtype
def test_exact_maths_rounded_once_is_never_accused(name: str, dtype: torch.dtype) -> None:
    found = sample(name, dtype)
    for call in found.calls:
        assert verdict(found, call, exact(found.op, call).to(dtype)) is None


@every_op
@every_dtype
def test_every_mutant_is_rejected(name: str, dtype: torch.dtype) -> None:
    found = sample(name, dtype)
    survivors = [
        mutant
        for mutant, function in found.op.mutants().items()
        if all(verdict(found, call, function(*call.tensors, *call.scalars)) is None for call in found.calls)
    ]
    assert len(found.op.mutants()) >= 4
    assert survivors == []


@every_op
def test_no_input_is_changed_by_anything_the_op_offers(name: str) -> None:
    found = sample(name, torch.float32)
    functions = [found.op.reference, *found.op.alternatives.values(), *found.op.mutants().values()]
    for call in found.calls:
        before = [tensor.clone() for tensor in call.tensors]
        for function in functions:
            function(*call.tensors, *call.scalars)
        assert all(torch.equal(a, b) for a, b in zip(before, call.tensors, strict=True))


# ---- Metadata


@every_op
@every_dtype
def test_allocate_and_fake_have_the_outputs_shape_strides_and_dtype(name: str, dtype: torch.dtype) -> None:
    found = sample(name, dtype)
    for call in found.calls:
        real = found.baseline(call)
        assert geometry(found.op.allocate(*call.tensors, *call.scalars)) == geometry(real)
        metas = [tensor.to("meta") for tensor in call.tensors]
        assert geometry(found.op.fake(*metas, *call.scalars)) == geometry(real)


@pytest.mark.parametrize("name", [name for name in NAMES if ":" not in name])  # a module may do as it likes
def test_strides_of_an_input_that_is_not_contiguous_are_followed(name: str) -> None:
    found = sample(name, torch.float32)
    x, *rest = found.captured[0][1].tensors
    call = OpCall((x.transpose(0, 1), *rest), found.captured[0][1].scalars)
    real = found.op.reference(*call.tensors, *call.scalars)
    assert geometry(found.op.allocate(*call.tensors, *call.scalars)) == geometry(real)


@every_op
def test_the_schema_is_one_that_torch_library_reads(name: str) -> None:
    op = sample(name, torch.float32).op
    parsed = torch._C.parse_schema(f"probe{op.schema}")
    names = [argument.name for argument in parsed.arguments]
    assert names == [text.replace(".", "_") for text in (*op.tensor_names, *op.scalar_names)]
    kinds = [str(argument.type) for argument in parsed.arguments]
    assert kinds[: len(op.tensor_names)] == ["Tensor"] * len(op.tensor_names)
    assert set(kinds[len(op.tensor_names) :]) <= {"float", "int", "bool", "number"}
    assert [str(item.type) for item in parsed.returns] == ["Tensor"]


@every_op
def test_a_kernel_of_this_op_passes_torchs_own_check_of_a_custom_op(name: str) -> None:
    found = sample(name, torch.float32)
    call = found.captured[0][1]
    function = registered(
        found.op,
        lambda *args: found.op.reference(*args).clone(),
        sha256=f"check{NAMES.index(name)}",
        device="cpu",
    )
    lib.opcheck(function, (*call.tensors, *call.scalars), test_utils=("test_schema", "test_faketensor"))


@every_op
def test_dimensions_are_named_whole_numbers_and_a_dtype(name: str) -> None:
    found = sample(name, torch.bfloat16)
    for call in found.calls:
        dims = found.op.dims(call)
        assert dims["dtype"] == "bfloat16"
        assert all(key.isidentifier() for key in dims)
        assert all(type(value) is int and value >= 0 for key, value in dims.items() if key != "dtype")
        x = call.tensors[0]
        assert dims["rows"] == math.prod(x.shape[:-1]), "launch grids are written in it"


# ---- Sites


@every_op
def test_a_model_without_the_op_has_no_sites(name: str) -> None:
    assert sample(name, torch.float32).op.__class__().find_sites(nn.Linear(2, 2)) == []


@every_op
def test_every_site_names_a_module_and_every_scalar_it_needs(name: str) -> None:
    found = sample(name, torch.float32)
    for site in found.sites:
        assert site.module is found.model.get_submodule(site.fqn)
        assert site.incompatible is None
        assert set(site.scalars) == set(found.op.scalar_names)


@every_op
def test_a_call_names_its_tensors_and_scalars_in_order(name: str) -> None:
    found = sample(name, torch.float32)
    for site, call, _ in found.captured:
        assert len(call.tensors) == len(found.op.tensor_names)
        assert call.scalars == tuple(site.scalars[scalar] for scalar in found.op.scalar_names)
        assert all(type(scalar) in (float, int, bool) for scalar in call.scalars)


@every_op
def test_arguments_by_name_mean_the_same_call(name: str) -> None:
    found = sample(name, torch.float32)
    site, call, _ = found.captured[0]
    again = found.op.call_of(site, (), {"hidden_states": call.tensors[0]})
    assert all(a is b for a, b in zip(call.tensors, again.tensors, strict=True))


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(input_ids=IDS, use_cache=False).logits
    return found


@every_op
def test_at_its_sites_the_reference_is_the_model(name: str) -> None:
    found = sample(name, torch.float32)
    arm = copy_sharing_weights(found.model)
    asked: list[int] = []

    def counted(*args: Any) -> Any:
        asked.append(len(args))
        return found.op.reference(*args)

    Patch(found.op, sites_in(arm, found.sites), lambda site: counted)
    torch.testing.assert_close(logits(arm), logits(found.model), rtol=1e-4, atol=1e-4)
    assert asked == [len(found.op.tensor_names) + len(found.op.scalar_names)] * len(found.captured)


@every_op
def test_patched_sites_trace_into_one_graph(name: str) -> None:
    found = sample(name, torch.float32)
    arm = copy_sharing_weights(found.model)
    function: Callable[..., Any] = registered(
        found.op,
        lambda *args: found.op.reference(*args).clone(),
        sha256=f"trace{NAMES.index(name)}",
        device="cpu",
    )
    Patch(found.op, sites_in(arm, found.sites), lambda site: function)
    counted: list[int] = []

    def backend(graph: Any, _: Any) -> Any:
        counted.append(sum(1 for node in graph.graph.nodes if node.target is function))
        return graph.forward

    compiled = torch.compile(arm, fullgraph=True, dynamic=False, backend=backend)
    torch.testing.assert_close(logits(compiled), logits(found.model), rtol=1e-4, atol=1e-4)
    assert counted == [len(found.sites)]
    torch._dynamo.reset()


# ---- Edge inputs


@every_op
def test_edge_inputs_have_names_of_their_own_and_the_calls_dtype(name: str) -> None:
    found = sample(name, torch.bfloat16)
    call = found.captured[0][1]
    edges = list(found.op.edge_calls(call, 1))
    labels = [label for label, _ in edges]
    assert len(set(labels)) == len(labels) >= 3
    assert "captured" not in labels
    for _, edge in edges:
        assert [tensor.dtype for tensor in edge.tensors] == [tensor.dtype for tensor in call.tensors]
        assert all(bool(torch.isfinite(tensor).all()) for tensor in edge.tensors)
        assert edge.scalars == call.scalars


@every_op
def test_edge_inputs_follow_the_seed(name: str) -> None:
    """Known values could be recognised; the same seed must give two processes the same ones."""
    found = sample(name, torch.float32)
    call = found.captured[0][1]
    first, again, other = ([edge.tensors[0] for _, edge in found.op.edge_calls(call, seed)] for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(first, other, strict=True))
