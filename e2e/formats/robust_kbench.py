"""robust-kbench: a CUDA or C++ file that binds `forward`, and perhaps `backward`, through torch."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from e2e import registry
from e2e.errors import UsageError
from e2e.formats._arguments import ARGUMENTS, argument_called, explained
from e2e.formats._files import decode, opens_block, read_bytes
from e2e.formats._names import check_op, shown_spec
from e2e.formats._python import op_for
from e2e.formats._source import same_name, scan
from e2e.schema.kernel import Kernel, Manifest

_SUFFIXES = (".cu", ".cpp", ".cc")
_BOUND = re.compile(r"\bm\s*\.\s*def\s*\(\s*\"(?P<name>\w+)\"\s*,\s*&?\s*(?:\w+::)*(?P<function>\w+)")
_FORWARD, _BACKWARD = "forward", "backward"
_FAST = "--use_fast_math"


class RobustKBenchFormat:
    """Reads the functions' parameters, whose names say which of the op's arguments they are."""

    def read(self, spec: str, *, op: str | None) -> Kernel | None:
        """The kernel in a file that binds `forward` and has no block of ours; None for anything else.

        Raises:
            UsageError: nothing says which op it is, or a parameter that the op does not have.

        Source:
            SakanaAI/robust-kbench, `primitives/`: how a file is compiled and which functions are called.
        """
        path, shown = Path(spec), shown_spec(spec)
        content = read_bytes(path, spec) if path.suffix in _SUFFIXES else None
        text = decode(content, spec) if content is not None else ""
        functions = {found["name"]: found["function"] for found in _BOUND.finditer(text)}
        if content is None or _FORWARD not in functions or any(map(opens_block, text.split("\n"))):
            return None
        task = path.absolute().parent.name
        known = registry.names("ops")
        chosen = op_for(op, path.stem if same_name(path.stem, known) else task, shown)
        check_op(chosen)
        cuda = scan(text, path.suffix).needs_cuda
        backward = _BACKWARD if _BACKWARD in functions else None
        if backward is not None:
            _check_backward(text, functions[_BACKWARD], chosen, shown)
        return Kernel(
            spec=spec,
            path=str(path.absolute()),
            sha256=hashlib.sha256(content).hexdigest(),
            manifest=Manifest(
                op=chosen,
                entry=_FORWARD,
                backward=backward,
                binding="torch",
                device="cuda" if cuda else "cpu",
                args=_arguments(text, functions[_FORWARD], chosen, shown),
                flags=[_FAST] if cuda else [],
            ),
            format="robust_kbench",
            notes=[f"compiled with fast maths, as robust-kbench does: {_FAST}"] if cuda else [],
        )


def _arguments(text: str, function: str, op: str, shown: str) -> list[str] | None:
    """The op's names for the parameters of `function`; None for an op whose arguments are a module's own.

    Raises:
        UsageError: one that the op does not have.
    """
    line, theirs = _parameters(text, function, shown)
    if op not in ARGUMENTS:
        return None
    names: list[str] = []
    for name in theirs:
        own = argument_called(name, op, names)
        if own is None:
            raise UsageError(f"{shown}:{line}: {function}: parameter {name!r} is none of {op}'s: {explained(op)}")
        names.append(own)
    return names


def _check_backward(text: str, function: str, op: str, shown: str) -> None:
    """Gradients of the outputs come first, then the op's tensors in their order: that is how it is called.

    Raises:
        UsageError: its parameters are others.
    """
    if op not in ARGUMENTS:
        return
    line, theirs = _parameters(text, function, shown)
    count = sum("grad" in name.lower() for name in theirs)
    names: list[str] = []
    for name in theirs[count:]:
        names += [argument_called(name, op, names) or ""]
    if count == 0 or names != [name for name in ARGUMENTS[op] if name in names]:
        raise UsageError(
            f"{shown}:{line}: {function}: takes {', '.join(theirs)}; it is called with the gradient of each output, "
            f"then the tensors of {explained(op)}"
        )


def _parameters(text: str, function: str, shown: str) -> tuple[int, list[str]]:
    """Line and parameters' names of a function's definition."""
    found = re.search(rf"\b{function}\s*\((?P<inside>[^()]*)\)\s*\{{", text)
    if found is None:
        raise UsageError(f"{shown}:1: {function}: bound, but not defined in this file")
    line = text.count("\n", 0, found.start()) + 1
    parts = [part.partition("=")[0].strip() for part in found["inside"].split(",") if part.strip()]
    return line, [re.split(r"[\s*&]+", part)[-1] for part in parts]


PLUGIN = RobustKBenchFormat()
