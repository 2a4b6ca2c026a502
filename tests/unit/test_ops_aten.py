"""Operators by name: which can be replaced, how their calls look, and which calls of a model are none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from e2e import registry
from e2e.builders._calls import scalar_types
from e2e.errors import UsageError
from e2e.numerics.captures import Captured, turned
from e2e.numerics.examine import Examiner
from e2e.patch import observed
from e2e.protocols import OpCall
from tests.sessions import LlamaSession

torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("silu_.default", "it writes to an argument"),
        ("silu.out", "it writes to an argument"),
        ("t.default", "it returns a view"),
        ("view.default", "it returns a view"),
        ("bernoulli.default", "it may draw random numbers"),
        ("native_dropout.default", "it may draw random numbers"),
        ("nonzero.default", "depends on values"),
        ("linear.default", "it is made of other operators"),
        ("softmax.int", "it is made of other operators"),
        ("cat.default", "its argument tensors is a List"),
        ("arange.default", "it takes no tensor"),
        ("item.default", "depends on values"),
        ("equal.default", "depends on values"),
        ("is_same_size.default", "it returns something else than tensors"),
        ("sillu.default", "did you mean 'silu'"),
        ("silu", "name one of its overloads: aten:silu.default, aten:silu.out"),
        ("silu.Tensor", "name one of its overloads"),
        ("", "no operator ''"),
        ("__class__.default", "no operator"),
    ],
)
def test_what_no_kernel_can_stand_for_is_refused_with_the_reason(name: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        registry.load("ops", "aten").of(name)


@pytest.mark.parametrize(
    ("name", "schema"),
    [
        ("silu.default", "(Tensor self) -> Tensor"),
        ("mul.Tensor", "(Tensor self, Tensor other) -> Tensor"),
        ("addmm.default", "(Tensor self, Tensor mat1, Tensor mat2, float beta, float alpha) -> Tensor"),
        ("_softmax.default", "(Tensor self, int dim, bool half_to_float) -> Tensor"),
        ("mean.dim", "(Tensor self, int[]? dim, bool keepdim) -> Tensor"),
        (
            "native_layer_norm.default",
            "(Tensor input, Tensor? weight, Tensor? bias, int[] normalized_shape, float eps)"
            " -> (Tensor, Tensor, Tensor)",
        ),
    ],
)
def test_tensors_come_first_then_the_other_arguments(name: str, schema: str) -> None:
    op = registry.load_op(f"aten:{name}")
    assert schema == op.schema
    assert f"aten:{name}" == op.name
    assert "probe" == torch._C.parse_schema(f"probe{op.schema}").name


class Calls(nn.Module):
    """Calls an operator in some way."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self._how = how

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = eval(self._how, {"torch": torch, "x": x})
        return found


def seen(name: str, how: str, x: Tensor) -> list[tuple[OpCall, Tensor]]:
    """The op's calls in one forward, with what each gave; the forward's output must not change."""
    op, model = registry.load_op(f"aten:{name}"), Calls(how)
    expected, calls = model(x), []
    with observed(op, op.find_sites(model), lambda site, call, output: calls.append((call, output))):
        assert torch.equal(expected, model(x))
    return calls


X = torch.linspace(0.1, 2, 12).reshape(3, 4)


@pytest.mark.parametrize(
    ("name", "how", "scalars"),
    [
        ("addmm.default", "torch.addmm(x, x[:, :3], x, beta=2)", (2.0, 1.0)),
        ("mean.dim", "x.mean(-1)", ((-1,), False)),
        ("mean.dim", "x.mean((0, 1), keepdim=True)", ((0, 1), True)),
        ("pow.Tensor_Scalar", "x ** 2", (2.0,)),
        ("_softmax.default", "x.softmax(0)", (0, False)),
        ("gelu.default", "torch.nn.functional.gelu(x, approximate='tanh')", ("tanh",)),
    ],
)
def test_a_call_holds_the_operators_arguments_whichever_way_they_were_given(
    name: str, how: str, scalars: tuple[object, ...]
) -> None:
    ((call, output),) = seen(name, how, X)
    op = registry.load_op(f"aten:{name}")
    assert scalars == call.scalars
    assert torch.equal(output, op.reference(*call.tensors, *call.scalars))
    assert output.stride() == op.allocate(*call.tensors, *call.scalars).stride()


