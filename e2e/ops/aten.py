"""Operators of ATen by name, `aten:NAME.OVERLOAD`, wherever a model calls them; float64 is the operator's own."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor

from e2e.errors import UsageError
from e2e.operators import Interception, intercepted
from e2e.ops._inputs import Draw, name_of
from e2e.ops._mistakes import without_last_row
from e2e.ops._sites import plain_forward
from e2e.protocols import OpCall, Site, outputs_of

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


class AtenOp:
    """What one overload of an operator computes; its call is the overload's tensors, then its other arguments.

    The arguments keep their names and their order within both kinds. Those that are neither tensors nor scalars nor
    lists of whole numbers (a dtype, a memory format) have to stay at their defaults, and are not handed on.
    """

    schema = "(Tensor[] tensors, Scalar[] others) -> Tensor"
    alternatives: Mapping[str, Callable[..., Any]] = {}

    def __init__(self, overload: Any = None) -> None:
        self.overload = overload
        self._given: list[Any] = [] if overload is None else [a for a in overload._schema.arguments if _kind(a)]
        tensors = [argument for argument in self._given if _is_tensor(argument)]
        scalars = [argument for argument in self._given if not _is_tensor(argument)]
        self.name = "aten" if overload is None else f"aten:{_named(overload)}"
        self.tensor_names = tuple(argument.name for argument in tensors)
        self.scalar_names = tuple(argument.name for argument in scalars)
        if overload is not None:
            listed = ", ".join(f"{_kind(argument)} {argument.name}" for argument in (*tensors, *scalars))
            returned = ", ".join("Tensor" for _ in overload._schema.returns)
            self.schema = f"({listed}) -> " + (f"({returned})" if "," in returned else returned)
        self._order = [*tensors, *scalars]
        self._forms: dict[Any, list[tuple[Any, ...]]] = {}

    def of(self, name: str) -> AtenOp:
        """The op of that overload, such as `silu.default`.

        Raises:
            UsageError: no such overload, or one that no kernel can stand for; says why.
        """
        overload = _overload(name)
        problem = _problem(overload)
        if problem is not None:
            raise UsageError(f"aten:{name} cannot be replaced: {problem}")
        return AtenOp(overload)

    def find_sites(self, model: nn.Module) -> list[Site]:
        """Every module: in which of them the operator is called, only a step can tell."""
        if self.overload is None:
            return []
        return [
            Site(fqn, module, {}, is_declared=False)
            for fqn, module in model.named_modules()
            if plain_forward(module) is not None and type(module).forward is not _UNIMPLEMENTED
        ]

    def own(self, site: Site) -> Callable[..., Any]:
        """The operator itself."""
        return self.reference

    def forward_with(self, site: Site, function: Callable[..., Any] | None) -> Callable[..., Any]:
        """The module's forward, in which the operator's calls are the function's."""
        return intercepted(Interception(self.overload, site.module, function or self.reference, self._ordered))

    def reference(self, *call: Any) -> Any:
        """The operator, in the precision that it is given."""
        given = dict(zip((argument.name for argument in self._order), call, strict=True))
        args = [
            given.get(argument.name, argument.default_value)
            for argument in self.overload._schema.arguments
            if not argument.kwarg_only
        ]
        named = {argument.name: given[argument.name] for argument in self._given if argument.kwarg_only}
        return self.overload(*args, **named)

    def _ordered(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """The op's call, from what the operator is called with.

        Raises:
            RuntimeError: a call that this op does not stand for.
        """
        given = {}
        for place, argument in enumerate(self.overload._schema.arguments):
            value = args[place] if place < len(args) else kwargs.get(argument.name, argument.default_value)
            given[argument.name] = self._taken(argument, value)
        return tuple(given[argument.name] for argument in self._order)

    def _taken(self, argument: Any, value: Any) -> Any:
        kind = _kind(argument)
        if kind is None:
            if value != argument.default_value:
                raise RuntimeError(f"it calls {self.overload} with {argument.name}={value}, which no kernel is handed")
        elif kind.startswith("Tensor"):
            if value is not None and not isinstance(value, Tensor):
                raise RuntimeError(
                    f"it calls {self.overload} with a number as {argument.name}, where a kernel takes a tensor"
                )
        elif kind.startswith("int["):
            return None if value is None else tuple(value)
        elif kind.startswith("float"):
            return None if value is None else float(value)
        return value

    def allocate(self, *call: Any) -> Any:
        """Uninitialised outputs, as the operator's own rule for shapes has them.

        Raises:
            RuntimeError: an output that is no floating-point tensor, whose error would mean nothing.
        """
        tensors = [item for item in call if isinstance(item, Tensor)]
        if any(item.is_meta or isinstance(item, FakeTensor) for item in tensors):
            return self.reference(*call)
        key = tuple((i.shape, i.stride(), i.dtype, i.device) if isinstance(i, Tensor) else i for i in call)
        if key not in self._forms:
            found = outputs_of(self.reference(*[_bare(item) for item in call]))
            self._forms[key] = [_form(item, tensors[0].device, self.overload) for item in found]
        made = [
            torch.empty_strided(shape, strides, dtype=dtype, device=device)
            for shape, strides, dtype, device in self._forms[key]
        ]
        return made[0] if len(made) == 1 else tuple(made)

    def dims(self, call: OpCall) -> dict[str, int | str]:
        """`dim0`, `dim1`, ... of the first tensor, `rows`, `hidden` (the last one), and `dtype`."""
        tensors = [item for item in call.tensors if item is not None]
        first = tensors[0]
        typed = next((item for item in tensors if item.is_floating_point()), first)
        hidden = int(first.shape[-1]) if first.dim() else 1
        sizes: dict[str, int | str] = {f"dim{place}": int(size) for place, size in enumerate(first.shape)}
        rows = first.numel() // hidden if hidden else 0
        return {**sizes, "rows": rows, "hidden": hidden, "dtype": name_of(typed.dtype)}

    def example(self, dtype: str, device: str, seed: int) -> OpCall:
        """None: what an operator is called with, a model says.

        Raises:
            UsageError: always.
        """
        raise UsageError(f"{self.name} is what some model calls: check it with a workload")

    def edge_calls(self, call: OpCall, seed: int) -> Iterable[tuple[str, OpCall]]:
        """The captured values in other places, smaller, and with gaps between rows.

        What is legal for an unknown operator, the call itself shows: signs stay, nothing grows, and whole numbers,
        which may be places in something, stay as they are.
        """

        def made(change: Callable[[Draw, Tensor], Tensor]) -> OpCall:
            tensors = (
                change(Draw(seed + place, item), item) if item is not None and item.is_floating_point() else item
                for place, item in enumerate(call.tensors)
            )
            return OpCall(tuple(tensors), call.scalars)

        yield "values in other places", made(lambda draw, item: _shuffled(draw, item))
        yield "smaller values", made(lambda draw, item: _shuffled(draw, item) * draw.made(0.25 + 0.5 * _random(draw)))
        yield "hundredths", made(lambda draw, item: _shuffled(draw, item) * 0.01)
        yield "gaps between rows", made(lambda draw, item: _apart(_shuffled(draw, item)))

    def mutants(self) -> Mapping[str, Callable[..., Any]]:
        """Wrong outputs that any operator's check must notice."""

        def wrong(change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
            def mutant(*call: Any) -> Any:
                found = self.reference(*call)
                return change(found) if isinstance(found, Tensor) else tuple(map(change, found))

            return mutant

        def first_input(*call: Any) -> Any:
            """Where the first input is no output that could be wrong: zeros."""
            found = self.reference(*call)
            if isinstance(found, Tensor) and found.shape == call[0].shape and not torch.equal(found, call[0]):
                return call[0].to(found.dtype, copy=True)
            return torch.zeros_like(found) if isinstance(found, Tensor) else tuple(map(torch.zeros_like, found))

        return {
            "zeros": wrong(torch.zeros_like),
            "copy of the input": first_input,
            "last row dropped": wrong(lambda item: without_last_row(item) if item.dim() else item * 0),
            "one per cent too large": wrong(lambda item: item * 1.01),
            "values shifted": wrong(lambda item: item + 0.1 * item.abs().mean()),
        }


def _overload(name: str) -> Any:
    """The overload of that name.

    Raises:
        UsageError: there is none; names those of the operator, or the nearest operator.
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
    return getattr(packet, overload)


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
    if not any(_is_tensor(argument) for argument in schema.arguments):
        return "it takes no tensor"
    return None


def _named(overload: Any) -> str:
    """As in the op's name: `silu.default`."""
    return f"{overload._schema.name.partition('::')[2]}.{overload._schema.overload_name or 'default'}"


def _kind(argument: Any) -> str | None:
    """As an op's schema writes it; None for what a kernel is not handed."""
    text = str(argument.real_type)
    text = text.replace("SymInt", "int").replace("Scalar", "number") if "ScalarType" not in text else text
    return _TENSORS.get(text) or _SCALARS.get(text)


def _is_tensor(argument: Any) -> bool:
    return (_kind(argument) or "").startswith("Tensor")


def _bare(item: Any) -> Any:
    """The tensor's form without memory."""
    if not isinstance(item, Tensor):
        return item
    return torch.empty_strided(item.shape, item.stride(), dtype=item.dtype, device="meta")


def _form(item: Any, device: torch.device, overload: Any) -> tuple[Any, ...]:
    if not isinstance(item, Tensor) or not item.is_floating_point():
        kind = name_of(item.dtype) if isinstance(item, Tensor) else type(item).__name__
        raise RuntimeError(f"{overload} returns {kind} here, and only errors of floating-point numbers can be judged")
    return tuple(item.shape), item.stride(), item.dtype, device


def _random(draw: Draw) -> Tensor:
    return draw.normal(1)[0].sigmoid()


def _shuffled(draw: Draw, item: Tensor) -> Tensor:
    """The same values in other places, in the same layout."""
    order = draw.normal(item.numel()).argsort().to(item.device)
    return torch.empty_like(item).copy_(item.reshape(-1)[order].reshape(item.shape))


def _apart(item: Tensor) -> Tensor:
    """The same values in rows with gaps between them."""
    if not item.dim():
        return item
    wide = item.new_zeros(*item.shape[:-1], 2 * item.shape[-1])
    return wide[..., : item.shape[-1]].copy_(item)


_UNIMPLEMENTED = nn.Module.forward
"""That of containers, which nobody calls."""

PLUGIN = AtenOp()
