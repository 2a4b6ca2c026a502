"""Calls of one ATen operator in one module's own forward, handed to a function: nothing that others see changes.

Eager code is intercepted by a dispatch mode while that forward runs. For a compiler nothing is intercepted: the nodes
of its graph that call the operator there are replaced before it sees them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import fx, nn
from torch import library as lib
from torch._ops import HigherOrderOperator
from torch._subclasses import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

READS = "reads"
"""Attribute of a function that uses tensors of its owner in compiled code: their names there."""
_Arguments = Callable[[tuple[Any, ...], Mapping[str, Any]], tuple[Any, ...]]


class Interception:
    """What happens to the operator's calls in the owner's own forward; those in its children's are the children's."""

    def __init__(self, target: Any, owner: nn.Module, function: Callable[..., Any], ordered: _Arguments) -> None:
        """`ordered` makes the function's arguments of those that the operator is called with."""
        self.operator, self.owner, self.function = target, owner, function
        self.reads: tuple[str, ...] = getattr(function, READS, ())
        self._ordered = ordered

    def called(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The function, in the place of that call of the operator; its gradient is the operator's own."""
        if torch.is_grad_enabled():
            with torch.no_grad():  # autograd stands above: what the function recorded would be lost
                return self.function(*self._ordered(args, kwargs))
        return self.function(*self._ordered(args, kwargs))


def intercepted(found: Interception) -> Callable[..., Any]:
    """The owner's forward with the function in the operator's place; a compiler traces it as it is, see `replace`."""
    own = type(found.owner).forward
    reads, mode = found.reads, _InOwnForward(found)

    @functools.wraps(own)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            for name in reads:
                torch.ops.e2e_operators.read(getattr(self, name))
            return own(self, *args, **kwargs)
        with mode:
            return own(self, *args, **kwargs)

    if reads:
        _define_read()
    vars(forward)[_INTERCEPTION] = found
    return forward


_INTERCEPTION = "interception"
_CALL = nn.Module._call_impl.__code__
"""Code whose frames tell in which module Python is: their `self`."""


def _innermost() -> Any:
    """The module whose forward is the last one that Python entered, and has not left."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _CALL:
        frame = frame.f_back
    return None if frame is None else frame.f_locals["self"]


class _InOwnForward(TorchDispatchMode):
    """Entered around a forward. What runs in its children passes, whether or not something stands there."""

    def __init__(self, found: Interception) -> None:
        super().__init__()
        self._operator, self._owner, self._called = found.operator, found.owner, found.called

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is self._operator and _innermost() is self._owner:
            return self._called(args, kwargs or {})
        return func(*args, **kwargs) if kwargs else func(*args)


# ---- Compiled code


def interceptions_in(program: nn.Module) -> dict[str, Interception]:
    """Those of the patched forwards in a program that is compiled, by what a traced graph calls their owners."""
    owners = [("", program), *((str(id(module)), module) for module in program.modules())]
    found = ((owner, getattr(vars(module).get("forward"), _INTERCEPTION, None)) for owner, module in owners)
    return {owner: item for owner, item in found if item is not None}


def replace(graph: fx.GraphModule, interceptions: Mapping[str, Interception]) -> list[Interception]:
    """Put the functions where the graph, as Dynamo traced it, calls the operator; every interception once a call.

    A node of that graph may be many operators. One with the operator among them is run under the dispatch mode when
    the compiler traces it further down: what is compiled then holds the function and no interception.

    Raises:
        RuntimeError: a node in an owner's forward whose operators cannot be known.
    """
    placed: list[Interception] = []
    state: dict[str, list[fx.Node]] = {}
    for node in list(graph.graph.nodes):
        owner = _owner_of(node)
        found = interceptions.get(owner)
        if found is None or node.op not in ("call_function", "call_method"):
            continue
        if _is_read(node):
            known = state.setdefault(owner, [])
            del known[: len(known) // len(found.reads) * len(found.reads)]  # the owner's forward runs again
            known.append(node.args[0])
            graph.graph.erase_node(node)
        elif count := _calls_in(node, found.operator):
            placed += [found] * count
            node.args = (tuple(state.get(owner, ())), *node.args)
            node.op, node.target = "call_function", _replaced(found, _target(node))
    graph.recompile()
    return placed


def _owner_of(node: fx.Node) -> str:
    """What Dynamo calls the module in whose forward the node was traced: its `id`, with a number when called again.

    The program itself has no name there.
    """
    stack = node.meta.get("nn_module_stack") or {"": None}
    return str(next(reversed(stack))).partition("@")[0]


def _target(node: fx.Node) -> Callable[..., Any]:
    if node.op == "call_function":
        function: Any = node.target
        return function  # type: ignore[no-any-return]
    name = str(node.target)
    return lambda item, *args, **kwargs: getattr(item, name)(*args, **kwargs)


def _replaced(found: Interception, target: Callable[..., Any]) -> Callable[..., Any]:
    def with_function(state: tuple[Any, ...], *args: Any, **kwargs: Any) -> Any:
        with _standing_in(found.owner, dict(zip(found.reads, state, strict=True))), _Everywhere(found):
            return target(*args, **kwargs)

    return with_function


class _Everywhere(TorchDispatchMode):
    """Entered where a graph's node is traced, which is the owner's own."""

    def __init__(self, found: Interception) -> None:
        super().__init__()
        self._found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is self._found.operator:
            return self._found.called(args, kwargs or {})
        return func(*args, **(kwargs or {}))


class _Count(TorchDispatchMode):
    def __init__(self, target: Any) -> None:
        super().__init__()
        self.calls = 0
        self._target = target

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += func is self._target
        return func(*args, **(kwargs or {}))


def _calls_in(node: fx.Node, target: Any) -> int:
    """How often the node calls the operator, by running it on what stands for its tensors."""
    if isinstance(node.target, HigherOrderOperator):
        raise RuntimeError(f"{node.target} holds a graph of its own, in which {target} cannot be replaced")
    tensors = [value for item in node.all_input_nodes if isinstance(value := _value(item), FakeTensor)]
    if not tensors:
        return 0
    args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), _value)
    with tensors[0].fake_mode, _Count(target) as found:
        _target(node)(*args, **kwargs)
        calls: int = found.calls
    return calls


def _value(node: fx.Node) -> Any:
    return node.meta.get("example_value")


@contextmanager
def _standing_in(owner: nn.Module, state: Mapping[str, Any]) -> Iterator[None]:
    """While the compiler traces, its own stand in for those tensors of the owner."""
    own = dict(owner._buffers)
    owner._buffers.update(state)
    try:
        yield
    finally:
        owner._buffers.update(own)


def _is_read(node: fx.Node) -> bool:
    return bool(_LIBRARY) and node.target in (torch.ops.e2e_operators.read, torch.ops.e2e_operators.read.default)


def _define_read() -> None:
    """An op that brings a tensor into a graph; it claims to write, so that nobody drops it as unused."""
    if not _LIBRARY:
        own = lib.Library("e2e_operators", "DEF")
        own.define("read(Tensor(a!) tensor) -> ()")
        own.impl("read", lambda tensor: None, "CompositeExplicitAutograd")
        lib.register_fake("e2e_operators::read", lambda tensor: None, lib=own)
        _LIBRARY.append(own)


_LIBRARY: list[lib.Library] = []
