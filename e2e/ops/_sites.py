"""How ops stand in models: modules whose forward is the op, and functions that a forward calls by name."""

from __future__ import annotations

import copy
import dis
import functools
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from e2e.patch import over
from e2e.protocols import Site


class InModules:
    """Sites whose `forward(x)` is the op: op(x, the module's tensors..., scalars read from it...).

    A subclass names its tensors; those after the first are attributes of the module by the same name, or by the one
    that `attribute` gives; one that the module lacks is None.
    """

    tensor_names: tuple[str, ...]
    scalar_names: tuple[str, ...]

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Those that are the module's."""
        return self.tensor_names[1:]

    def attribute(self, name: str) -> str:
        """Where the module keeps that tensor."""
        return name

    def own(self, site: Site) -> Callable[..., Any]:
        """The module's own forward, with the call's tensors as its state."""
        module, forward = site.module, type(site.module).forward
        count = len(self.tensor_names)
        names = [self.attribute(name) for name in self.tensor_names[1:]]

        def original(x: Tensor, *rest: Any) -> Any:
            state = dict(zip(names, rest[: count - 1], strict=True))
            is_own = all(getattr(module, name, None) is state[name] for name in names)
            return forward(module if is_own else standing_in(module, state), x)

        return original

    def forward_with(self, site: Site, function: Callable[..., Any] | None) -> Callable[..., Any]:
        """A forward that hands `function` the tensor it is given, the module's tensors and its scalars."""
        forward: Callable[..., Any] = type(site.module).forward
        if function is None:
            return forward
        names = [self.attribute(name) for name in self.tensor_names[1:]]
        scalars = tuple(site.scalars[name] for name in self.scalar_names)
        return _forward(function, names, scalars, takes=first_parameter(forward))


def _forward(
    function: Callable[..., Any], names: list[str], scalars: tuple[Any, ...], *, takes: str
) -> Callable[..., Any]:
    """Every eager call of a candidate passes here: the common forms are spelt out, so that nothing is added."""
    if takes not in ("hidden_states", "input"):  # the name that callers may use has to be the forward's own

        def by_any_name(self: nn.Module, *args: Any, **named: Any) -> Any:
            (x,) = args or named.values()
            return function(x, *[getattr(self, name, None) for name in names], *scalars)

        return by_any_name
    if takes == "input":
        if names == ["weight", "bias"]:

            def of_weight_and_bias(self: nn.Module, input: Tensor) -> Any:
                return function(input, self.weight, self.bias, *scalars)

            return of_weight_and_bias
        if not names:

            def of_input_alone(self: nn.Module, input: Tensor) -> Any:
                return function(input, *scalars)

            return of_input_alone

        def of_input(self: nn.Module, input: Tensor) -> Any:
            return function(input, *[getattr(self, name, None) for name in names], *scalars)

        return of_input
    if names == ["weight"] and len(scalars) == 1:
        (scalar,) = scalars

        def of_weight(self: nn.Module, hidden_states: Tensor) -> Any:
            return function(hidden_states, self.weight, scalar)

        return of_weight

    def forward(self: nn.Module, hidden_states: Tensor) -> Any:
        return function(hidden_states, *[getattr(self, name, None) for name in names], *scalars)

    return forward


def first_parameter(forward: Callable[..., Any]) -> str:
    """Name of the first argument after `self`."""
    names = list(inspect.signature(forward).parameters)
    return names[1] if len(names) > 1 else ""


def takes_one_tensor(module: nn.Module) -> bool:
    """Whether its forward can be called with one argument."""
    parameters = list(inspect.signature(type(module).forward).parameters.values())[1:]
    named = [item for item in parameters if item.kind not in (item.VAR_POSITIONAL, item.VAR_KEYWORD)]
    return sum(item.default is item.empty for item in named) == 1


def standing_in(module: nn.Module, state: Mapping[str, Tensor | None]) -> nn.Module:
    """The module's like, sharing everything but those tensors; the module itself is not touched."""
    twin = copy.copy(module)
    vars(twin)["_parameters"] = {**module._parameters}
    vars(twin)["_buffers"] = {**module._buffers}
    for name, tensor in state.items():
        place = "_buffers" if name in module._buffers else "_parameters"
        vars(twin)[place][name] = tensor
    return twin


def plain_forward(module: nn.Module) -> types.FunctionType | None:
    """The class's forward under its decorators; None where it is no plain Python function."""
    forward = inspect.unwrap(type(module).forward)
    return forward if isinstance(forward, types.FunctionType) else None


def calls_by_name(module: nn.Module, name: str) -> Any:
    """What the owner's forward finds under that global name, if it uses it; else None."""
    forward = plain_forward(module)
    if forward is None or name not in forward.__code__.co_names:
        return None
    return forward.__globals__.get(name)


def names_in(module: nn.Module) -> set[str]:
    """Names that the owner's forward uses: of variables, globals, attributes and of arguments it passes on."""
    forward = plain_forward(module)
    if forward is None:
        return set()
    code = forward.__code__
    texts = (item if isinstance(item, tuple) else (item,) for item in code.co_consts)
    return {*code.co_varnames, *code.co_names, *(text for item in texts for text in item if isinstance(text, str))}


def with_globals(module: nn.Module, **replaced: Any) -> Callable[..., Any]:
    """The owner's forward over private globals: nothing that anyone else sees changes.

    Decorators are stripped, in identical code too: they cost host time.
    """
    forward = plain_forward(module)
    assert forward is not None
    return over_globals(forward, **replaced)


def over_globals(function: types.FunctionType, **replaced: Any) -> Callable[..., Any]:
    """The same code over private globals, in which those names mean something else."""
    own = {**function.__globals__, **replaced}
    del own["__name__"]  # else torch.compile looks names up in the module of that name, and guards what is there
    return over(function, own)


@functools.cache
def paths_to(function: types.FunctionType, targets: tuple[Any, ...]) -> tuple[tuple[str, ...], ...]:
    """How the function's code writes any of those targets: ("nn", "functional", "softmax")."""
    written: dict[tuple[str, ...], None] = {}
    path: tuple[str, ...] = ()
    for step in dis.get_instructions(function):
        if step.opname == "LOAD_GLOBAL":
            path = (step.argval,)
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD") and path:
            path = (*path, step.argval)
        elif step.opname != "EXTENDED_ARG":
            path = ()
        written[path] = None
    return tuple(path for path in written if any(_at(path, function.__globals__) is item for item in targets))


def _at(path: tuple[str, ...], names: Mapping[str, Any]) -> Any:
    """What the code would find there; None where there is nothing."""
    if not path or path[0] not in names:
        return None
    return functools.reduce(lambda found, name: getattr(found, name, None), path[1:], names[path[0]])


def in_place_of(
    function: types.FunctionType, paths: tuple[tuple[str, ...], ...], put: Callable[[Any], Any]
) -> dict[str, Any]:
    """Globals for `over_globals` in which `put(original)` is found at those paths.

    What lies on the way, `nn` for instance, is a module's like that differs in this one attribute.
    """
    replaced: dict[str, Any] = {}
    for root, *rest in paths:
        found = replaced.get(root, function.__globals__[root])
        replaced[root] = _with(found, rest, put)
    return replaced


def _with(found: Any, path: list[str], put: Callable[[Any], Any]) -> Any:
    if not path:
        return put(found)
    twin = types.ModuleType(found.__name__)
    vars(twin).update(vars(found))
    setattr(twin, path[0], _with(getattr(found, path[0]), path[1:], put))
    return twin
