"""What every op in `e2e/ops/` owes: exact maths, honest metadata, hard inputs, and mutants that cannot pass."""

from __future__ import annotations

import copy
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
from e2e.numerics.compare import exactly, judge_outputs, layout_of, wider
from e2e.operators import interceptions_in, replace
from e2e.patch import Patch, copy_sharing_weights, observed, sites_in
from e2e.protocols import Op, OpCall, Site, outputs_of
from tests import families

torch.set_num_threads(1)

HOMES: dict[str, tuple[str, dict[str, Any]]] = {
    "gelu": ("bert", {}),
    "gelu_mul": ("gemma", {}),
    "layer_norm": ("gpt_neox", {}),
    "moe_experts": ("mixtral", {}),
    "rope:interleaved": ("cohere", {}),
    "softmax": ("gpt2", {"attn_implementation": "eager"}),
}
"""Models that ops which do not occur in a Llama are shown in: family and changes of its config."""
LEARNT = {"cross_entropy", "linear_cross_entropy"}
"""Ops of a training step: they occur where the model is given labels."""
NAMED: dict[str, list[str]] = {
    "adamw": [],
    "aten": ["aten:silu.default", "aten:mul.Tensor"],
    "module": ["module:LlamaRMSNorm", "module:LlamaMLP"],
    "patch": [],
    "rope": ["rope", "rope:interleaved"],
}
"""Names of an op whose file's name is not one; a patch says itself where it goes, see test_ops_patch.py. An optimizer
works in place on lists, after the model: test_ops_adamw.py has it keep the same promises.
"""
UNFIT = {"aten:mul.Tensor": "model.rotary_emb"}
"""Sites that the survey of a run leaves out, by what they do: this one multiplies by a number."""
NAMES = [name for stem in registry.names("ops") for name in NAMED.get(stem, [stem])]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
RATIO = 2.0


@dataclass(frozen=True)
class Sample:
    """An op at its sites in a real model."""

    op: Op
    family: str
    labels: bool
    model: nn.Module
    sites: list[Site]
    captured: list[tuple[Site, OpCall, Any]]
    """Site, call, and what the site's own code returned."""

    def run(self, model: nn.Module) -> Tensor:
        """One step's first output: logits, or with labels the loss."""
        return families.run(self.family, model, labels=self.labels)

    @property
    def calls(self) -> list[OpCall]:
        """One captured call, then every edge."""
        _, first, _ = self.captured[0]
        return [first, *(call for _, call in self.op.edge_calls(first, 1))]

    def baseline(self, call: OpCall) -> Any:
        """What the first site's own code makes of any call."""
        with torch.no_grad():
            return self.op.own(self.captured[0][0])(*call.tensors, *call.scalars)


@cache
def sample(name: str, dtype: torch.dtype) -> Sample:
    op = registry.load_op(name)
    family, changes = HOMES.get(name) or HOMES.get(name.partition(":")[0], ("llama", {}))
    model = copy.deepcopy(families.model_of(family, **changes)).to(dtype)
    sites = [site for site in op.find_sites(model) if site.incompatible is None and site.fqn != UNFIT.get(name)]
    assert sites, f"{name} has no site in the tiny {family}: name its home above"
    captured: list[tuple[Site, OpCall, Any]] = []
    with observed(op, sites, lambda site, call, output: captured.append((site, call, output))):
        families.run(family, model, labels=name in LEARNT)
    return Sample(op, family, name in LEARNT, model, sites, captured)


def exact(op: Op, call: OpCall) -> tuple[Tensor, ...]:
    return outputs_of(exactly(op, call))


def verdict(found: Sample, call: OpCall, value: Any) -> object:
    return judge_outputs(value, found.baseline(call), exact(found.op, call), ratio=RATIO)[0]


def geometry(value: Any) -> list[tuple[object, ...]]:
    return [(tuple(tensor.shape), layout_of(tensor), tensor.dtype) for tensor in outputs_of(value)]


def tensors_of(call: OpCall) -> list[Tensor]:
    return [tensor for tensor in call.tensors if tensor is not None]


def close(value: Any, wanted: Any, *, tolerance: float) -> None:
    for mine, theirs in zip(outputs_of(value), outputs_of(wanted), strict=True):
        torch.testing.assert_close(mine, theirs.to(mine.dtype), rtol=tolerance, atol=tolerance)


def answer(function: Callable[..., Any], call: OpCall) -> Any:
    """What an alternative makes of a call; None where it, or torch on this device, says that it takes no such call."""
    try:
        return function(*call.tensors, *call.scalars)
    except NotImplementedError:
        return None
    except RuntimeError as error:
        if not any(text in str(error) for text in ("No available kernel", "No viable backend")):
            raise
        return None


