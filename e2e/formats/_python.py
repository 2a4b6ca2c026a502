"""Python sources as other harnesses write them: what stands at their top level, read and never run."""

from __future__ import annotations

import ast
import hashlib
from dataclasses import dataclass
from pathlib import Path

from e2e import registry
from e2e.errors import UsageError
from e2e.formats._files import decode, opens_block, read_bytes
from e2e.formats._names import check_op, shown_spec
from e2e.formats._source import same_name

_NEEDS_CUDA = ("triton", "cutlass", "cuda", "cupy")


@dataclass(frozen=True)
class PythonFile:
    """A parsed file."""

    shown: str
    path: Path
    sha256: str
    tree: ast.Module

    def class_called(self, name: str) -> ast.ClassDef | None:
        """The top-level class of that name."""
        return next((node for node in self.tree.body if isinstance(node, ast.ClassDef) and node.name == name), None)

    def function_called(self, name: str) -> ast.FunctionDef | None:
        """The top-level function of that name."""
        return next((node for node in self.tree.body if isinstance(node, ast.FunctionDef) and node.name == name), None)

    def constant_called(self, name: str) -> ast.Constant | None:
        """What is assigned to that name at the top level, if it is a constant."""
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
                return node.value if isinstance(node.value, ast.Constant) else None
        return None

    @property
    def device(self) -> str | None:
        """`cuda` for what imports a GPU compiler or holds CUDA sources; None runs wherever the workload runs."""
        for node in ast.walk(self.tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.partition(".")[0] in _NEEDS_CUDA for name in names):
                return "cuda"
            if isinstance(node, ast.keyword) and node.arg == "cuda_sources" and not _is_empty(node.value):
                return "cuda"
        return None

    def refused(self, node: ast.AST | None, message: str) -> UsageError:
        """A mistake in the file, with the line of `node`."""
        return UsageError(f"{self.shown}:{getattr(node, 'lineno', 1)}: {message}")


def python_file(spec: str) -> PythonFile | None:
    """The parsed file; None for what is no Python file, does not parse, or describes itself in a block of ours.

    Raises:
        UsageError: it cannot be read.
    """
    path = Path(spec)
    content = read_bytes(path, spec) if path.suffix == ".py" else None
    if content is None:
        return None
    text = decode(content, spec)
    if any(map(opens_block, text.split("\n"))):
        return None
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # for the reader of any source to report
    return PythonFile(shown_spec(spec), path.absolute(), hashlib.sha256(content).hexdigest(), tree)


def op_for(asked: str | None, stem: str, where: str) -> str:
    """The op of a format that does not say which it is: `--op`, else what the file's name spells.

    Raises:
        UsageError: neither.
    """
    op = asked or same_name(stem, registry.names("ops"))
    if op is None:
        known = ", ".join(registry.names("ops"))
        ways = f"known: {known}; module:CLASS or aten:NAME.OVERLOAD for any"
        raise UsageError(f"{where}: which op does it replace? Pass --op NAME ({ways})")
    return op


def known_op(op: str, asked: str | None, where: str) -> str:
    """The op that a file's own words name.

    Raises:
        UsageError: nobody registered it, or `--op` says otherwise.
    """
    if asked not in (None, op):
        raise UsageError(f"{where}: it is for {op}, where {asked!r} is wanted")
    try:
        check_op(op)
    except UsageError as error:
        raise UsageError(f"{where}: {error.message}") from error
    return op


def parameters(function: ast.FunctionDef) -> list[tuple[str, bool]]:
    """Names of what can be passed by position, and whether each is required."""
    names = [item.arg for item in (*function.args.posonlyargs, *function.args.args)]
    optional = len(function.args.defaults)
    return [(name, place < len(names) - optional) for place, name in enumerate(names)]


def _is_empty(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant | ast.List | ast.Tuple) and not (
        value.value if isinstance(value, ast.Constant) else value.elts
    )
