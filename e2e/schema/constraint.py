"""Arithmetic over named dimensions, as kernel files use it. Parsed, never evaluated as code."""

from __future__ import annotations

import ast
import functools
import operator
import warnings
from collections.abc import Callable, Mapping

_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[int | str, int | str], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_LIMIT = 200
"""Longest expression, in characters; nobody needs more, and parsing stays cheap."""


def check_expression(text: int | str, *, comparison: bool = False) -> None:
    """Raise ValueError unless `text` is an integer or an expression that `evaluate` or `holds` can read."""
    if isinstance(text, int):
        return
    node = _parse(text)
    if comparison != isinstance(node, ast.Compare):
        wanted = "a comparison such as 'hidden % 8 == 0'" if comparison else "arithmetic such as '4 * hidden'"
        raise ValueError(f"{text!r} must be {wanted}")
    names: dict[str, int | str] = {child.id: 2 for child in ast.walk(node) if isinstance(child, ast.Name)}
    if comparison:
        names["dtype"] = "float32"
    try:
        value = _value(node, names)
    except _DivisionByZeroError:
        return  # depends on the dimensions; only the form is checked here
    if not isinstance(value, int):
        raise ValueError(f"{text!r} is not a number")


def names_in(text: int | str) -> tuple[list[str], list[str]]:
    """Names, and texts to compare with, that a checked expression has, in their order."""
    if isinstance(text, int):
        return [], []
    nodes = list(ast.walk(_parse(text)))
    names = [node.id for node in nodes if isinstance(node, ast.Name)]
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return list(dict.fromkeys(names)), texts


def evaluate(text: int | str, dims: Mapping[str, int | str]) -> int:
    """Value of an arithmetic expression over `dims`.

    Raises:
        ValueError: not such an expression, an unknown name, or a division by zero.
    """
    if isinstance(text, int):
        return text
    value = _value(_parse(text), dims)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{text!r} is not a number")
    return value


def holds(text: str, dims: Mapping[str, int | str]) -> bool:
    """Whether a comparison over `dims` holds.

    Raises:
        ValueError: not a comparison, an unknown name, or a division by zero.
    """
    value = _value(_parse(text), dims)
    if not isinstance(value, bool):
        raise ValueError(f"{text!r} is not a comparison")
    return value


class _DivisionByZeroError(ValueError):
    """The form is right, and these dimensions are not."""


@functools.lru_cache(maxsize=512)  # a guarded kernel asks at every call
def _parse(text: str) -> ast.expr:
    if len(text) > _LIMIT:
        raise ValueError(f"an expression has at most {_LIMIT} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns about oddities such as `1if`; they are refused below
            return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ValueError(f"{text!r} is not an expression") from error


def _value(node: ast.expr, dims: Mapping[str, int | str]) -> int | str | bool:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | str) and not isinstance(node.value, bool):
        return node.value
    if isinstance(node, ast.Name):
        if node.id not in dims:
            raise ValueError(f"unknown name {node.id!r}; known: {', '.join(sorted(dims))}")
        return dims[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        left, right = _value(node.left, dims), _value(node.right, dims)
        if not isinstance(left, int) or not isinstance(right, int):
            raise ValueError("arithmetic is over numbers")
        if isinstance(node.op, ast.FloorDiv | ast.Mod) and right == 0:
            raise _DivisionByZeroError("division by zero")
        return _ARITHMETIC[type(node.op)](left, right)
    if isinstance(node, ast.Compare):
        values = [_value(item, dims) for item in (node.left, *node.comparators)]
        return all(_compare(op, a, b) for op, a, b in zip(node.ops, values, values[1:], strict=False))
    raise ValueError(f"{ast.unparse(node)!r} is not allowed here: only + - * // % and comparisons over names")


def _compare(op: ast.cmpop, left: int | str | bool, right: int | str | bool) -> bool:
    if type(op) not in _COMPARISONS:
        raise ValueError("only == != < <= > >= are allowed")
    if isinstance(left, str) != isinstance(right, str):
        raise ValueError("a name is compared with something of another kind")
    return _COMPARISONS[type(op)](left, right)
