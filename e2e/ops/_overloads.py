"""Overloads of ATen's operators: which of them a kernel can stand for, and how its call follows from theirs."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from e2e.errors import UsageError

_TENSORS = {"Tensor": "Tensor", "Optional[Tensor]": "Tensor?"}
_SCALARS = {
    "number": "float",
    "float": "float",
    "int": "int",
    "bool": "bool",
    "str": "str",
    "Optional[number]": "float?",
    "Optional[float]": "float?",
    "Optional[int]": "int?",
    "Optional[bool]": "bool?",
    "List[int]": "int[]",
    "Optional[List[int]]": "int[]?",
}
"""What a kernel may be handed, and how an op's schema writes it; torch names the kinds so."""
_COMPOSITE = "CompositeImplicitAutograd"


class Overload:
    """One overload, and the call of the op that it is: its tensors, then its other arguments, in their order.

    Arguments that are neither tensors nor scalars nor lists of whole numbers (a dtype, a memory format) have to stay
    at their defaults, and are not part of the call.
    """

    def __init__(self, target: Any) -> None:
        self.target = target
        self._arguments = [(item.name, _kind(item), item.default_value) for item in target._schema.arguments]
        handed = [(name, kind) for name, kind, _ in self._arguments if kind is not None]
        self.tensors = tuple(name for name, kind in handed if _is_tensor(kind))
        self.scalars = tuple(name for name, kind in handed if not _is_tensor(kind))
        kinds = dict(handed)
        self._names = (*self.tensors, *self.scalars)
        listed = ", ".join(f"{kinds[name]} {name}" for name in self._names)
        returned = ", ".join("Tensor" for _ in target._schema.returns)
        self.schema = f"({listed}) -> " + (f"({returned})" if "," in returned else returned)
        self._named = {item.name for item in target._schema.arguments if item.kwarg_only}
        self._only_tensors = len(self.tensors) == len(self._arguments) and not self._named
        self._call = self.spread(target)

    @property
    def name(self) -> str:
        """`silu.default`."""
        return f"{self.target._schema.name.partition('::')[2]}.{self.target._schema.overload_name or 'default'}"

    def __call__(self, *call: Any) -> Any:
        """What the operator makes of a call of the op."""
        return self._call(*call)

    def spread(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that is called as the operator is, as one of the op's call."""
        if self._only_tensors:
            return function

        def called(*call: Any) -> Any:
            given = dict(zip(self._names, call, strict=True))
            args = [given.get(name, default) for name, _, default in self._arguments if name not in self._named]
            return function(*args, **{name: given[name] for name in self._names if name in self._named})

        return called

    def ordered(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """The op's call, from what the operator is called with.

        Raises:
            RuntimeError: a call that the op does not stand for.
        """
        if self._only_tensors and len(args) == len(self.tensors) and all(isinstance(item, Tensor) for item in args):
            return args
        given = {}
        for place, (name, kind, default) in enumerate(self._arguments):
            value = args[place] if place < len(args) else kwargs.get(name, default)
            given[name] = value if isinstance(value, Tensor) else self._taken(name, kind, value, default)
        return tuple(given[name] for name in self._names)

    def _taken(self, name: str, kind: str | None, value: Any, default: Any) -> Any:
        if kind is None and value != default:
            raise RuntimeError(f"it calls {self.target} with {name}={value}, which no kernel is handed")
        if value is None or kind is None:
            return value
        if _is_tensor(kind):
            raise RuntimeError(f"it calls {self.target} with a number as {name}, where a kernel takes a tensor")
        if kind.startswith("int["):
            return tuple(value)
        return float(value) if kind.startswith("float") else value


def overload_called(name: str) -> Overload:
    """The overload of that name, such as `silu.default`.

    Raises:
        UsageError: there is none, or no kernel can stand for it; says why.
    """
    operator, _, overload = name.partition(".")
    known = (found.partition("::") for found in torch._C._dispatch_get_all_op_names())
    operators = {found.partition(".")[0] for space, _, found in known if space == "aten"}
    if operator not in operators:
        close = difflib.get_close_matches(operator, operators, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise UsageError(f"aten:{name}: ATen has no operator {operator!r}{hint}")
    packet = getattr(torch.ops.aten, operator)
    overloads = packet.overloads()
    if overload not in overloads:
        listed = ", ".join(f"aten:{operator}.{found}" for found in overloads)
        raise UsageError(f"aten:{name}: name one of its overloads: {listed}")
    target = getattr(packet, overload)
    problem = _problem(target)
    if problem is not None:
        raise UsageError(f"aten:{name} cannot be replaced: {problem}")
    return Overload(target)


def _problem(overload: Any) -> str | None:
    """Why no kernel can stand for that overload."""
    schema, tags = overload._schema, overload.tags
    if any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments):
        return "it writes to an argument, and a kernel here returns what it computes"
    if any(item.alias_info is not None for item in (*schema.arguments, *schema.returns)):
        return "it returns a view of an argument, which no kernel can compute"
    if torch.Tag.nondeterministic_seeded in tags:
        return "it may draw random numbers"
    if torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags:
        return "the form of what it returns depends on values"
    if torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), _COMPOSITE):
        return "it is made of other operators, which are what a model calls in the end: name one of those"
    if not schema.returns or any(str(item.type) != "Tensor" for item in schema.returns):
        return "it returns something else than tensors"
    for argument in schema.arguments:
        if _kind(argument) is None and not argument.has_default_value():
            return f"its argument {argument.name} is a {argument.real_type}, which no kernel is handed"
    if not any(_is_tensor(_kind(argument)) for argument in schema.arguments):
        return "it takes no tensor"
    return None


def _kind(argument: Any) -> str | None:
    """As an op's schema writes it; None for what a kernel is not handed."""
    text = str(argument.real_type)
    text = text.replace("SymInt", "int").replace("Scalar", "number") if "ScalarType" not in text else text
    return _TENSORS.get(text) or _SCALARS.get(text)


def _is_tensor(kind: str | None) -> bool:
    return kind in _TENSORS.values()
