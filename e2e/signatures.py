"""What an op's file says about its call, read as text: the parent imports no op, since ops import torch."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from e2e import outside, registry
from e2e.errors import UsageError

_PACKAGE = registry.ROOT.name
_ARGUMENT = re.compile(r"(?P<kind>\w+(?:\(\w+!\))?(?:\[\])?\??) (?P<name>\w+)")
_SIZED = re.compile(r"(\w+)\[([^\[\]]+)\]")


@dataclass(frozen=True)
class Argument:
    """One argument of an op."""

    kind: str
    """As torch writes it: `Tensor`, `Tensor?`, `float`, `int`, `bool`."""
    name: str


@dataclass(frozen=True)
class Signature:
    """How an op is called, and which PyTorch paths compute it today."""

    schema: str
    """As in `Op.schema`."""
    alternatives: tuple[str, ...]
    """Also those that only some versions of PyTorch have."""
    names: tuple[str, ...] | None = None
    """The call's arguments, by the class's own names; None where only a model says what they are."""
    dims: tuple[str, ...] | None = None
    """Named dimensions of a call, `dim[0-9]*` for `dim0`, `dim1`, ...; None where `dims` does not show them."""
    parameters: tuple[str, ...] | None = ()
    """Those of the tensors that are the site's own; None where only the running op says so."""
    sizes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Dimensions of tensors, as the first line of the file has them: `x[..., hidden]`."""

    @property
    def arguments(self) -> list[Argument]:
        """In their order."""
        inside = self.schema.partition("(")[2].rpartition("->")[0]
        return [Argument(found["kind"], found["name"]) for found in _ARGUMENT.finditer(inside)]

    @property
    def outputs(self) -> int:
        """How many tensors a call returns."""
        return self.schema.rpartition("->")[2].count("Tensor")

    @property
    def is_whole(self) -> bool:
        """Whether the schema has every argument of every call."""
        return self.names == tuple(argument.name for argument in self.arguments)


def signature_of(op: str) -> Signature | None:
    """The signature of a registered op, or of one from outside; None where its file states it in another way.

    A class states both as literals: `schema = "..."` and `alternatives = {"name": ...}`, in its body or as
    attributes of `self`, and what it does not state its bases do.

    Raises:
        UsageError: the file cannot be read, is not Python, or has no such class.
    """
    place = outside.place_of(op)
    path = place.file if place else registry.path_of("ops", op.partition(":")[0])
    module = _parsed(path)
    name = place.attribute if place else _plugin(module)
    if place and name not in (*_defined(module), *_imports(module)):
        raise UsageError(f"op {path}: there is no {name!r} in it; it has: {', '.join(_defined(module)) or 'nothing'}")
    chain = list(_Classes(module).chain(name))
    stated = [_literals(node) for node in chain]
    schemas = [item.value for item in _stated(stated, "schema") if isinstance(item, ast.Constant)]
    keys = [key for item in _stated(stated, "alternatives") if isinstance(item, ast.Dict) for key in item.keys]
    if not schemas or not isinstance(schemas[-1], str):
        return None
    tensors, scalars = (_names(_stated(stated, f"{kind}_names")) for kind in ("tensor", "scalar"))
    return Signature(
        schemas[-1],
        tuple(str(key.value) for key in keys if isinstance(key, ast.Constant)),
        names=None if tensors is None or scalars is None else (*tensors, *scalars),
        dims=_dims(chain),
        parameters=_parameters(chain, _names(_stated(stated, "parameter_names")), tensors),
        sizes=_sizes(module),
    )


def _parsed(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"op {path} cannot be read: {error}") from error


def _defined(module: ast.Module) -> list[str]:
    """Public classes and values of the file."""
    classes = [node.name for node in module.body if isinstance(node, ast.ClassDef)]
    assigned = [node for node in module.body if isinstance(node, ast.Assign | ast.AnnAssign)]
    values = [ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target) for node in assigned]
    return [name for name in (*classes, *values) if not name.startswith("_")]


def _imports(module: ast.Module) -> list[str]:
    """Names that the file has from others; `*` may be any."""
    imports = (node for node in ast.walk(module) if isinstance(node, ast.ImportFrom))
    return [item.asname or item.name for node in imports for item in node.names]


def _plugin(module: ast.Module) -> str:
    """The class that `PLUGIN = Class()` names."""
    for node in module.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PLUGIN":
            return ast.unparse(node.value).partition("(")[0]
    return ""


class _Classes:
    """Classes of a file."""

    def __init__(self, module: ast.Module) -> None:
        self._module = module
        self._seen: set[str] = set()

    def chain(self, class_name: str) -> Iterator[ast.ClassDef]:
        """The class, then its bases, each once, the nearest first; of other files those of this package."""
        if class_name in self._seen:
            return
        self._seen.add(class_name)
        for node in self._module.body:
            if isinstance(node, ast.ClassDef) and node.name == class_name:
                yield node
                for base in node.bases:
                    yield from self.chain(ast.unparse(base))
                return
            if isinstance(node, ast.ImportFrom) and any(item.name == class_name for item in node.names):
                yield from _imported(node.module or "", class_name)
                return


def _imported(module: str, class_name: str) -> Iterator[ast.ClassDef]:
    """From another file of this package; what others wrote is not followed."""
    package, *parts = module.split(".")
    path = registry.ROOT.joinpath(*parts).with_suffix(".py")
    if package == _PACKAGE and path.is_file():
        yield from _Classes(_own(path)).chain(class_name)


@cache
def _own(path: Path) -> ast.Module:
    """A file of this package, which many ops share."""
    return _parsed(path)


def _stated(literals: list[list[tuple[str, ast.expr]]], name: str) -> list[ast.expr]:
    """The literals that a class gives the name, or the first of its bases that gives one."""
    for of_class in literals:
        if own := [value for target, value in of_class if target in (name, f"self.{name}")]:
            return own
    return []


def _names(values: list[ast.expr]) -> tuple[str, ...] | None:
    """A tuple of texts, the last that is stated; None where there is none, or one that is worked out."""
    last = values[-1] if values else None
    if not isinstance(last, ast.Tuple) or not all(isinstance(item, ast.Constant) for item in last.elts):
        return None
    return tuple(str(item.value) for item in last.elts if isinstance(item, ast.Constant))


def _method(chain: list[ast.ClassDef], name: str) -> ast.FunctionDef | None:
    methods = (item for node in chain for item in node.body if isinstance(item, ast.FunctionDef))
    return next((item for item in methods if item.name == name), None)


def _parameters(
    chain: list[ast.ClassDef], stated: tuple[str, ...] | None, tensors: tuple[str, ...] | None
) -> tuple[str, ...] | None:
    """`parameter_names` as a literal, or as the property that e2e's own bases have."""
    if stated is not None:
        return stated
    method = _method(chain, "parameter_names")
    if method is None:
        return ()
    is_rest = ast.unparse(method.body[-1]) == "return self.tensor_names[1:]"
    return tensors[1:] if is_rest and tensors is not None else None


