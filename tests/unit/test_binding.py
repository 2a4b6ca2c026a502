"""A kernel inside a graph and inside training: the same numbers, and no silent loss of gradients."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from e2e import registry
from e2e.binding import NO_BACKWARD, differentiable, registered, trainable
from e2e.ops.rms_norm import RmsNorm

torch.set_num_threads(1)

OP: RmsNorm = registry.load("ops", "rms_norm")
_NUMBERS = itertools.count()


def fresh_sha256() -> str:
    """An op's name can be defined only once in a process."""
    return f"bind{next(_NUMBERS):012d}"


def inputs(*, requires_grad: bool = False) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(5, 16, generator=generator), torch.rand(16, generator=generator) + 0.5
    return x.requires_grad_(requires_grad), weight.requires_grad_(requires_grad)


# ---- Registered, for compiled arms


def test_a_registered_kernel_computes_what_the_kernel_does() -> None:
    x, weight = inputs()
    function = registered(OP, OP.reference, sha256=fresh_sha256(), device="cpu")
    assert torch.equal(function(x, weight, 1e-6), OP.reference(x, weight, 1e-6))


def test_a_registered_kernel_is_one_opaque_node_and_no_break() -> None:
    x, weight = inputs()
    function = registered(OP, OP.reference, sha256=fresh_sha256(), device="cpu")
    graphs: list[Any] = []

    def keep(graph: Any, _: Any) -> Any:
        graphs.append(graph.graph)
        return graph.forward

    compiled = torch.compile(lambda x, w: function(x + 1, w, 1e-6) * 2, backend=keep, fullgraph=True, dynamic=False)
    torch.testing.assert_close(compiled(x, weight), OP.reference(x + 1, weight, 1e-6) * 2)
    assert [node.target for node in graphs[0].nodes].count(function) == 1
    torch._dynamo.reset()


def test_the_name_holds_the_kernels_hash() -> None:
    sha256 = fresh_sha256()
    function = registered(OP, OP.reference, sha256=sha256, device="cpu")
    assert str(function) == f"e2e_{sha256[:16]}.rms_norm.default"


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:3"])
def test_a_kernel_can_be_registered_for_any_cuda_device(device: str) -> None:
    """Sessions are opened on `cuda:0`; an op is registered for kinds of devices, not their numbers."""
    function = registered(OP, OP.reference, sha256=fresh_sha256(), device=device)
    x, weight = inputs()
    assert function(x.to("meta"), weight.to("meta"), 1e-6).shape == x.shape
    with pytest.raises(NotImplementedError):
        function(x, weight, 1e-6)


def test_without_a_device_the_fake_gives_shape_strides_and_dtype() -> None:
    function = registered(OP, OP.reference, sha256=fresh_sha256(), device="cpu")
    x = torch.empty(4, 6, 8, dtype=torch.bfloat16, device="meta").transpose(0, 1)
    y = function(x, torch.empty(8, dtype=torch.bfloat16, device="meta"), 1e-6)
    assert (y.shape, y.dtype) == (x.shape, x.dtype)


# ---- Trainable


def test_a_kernel_without_a_backward_refuses_to_train() -> None:
    """It would train silently: same loss, no gradient for what lies below, and a step that looks far faster."""
    x, weight = inputs(requires_grad=True)
    y = trainable(OP, OP.reference)(x, weight, 1e-6)
    with pytest.raises(RuntimeError, match=NO_BACKWARD):
        y.sum().backward()


def test_the_borrowed_backward_gives_the_references_gradients() -> None:
    ours, theirs = inputs(requires_grad=True), inputs(requires_grad=True)
    upstream = torch.randn(5, 16, generator=torch.Generator().manual_seed(1))
    trainable(OP, OP.reference, borrowed=True)(*ours, 1e-6).backward(upstream)
    OP.reference(*theirs, 1e-6).backward(upstream)
    for mine, expected in zip(ours, theirs, strict=True):
        assert mine.grad is not None
        torch.testing.assert_close(mine.grad, expected.grad)


def test_the_forward_of_a_trainable_kernel_is_the_kernels() -> None:
    x, weight = inputs(requires_grad=True)
    y = trainable(OP, lambda x, weight, eps: torch.full_like(x, 2.0), borrowed=True)(x, weight, 1e-6)
    assert torch.equal(y, torch.full_like(x, 2.0))


def test_only_tensors_that_ask_for_a_gradient_get_one() -> None:
    x, weight = inputs(requires_grad=True)
    frozen = weight.detach()
    trainable(OP, OP.reference, borrowed=True)(x, frozen, 1e-6).sum().backward()
    assert x.grad is not None
    assert frozen.grad is None


def test_a_python_kernel_whose_output_forgot_the_graph_is_refused() -> None:
    x, weight = inputs(requires_grad=True)
    with pytest.raises(RuntimeError, match=NO_BACKWARD):
        differentiable(lambda x, w, eps: OP.reference(x, w, eps).detach())(x, weight, 1e-6)


def test_a_python_kernel_that_autograd_follows_is_left_as_it_is() -> None:
    x, weight = inputs(requires_grad=True)
    y = differentiable(OP.reference)(x, weight, 1e-6)
    y.sum().backward()
    assert x.grad is not None
    with torch.no_grad():
        assert not differentiable(OP.reference)(x, weight, 1e-6).requires_grad
