"""What functions of a source can be called with, read as text: how many arguments, and of which kind."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

TENSOR, FLOAT, DOUBLE, INTEGER, BOOLEAN, TEXT, LIST = "tensor", "float", "double", "integer", "boolean", "text", "list"
"""Kinds of native parameters."""
MODULE_CLASS = "class derived from nn.Module"

_DEFINE = re.compile(r"^[ \t]*#[ \t]*define\b(?:[^\n\\]|\\\n|\\.)*", re.MULTILINE)
_OWN_INCLUDE = re.compile(r"#\s*include\s*\"")
_KINDS = (
    (LIST, re.compile(r"\b(?:Array|vector|TensorList|ArrayRef)\b")),
    (TENSOR, re.compile(r"\b(?:Tensor|TensorView|DLTensor)\b")),
    (TEXT, re.compile(r"\b(?:[sS]tring|string_view)\b")),
    (BOOLEAN, re.compile(r"\bbool\b")),
    (FLOAT, re.compile(r"\bfloat\b")),
    (DOUBLE, re.compile(r"\bdouble\b")),
    (INTEGER, re.compile(r"\b(?:u?int(?:8|16|32|64)?_t|u?int|long|short|size_t|ptrdiff_t|unsigned)\b")),
)
_OPEN, _CLOSE = "(<[{", ")>]}"
_ANYWHERE = frozenset({"globals", "exec", "eval", "setattr", "locals", "vars"})
"""Functions by whose use a module may hold what its text does not show."""
_TRITON = re.compile(r"(?:triton\.)?jit(?:\(.*\))?|(?:triton\.)?(?:autotune|heuristics)\(.*\)", re.DOTALL)


@dataclass(frozen=True)
class Function:
    """What a name stands for in a source."""

    line: int
    what: str = "function"
    """`function`; or in words what else it is."""
    least: int = 0
    most: float = math.inf
    """How many arguments it can be called with by position."""
    names: tuple[str, ...] = ()
    """Of its parameters, where they are known."""
    kinds: tuple[str | None, ...] = ()
    """Of native parameters; None is a type that is not known here."""
    returned: frozenset[int] | None = None
    """How many values its `return`s give, where all of them show it; 0 where there is none."""

    def fits(self, count: int) -> bool:
        """Whether it can be called with so many arguments."""
        return self.least <= count <= self.most


# ---- C++ and CUDA


def is_whole(code: str, made_by: re.Pattern[str]) -> bool:
    """Whether no macro and no file of the author's own can add functions to those that the text shows."""
    return not _OWN_INCLUDE.search(code) and not any(made_by.search(macro[0]) for macro in _DEFINE.finditer(code))


def native_function(code: str, name: str) -> Function | None:
    """The definition of a C++ function; None where it is none or not the only one of that name."""
    found = []
    for start in re.finditer(rf"(?<![\w.>]){re.escape(name)}\s*\(", code):
        inside, end = _enclosed(code, start.end())
        if inside is not None and re.match(r"\s*(?:noexcept\s*)?\{", code[end:]):
            found.append((start.start(), inside))
    if len(found) != 1:
        return None
    position, inside = found[0]
    parameters = [] if inside.strip() in ("", "void") else _split(inside)
    return Function(
        line=code.count("\n", 0, position) + 1,
        least=len(parameters),
        most=len(parameters),
        names=tuple(_name(item) for item in parameters),
        kinds=tuple(_kind(item) for item in parameters),
    )


def _enclosed(code: str, start: int) -> tuple[str | None, int]:
    """Text up to the parenthesis that closes the one before `start`, and the place after it."""
    depth = 1
    for place in range(start, min(len(code), start + 10_000)):
        depth += {"(": 1, ")": -1}.get(code[place], 0)
        if depth == 0:
            return code[start:place], place + 1
    return None, start


def _split(inside: str) -> list[str]:
    """Parts between the commas that stand in no brackets."""
    parts, depth = [""], 0
    for char in inside:
        depth += (char in _OPEN) - (char in _CLOSE)
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts]


def _name(parameter: str) -> str:
    found = re.findall(r"\w+", parameter.partition("=")[0].partition("[")[0])
    return found[-1] if len(found) > 1 else "?"