def _sizes(module: ast.Module) -> dict[str, tuple[str, ...]]:
    call = (ast.get_docstring(module) or "").partition("\n")[0].partition("->")[0]
    return {name: tuple(part.strip() for part in inside.split(",")) for name, inside in _SIZED.findall(call)}


def _dims(chain: list[ast.ClassDef]) -> tuple[str, ...] | None:
    """Keys of the mappings that `dims` writes down; None where it has them from elsewhere."""
    method = _method(chain, "dims")
    if method is None:
        return None
    keys: list[ast.expr | None] = []
    for node in ast.walk(method):
        if isinstance(node, ast.Dict):
            keys += [key for key, value in zip(node.keys, node.values, strict=True) if _is_named(key, value)]
        elif isinstance(node, ast.DictComp):
            keys.append(node.key)
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            keys.append(node.slice)
        elif isinstance(node, ast.Return) and isinstance(node.value, ast.Call):
            return None
    patterns = [_pattern(key) for key in keys]
    known = tuple(pattern for pattern in patterns if pattern is not None)
    return known if known and len(known) == len(patterns) else None


def _is_named(key: ast.expr | None, value: ast.expr) -> bool:
    """Whether an entry adds a key of its own: `**sizes` of a mapping made in the same place does not."""
    return key is not None or not isinstance(value, ast.Name)


def _pattern(key: ast.expr | None) -> str | None:
    """A key's text, as a pattern where a number is filled in."""
    if isinstance(key, ast.Constant):
        return str(key.value)
    if isinstance(key, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "[0-9]*" for part in key.values)
    return None


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Those inside a statement, at any depth; expressions, which are most of a file, are not gone through."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):
            yield child
            yield from _statements(child)


def _literals(node: ast.ClassDef) -> list[tuple[str, ast.expr]]:
    """Every `name = value`, `self.name = value` and `|=` in a class whose value is a text, a tuple or a mapping."""
    found: list[tuple[str, ast.expr]] = []
    for item in _statements(node):
        if isinstance(item, ast.Assign | ast.AnnAssign | ast.AugAssign):
            value, targets = item.value, item.targets if isinstance(item, ast.Assign) else [item.target]
            if isinstance(value, ast.Constant | ast.Dict | ast.Tuple):
                found.extend((ast.unparse(target), value) for target in targets)
    return found