def opaque(op: Op, sha256: str) -> Callable[..., Any]:
    """A right kernel as an op that a compiler cannot look into."""

    def kernel(*args: Any) -> Any:
        made = zip(outputs_of(op.allocate(*args)), outputs_of(op.reference(*args)), strict=True)
        outputs = tuple(out.copy_(item) for out, item in made)
        return outputs if len(outputs) > 1 else outputs[0]

    found: Callable[..., Any] = registered(op, kernel, sha256=sha256, device="cpu")
    return found


every_op = pytest.mark.parametrize("name", NAMES)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


# ---- Maths


@every_op
def test_the_reference_is_what_the_models_own_code_computes(name: str) -> None:
    found = sample(name, torch.float32)
    for _, call, output in found.captured:
        close(output, exact(found.op, call), tolerance=1e-5)


@every_op
def test_in_float64_every_alternative_agrees_with_the_reference(name: str) -> None:
    op, calls = sample(name, torch.float32).op, sample(name, torch.float32).calls
    for function in op.alternatives.values():
        for call in calls:
            value = answer(function, OpCall(tuple(wider(tensor) for tensor in call.tensors), call.scalars))
            if value is not None:
                close(value, exact(op, call), tolerance=1e-11)


@every_op
@every_dtype
def test_alternatives_pass_the_check_that_candidates_must_pass(name: str, dtype: torch.dtype) -> None:
    found = sample(name, dtype)
    for label, function in found.op.alternatives.items():
        for call in found.calls:
            value = answer(function, call)
            assert value is None or verdict(found, call, value) is None, label


@every_op
@every_dtype
def test_every_call_is_answered_by_some_alternative_if_there_are_any(name: str, dtype: torch.dtype) -> None:
    found = sample(name, dtype)
    for call in found.calls if found.op.alternatives else []:
        assert any(answer(function, call) is not None for function in found.op.alternatives.values())


@every_op
@every_dtype
def test_exact_maths_rounded_once_is_never_accused(name: str, dtype: torch.dtype) -> None:
    found = sample(name, dtype)
    for call in found.calls:
        rounded = [
            item.to(own.dtype)
            for item, own in zip(exact(found.op, call), outputs_of(found.baseline(call)), strict=True)
        ]
        assert verdict(found, call, rounded) is None


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
        before = [tensor.clone() for tensor in tensors_of(call)]
        for function in functions:
            answer(function, call)
        assert all(torch.equal(a, b) for a, b in zip(before, tensors_of(call), strict=True))


# ---- Metadata


@every_op
@every_dtype
def test_what_is_allocated_has_the_outputs_shape_strides_and_dtype(name: str, dtype: torch.dtype) -> None:
    found = sample(name, dtype)
    for call in found.calls:
        real = found.baseline(call)
        assert geometry(found.op.allocate(*call.tensors, *call.scalars)) == geometry(real)
        metas = [None if tensor is None else tensor.to("meta") for tensor in call.tensors]
        assert geometry(found.op.allocate(*metas, *call.scalars)) == geometry(real)


@every_op
def test_the_schema_is_one_that_torch_library_reads(name: str) -> None:
    op = sample(name, torch.float32).op
    parsed = torch._C.parse_schema(f"probe{op.schema}")
    names = [argument.name for argument in parsed.arguments]
    assert names == [text.replace(".", "_") for text in (*op.tensor_names, *op.scalar_names)]
    kinds = [str(argument.type) for argument in parsed.arguments]
    count = len(op.tensor_names)
    assert set(kinds[:count]) <= {"Tensor", "Optional[Tensor]"}
    assert set(kinds[count:]) <= {"float", "int", "bool", "number", "str", "Optional[float]", "Optional[int]"}
    assert {str(item.type) for item in parsed.returns} == {"Tensor"}


@every_op
def test_a_kernel_of_this_op_passes_torchs_own_check_of_a_custom_op(name: str) -> None:
    found = sample(name, torch.float32)
    call = found.captured[0][1]
    function = opaque(found.op, f"check{NAMES.index(name)}")
    lib.opcheck(function, (*call.tensors, *call.scalars), test_utils=("test_schema", "test_faketensor"))


@every_op
def test_dimensions_are_named_whole_numbers_and_a_dtype(name: str) -> None:
    found = sample(name, torch.bfloat16)
    for call in found.calls:
        dims = found.op.dims(call)
        own = next(tensor.dtype for tensor in tensors_of(call) if tensor.is_floating_point())
        assert f"torch.{dims['dtype']}" == str(own)
        assert all(key.isidentifier() for key in dims)
        assert all(type(value) is int and value >= 0 for key, value in dims.items() if key != "dtype")
        assert "rows" in dims, "launch grids are written in it"