def _kind(parameter: str) -> str | None:
    kind = parameter.partition("=")[0]
    if "*" in kind or "[" in kind:
        return TENSOR
    kind = re.sub(r"\w+\s*$", "", kind) if len(re.findall(r"\w+", kind)) > 1 else kind
    return next((name for name, form in _KINDS if form.search(kind)), None)


# ---- Python


def python_names(tree: ast.Module) -> dict[str, Function]:
    """What stands at a module's top level, by name."""
    found: dict[str, Function] = {}
    for name, item in _bound(tree.body):
        # of one that is bound twice only the name is known
        found[name] = Function(item.line) if name in found else item
    return found


def shows_all(tree: ast.Module) -> bool:
    """Whether a module can hold no other names than its text shows."""
    for node in ast.walk(tree):
        is_indirect = isinstance(node, ast.Name) and node.id in _ANYWHERE
        is_star = isinstance(node, ast.ImportFrom) and any(item.name == "*" for item in node.names)
        is_dynamic = isinstance(node, ast.FunctionDef) and node.name == "__getattr__"
        is_dict = isinstance(node, ast.Attribute) and node.attr == "__dict__"
        if is_indirect or is_star or is_dynamic or is_dict or isinstance(node, ast.Global):
            return False
    return True


def _bound(body: list[ast.stmt]) -> Iterator[tuple[str, Function]]:
    """Names that statements bind in their own scope."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, _python_function(node)
        elif isinstance(node, ast.ClassDef):
            is_module = any("Module" in ast.unparse(base) for base in node.bases)
            yield node.name, Function(node.lineno, MODULE_CLASS if is_module else "class")
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            is_plain = isinstance(node.value, ast.Constant | ast.List | ast.Dict | ast.Tuple | ast.Set)
            yield node.targets[0].id, Function(node.lineno, "value" if is_plain else "function")
        else:
            for name in _targets(node):
                yield name, Function(node.lineno)
            for inner in ("body", "orelse", "finalbody"):
                yield from _bound(getattr(node, inner, []))
            for part in (*getattr(node, "handlers", []), *getattr(node, "cases", [])):
                yield from _bound(part.body)


def _targets(node: ast.stmt) -> Iterator[str]:
    """Names that one statement binds, without those of its blocks."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        for alias in node.names:
            yield alias.asname or alias.name.partition(".")[0]
        return
    blocks = (ast.stmt, ast.ExceptHandler, ast.match_case)
    pending: list[ast.AST] = [node]
    while pending:
        item = pending.pop()
        if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store):
            yield item.id
        pending += [child for child in ast.iter_child_nodes(item) if not isinstance(child, blocks)]


def _python_function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Function:
    decorators = [ast.unparse(item) for item in node.decorator_list]
    if any(_TRITON.fullmatch(text) for text in decorators):
        return Function(node.lineno, "Triton kernel, which a function has to launch")
    if isinstance(node, ast.AsyncFunctionDef):
        return Function(node.lineno, "coroutine")
    if decorators:  # which may change how it is called
        return Function(node.lineno)
    taken = [*node.args.posonlyargs, *node.args.args]
    is_lacking = any(default is None for default in node.args.kw_defaults)
    return Function(
        node.lineno,
        "function with keyword-only parameters that have no default" if is_lacking else "function",
        least=len(taken) - len(node.args.defaults),
        most=math.inf if node.args.vararg else len(taken),
        names=tuple(item.arg for item in taken),
        returned=_returned(node),
    )


def _returned(function: ast.FunctionDef) -> frozenset[int] | None:
    """How many values it returns; a stub and a function that raises or yields do not say."""
    if all(isinstance(node, ast.Pass) or _is_constant(node) for node in function.body):
        return None
    counts: set[int | None] = set()
    pending: list[ast.AST] = list(function.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Raise | ast.Yield | ast.YieldFrom):
            counts.add(None)
        if isinstance(node, ast.Return):
            counts.add(_count(node.value))
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            pending += ast.iter_child_nodes(node)
    if None in counts:
        return None
    return frozenset(count for count in counts if count is not None) or frozenset({0})


def _is_constant(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _count(value: ast.expr | None) -> int | None:
    if value is None or (isinstance(value, ast.Constant) and value.value is None):
        return 0
    if isinstance(value, ast.Tuple) and not any(isinstance(item, ast.Starred) for item in value.elts):
        return len(value.elts)
    return None
