"""What an op's file says about its call, read as text: the parent imports no op, since ops import torch."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

from e2e import outside, registry
from e2e.errors import UsageError

_PACKAGE = registry.ROOT.name
_ARGUMENT = re.compile(r"(?P<kind>\w+(?:\(\w+!\))?(?:\[\])?\??) (?P<name>\w+)")


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

    @property
    def arguments(self) -> list[Argument]:
        """In their order."""
        inside = self.schema.partition("(")[2].rpartition("->")[0]
        return [Argument(found["kind"], found["name"]) for found in _ARGUMENT.finditer(inside)]

    @property
    def outputs(self) -> int:
        """How many tensors a call returns."""
        return self.schema.rpartition("->")[2].count("Tensor")


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
    if place and name not in _defined(module):
        raise UsageError(f"op {path}: there is no {name!r} in it; it has: {', '.join(_defined(module)) or 'nothing'}")
    found = _Literals(path, module)
    schemas = [item.value for item in found.stated(name, "schema") if isinstance(item, ast.Constant)]
    keys = [key for item in found.stated(name, "alternatives") if isinstance(item, ast.Dict) for key in item.keys]
    if not schemas or not isinstance(schemas[-1], str):
        return None
    return Signature(schemas[-1], tuple(str(key.value) for key in keys if isinstance(key, ast.Constant)))


def _parsed(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        raise UsageError(f"op {path} cannot be read: {error}") from error


def _defined(module: ast.Module) -> list[str]:
    """Public classes and values of the file."""
    classes = [node.name for node in module.body if isinstance(node, ast.ClassDef)]
    assigned = [node for node in module.body if isinstance(node, ast.Assign | ast.AnnAssign)]
    values = [ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target) for node in assigned]
    return [name for name in (*classes, *values) if not name.startswith("_")]


def _plugin(module: ast.Module) -> str:
    """The class that `PLUGIN = Class()` names."""
    for node in module.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PLUGIN":
            return ast.unparse(node.value).partition("(")[0]
    return ""


class _Literals:
    """Values that a file's classes and their bases assign to a name."""

    def __init__(self, path: Path, module: ast.Module) -> None:
        self._path, self._module = path, module

    def stated(self, class_name: str, name: str) -> list[ast.expr]:
        """The values that the class gives the name, or the first of its bases that gives one."""
        for node in self._module.body:
            if isinstance(node, ast.ClassDef) and node.name == class_name:
                own = [value for target, value in _literals(node) if target in (name, f"self.{name}")]
                bases = (self.stated(ast.unparse(base), name) for base in node.bases)
                return own or next((values for values in bases if values), [])
            if isinstance(node, ast.ImportFrom) and any(item.name == class_name for item in node.names):
                return self._imported(node.module or "", class_name, name)
        return []

    def _imported(self, module: str, class_name: str, name: str) -> list[ast.expr]:
        """From another file of this package; what others wrote is not followed."""
        package, *parts = module.split(".")
        path = registry.ROOT.joinpath(*parts).with_suffix(".py")
        if package != _PACKAGE or not path.is_file():
            return []
        return _Literals(path, _parsed(path)).stated(class_name, name)


def _literals(node: ast.ClassDef) -> list[tuple[str, ast.expr]]:
    """Every `name = value`, `self.name = value` and `|=` in a class whose value is a text or a mapping."""
    found = []
    for item in ast.walk(node):
        if isinstance(item, ast.Assign):
            found += [(ast.unparse(target), item.value) for target in item.targets]
        elif isinstance(item, ast.AnnAssign | ast.AugAssign) and item.value is not None:
            found.append((ast.unparse(item.target), item.value))
    return [(target, value) for target, value in found if isinstance(value, ast.Constant | ast.Dict)]