def test_an_absent_tensor_is_none() -> None:
    ((call, _),) = seen("native_layer_norm.default", "torch.nn.functional.layer_norm(x, (4,))", X)
    assert call.tensors[1:] == (None, None)
    assert call.scalars == ((4,), 1e-5)


@pytest.mark.parametrize(
    ("name", "how", "why"),
    [
        ("mul.Tensor", "x * 2.0", "with a number as other, where a kernel takes a tensor"),
        ("mean.dim", "x.mean(-1, dtype=torch.float64)", "with dtype=torch.float64, which no kernel is handed"),
    ],
)
def test_a_call_of_another_kind_says_what_is_wrong_with_it(name: str, how: str, why: str) -> None:
    with pytest.raises(RuntimeError, match=why):
        seen(name, how, X)


def test_outputs_that_are_no_floating_point_numbers_cannot_be_judged() -> None:
    with pytest.raises(RuntimeError, match="returns int64 here"):
        registry.load_op("aten:topk.default").allocate(X, 2, -1, True, True)


def test_edge_inputs_stay_in_the_domain_that_the_captured_one_shows() -> None:
    op, indices = registry.load_op("aten:embedding.default"), torch.tensor([[0, 2], [1, 2]])
    call = OpCall((X, indices), (-1, False, False))
    for _, edge in op.edge_calls(call, 1):
        weight, places = edge.tensors
        assert bool((weight > 0).all()) and bool((weight <= X.max()).all())
        assert torch.equal(indices, places)


def survey(name: str, tmp_path: Path) -> dict[str, str | None]:
    session, op = LlamaSession(), registry.load_op(f"aten:{name}")
    found = Examiner(session, op, op.find_sites(session.model)).survey(
        seed=1, path=tmp_path / "calls", budget_bytes=2**24
    )
    return {row["fqn"]: row["incompatible"] for row in found["sites"]}


def test_in_a_model_sites_are_the_modules_that_call_the_operator_themselves(tmp_path: Path) -> None:
    found = survey("silu.default", tmp_path)
    assert found == {f"model.layers.{layer}.mlp.act_fn": None for layer in range(2)}


def test_a_module_whose_calls_no_kernel_can_take_is_shown_with_the_reason(tmp_path: Path) -> None:
    found = survey("mul.Tensor", tmp_path)
    refused = {fqn: why for fqn, why in found.items() if why is not None}
    assert list(refused) == ["model.rotary_emb"]
    assert "with a number as other" in str(refused["model.rotary_emb"])
    assert {"model.norm", "model.layers.0.mlp", "model.layers.1.self_attn"} <= set(found)


def test_an_operator_that_the_model_does_not_call_has_no_sites(tmp_path: Path) -> None:
    assert survey("gelu.default", tmp_path) == {}


def test_a_list_of_numbers_is_a_kind_of_its_own_to_builders() -> None:
    assert {"dim": "int[]", "keepdim": "bool"} == scalar_types(registry.load_op("aten:mean.dim"))
    assert {"beta": "float", "alpha": "float"} == scalar_types(registry.load_op("aten:addmm.default"))


def test_edges_share_a_large_weight_with_the_captured_call() -> None:
    op, weight = registry.load_op("aten:mm.default"), torch.ones(1).expand(2**12, 2**11)
    for _, edge in op.edge_calls(OpCall((torch.ones(2, 2**12), weight), ()), 1):
        assert edge.tensors[1] is weight


def test_a_first_tensor_of_one_value_is_no_reason_to_fail() -> None:
    """The call with moved values is left out: there is nothing that could be moved."""
    item = Captured("x", "captured", OpCall((torch.tensor(2.0), X), ()))
    assert turned(item) == []
    assert turned(Captured("x", "captured", OpCall((torch.ones(1).expand(3, 4), X), ()))) == []
    assert len(turned(Captured("x", "captured", OpCall((X[:1], X), ())))) == 1
