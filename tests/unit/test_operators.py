"""An operator's calls in a module's own forward are the function's: in eager code, in compiled code, and no others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from e2e import registry
from e2e.operators import interceptions_in, replace
from e2e.patch import Patch, copy_sharing_weights, sites_in

torch.set_num_threads(1)
OP = registry.load_op("aten:silu.default")
X = torch.linspace(-3, 3, 12).reshape(3, 4)
SILU = F.silu(X)


class Inner(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.silu(x) + 1


class Outer(nn.Module):
    """Calls the operator itself, twice, and in a child between."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: Tensor, *, twice: bool = True) -> Tensor:
        y = self.inner(F.silu(x))
        return F.silu(y) if twice else y


class Spy:
    """Something that can be told from SiLU, and counts its calls."""

    def __init__(self, function: Callable[[Tensor], Tensor] = torch.relu) -> None:
        self.calls = 0
        self._function = function

    def __call__(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self._function(x)


def patched(function: Callable[..., Any] | None, *fqns: str) -> nn.Module:
    model = copy_sharing_weights(Outer())
    sites = [site for site in OP.find_sites(model) if site.fqn in fqns]
    assert len(sites) == len(fqns)
    Patch(OP, sites_in(model, sites), lambda site: function)
    return model


class Tracer:
    """A compiler that replaces what is intercepted and runs the graph as it is then."""

    def __init__(self, model: nn.Module) -> None:
        self.placed: list[Callable[..., Any]] = []
        self._interceptions = interceptions_in(model)

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.placed += [item.function for item in replace(graph, self._interceptions)]
        return graph.forward


def compiled(model: nn.Module) -> tuple[Callable[..., Tensor], Tracer]:
    tracer = Tracer(model)
    return torch.compile(model, fullgraph=True, dynamic=False, backend=tracer), tracer


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def with_relu(x: Tensor, *, outer: bool, inner: bool) -> Tensor:
    first, second = torch.relu if outer else F.silu, torch.relu if inner else F.silu
    return first(second(first(x)) + 1)


PLACES = [("",), ("inner",), ("", "inner")]


@pytest.mark.parametrize("fqns", PLACES, ids=str)
def test_a_modules_own_calls_are_replaced_and_those_of_its_children_are_theirs(fqns: tuple[str, ...]) -> None:
    spy = Spy()
    found = patched(spy, *fqns)(X)
    assert torch.equal(with_relu(X, outer="" in fqns, inner="inner" in fqns), found)
    assert spy.calls == 2 * ("" in fqns) + ("inner" in fqns)


@pytest.mark.parametrize("fqns", PLACES, ids=str)
def test_compiled_code_has_the_function_in_the_same_places(fqns: tuple[str, ...]) -> None:
    spy = Spy()
    run, tracer = compiled(patched(spy, *fqns))
    assert torch.equal(with_relu(X, outer="" in fqns, inner="inner" in fqns), run(X))
    assert tracer.placed == [spy] * (2 * ("" in fqns) + ("inner" in fqns))


def test_a_method_that_calls_the_operator_is_replaced_in_a_graph() -> None:
    op, model = registry.load_op("aten:relu.default"), nn.Sequential()
    model.append(ByMethod())
    Patch(op, [site for site in op.find_sites(model) if site.fqn == "0"], lambda site: torch.neg)
    run, tracer = compiled(model)
    assert torch.equal(-X, run(X))
    assert tracer.placed == [torch.neg]


class ByMethod(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.relu()


def test_identical_code_in_a_graph_is_the_operator_again() -> None:
    run, tracer = compiled(patched(None, "", "inner"))
    assert torch.equal(Outer()(X), run(X))
    assert len(tracer.placed) == 3


def test_a_kernel_may_call_the_operator_itself() -> None:
    spy = Spy(lambda x: 2 * F.silu(x))
    found = patched(spy, "", "inner")(X)
    assert torch.equal(2 * F.silu(2 * F.silu(2 * F.silu(X)) + 1), found)
    assert spy.calls == 3


def test_a_hook_of_a_child_that_calls_the_operator_is_left_alone() -> None:
    model = patched(Spy(), "")
    seen: list[Tensor] = []
    model.get_submodule("inner").register_forward_hook(lambda module, args, output: seen.append(F.silu(output)))
    model(X)
    assert torch.equal(F.silu(F.silu(torch.relu(X)) + 1), seen[0])


def test_arguments_by_name_reach_the_forward() -> None:
    assert torch.equal(F.silu(torch.relu(X)) + 1, patched(torch.relu, "")(X, twice=False))


def test_outside_its_forward_the_operator_is_what_it_was() -> None:
    model = patched(torch.relu, "", "inner")
    model(X)
    assert torch.equal(SILU, F.silu(X))
    assert torch.equal(Outer()(X), copy_sharing_weights(Outer())(X))


def test_a_raising_kernel_leaves_nothing_behind() -> None:
    def raising(x: Tensor) -> Tensor:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        patched(raising, "", "inner")(X)
    assert torch.equal(Outer()(X), Outer()(X))
    assert torch.equal(SILU, F.silu(X))


def test_in_training_the_operators_own_backward_stays() -> None:
    with torch.enable_grad():
        own, x = X.clone().requires_grad_(), X.clone().requires_grad_()
        Inner()(own).sum().backward()
        model = nn.Sequential(Inner())
        sites = [site for site in OP.find_sites(model) if site.fqn == "0"]
        Patch(OP, sites, lambda site: lambda x: x.detach() * x.detach().sigmoid())
        model(x).sum().backward()
    assert own.grad is not None and x.grad is not None
    assert torch.equal(own.grad, x.grad)


def test_what_a_function_reads_from_its_owner_is_an_input_of_the_graph() -> None:
    """Else the compiler would meet real memory where it expects its own tensors."""
    model = copy_sharing_weights(Outer())
    model.register_buffer("kept", torch.full_like(X, 5.0), persistent=False)

    def reading(x: Tensor) -> Tensor:
        return model.kept  # type: ignore[return-value]

    vars(reading)["reads"] = ("kept",)
    Patch(OP, [site for site in OP.find_sites(model) if site.fqn == ""], lambda site: reading)
    tracer, own = Tracer(model), model.get_buffer("kept")

    def backend(graph: Any, inputs: Any) -> Any:
        run = tracer(graph, inputs)
        return lambda *given: run(*(item + 2 if torch.equal(item, own) else item for item in given))

    run = torch.compile(model, fullgraph=True, dynamic=False, backend=backend)
    assert torch.equal(torch.full_like(X, 7.0), run(X))
    assert torch.equal(torch.full_like(X, 5.0), own)