# ---- Sites


@every_op
def test_a_model_without_the_op_has_no_sites(name: str) -> None:
    assert sample(name, torch.float32).op.__class__().find_sites(nn.Conv2d(2, 2, 1)) == []


@every_op
def test_every_site_names_its_owner(name: str) -> None:
    found = sample(name, torch.float32)
    for site in found.sites:
        assert site.module is found.model.get_submodule(site.fqn)
        assert set(site.scalars) <= set(found.op.scalar_names)


@every_op
def test_a_call_names_its_tensors_and_scalars_in_order(name: str) -> None:
    found = sample(name, torch.float32)
    for site, call, _ in found.captured:
        assert len(call.tensors) == len(found.op.tensor_names)
        assert all(tensor is None or isinstance(tensor, Tensor) for tensor in call.tensors)
        assert len(call.scalars) == len(found.op.scalar_names)
        known = dict(zip(found.op.scalar_names, call.scalars, strict=True))
        assert {key: known[key] for key in site.scalars} == dict(site.scalars)
        assert all(scalar is None or type(scalar) in (float, int, bool, str) for scalar in call.scalars)


def patched(found: Sample, function_for: Callable[[Site], Callable[..., Any] | None]) -> nn.Module:
    arm = copy_sharing_weights(found.model)
    Patch(found.op, sites_in(arm, found.sites), function_for)
    return arm


@every_op
def test_identical_code_in_the_kernels_place_changes_no_bit(name: str) -> None:
    found = sample(name, torch.float32)
    own = found.run(found.model)
    assert torch.equal(found.run(patched(found, lambda site: None)), own)
    assert torch.equal(found.run(patched(found, found.op.own)), own)


@every_op
def test_at_its_sites_the_reference_is_the_model(name: str) -> None:
    found = sample(name, torch.float32)
    asked: list[int] = []

    def counted(*args: Any) -> Any:
        asked.append(len(args))
        return found.op.reference(*args)

    arm = patched(found, lambda site: counted)
    close(found.run(arm), found.run(found.model), tolerance=1e-4)
    assert asked == [len(found.op.tensor_names) + len(found.op.scalar_names)] * len(found.captured)


@every_op
def test_patched_sites_trace_into_one_graph(name: str) -> None:
    found = sample(name, torch.float32)
    function = opaque(found.op, f"trace{NAMES.index(name)}")
    arm = patched(found, lambda site: function)
    counted: list[int] = []

    def backend(graph: Any, _: Any) -> Any:
        counted.append(sum(1 for node in graph.graph.nodes if node.target is function))
        counted[-1] += sum(1 for item in replace(graph, interceptions_in(arm)) if item.function is function)
        return graph.forward

    compiled = torch.compile(arm, fullgraph=True, dynamic=False, backend=backend)
    close(found.run(compiled), found.run(found.model), tolerance=1e-4)
    assert counted == [len(found.captured)]
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
        pairs = [pair for pair in zip(edge.tensors, call.tensors, strict=True) if all(t is not None for t in pair)]
        assert all(mine.dtype == theirs.dtype for mine, theirs in pairs)
        floats = [t for t in tensors_of(edge) if t.is_floating_point()]
        assert not any(bool(torch.isnan(tensor).any()) for tensor in floats)


@pytest.mark.parametrize("name", [name for name in NAMES if ":" not in name])
@every_dtype
def test_the_example_is_a_call_like_those_of_a_model(name: str, dtype: torch.dtype) -> None:
    found = sample(name, dtype)
    call, again, other = (found.op.example(str(dtype).removeprefix("torch."), "cpu", seed) for seed in (1, 1, 2))
    assert [type(item) for item in call.scalars] == [type(item) for item in found.captured[0][1].scalars]
    assert all(torch.equal(a, b) for a, b in zip(tensors_of(call), tensors_of(again), strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(tensors_of(call), tensors_of(other), strict=True))
    rounded = [item.to(dtype) if item.is_floating_point() else item for item in exact(found.op, call)]
    plain = found.op.reference(*call.tensors, *call.scalars)
    assert judge_outputs(rounded, plain, exact(found.op, call), ratio=RATIO)[0] is None


@every_op
def test_edge_inputs_follow_the_seed(name: str) -> None:
    """Known values could be recognised; the same seed must give two processes the same ones."""
    found = sample(name, torch.float32)
    call = found.captured[0][1]
    draws = [[tensors_of(edge) for _, edge in found.op.edge_calls(call, seed)] for seed in (1, 1, 2)]
    first, again, other = ([tensor for edge in draw for tensor in edge] for draw in draws)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(a.shape != b.shape or not torch.equal(a, b) for a, b in zip(first, other, strict=True))
