"""FlashInfer-Bench and SOL-ExecBench: a solution's JSON, its definition beside it or in the data set."""

from __future__ import annotations

import ast
import re
from pathlib import Path, PurePosixPath
from typing import Any

from e2e.errors import UsageError
from e2e.formats._arguments import ARGUMENTS, argument_called, explained
from e2e.formats._dataset import claim_of, definition_of
from e2e.formats._files import decode, read_bytes
from e2e.formats._names import shown_spec
from e2e.formats._python import known_op
from e2e.formats._solution import Definition, Solution, checked, parsed_json
from e2e.formats._source import scan
from e2e.formats._unpacked import unpacked
from e2e.schema.kernel import Kernel, Manifest
from e2e.sources import digest
from e2e.yaml_lines import printable

_PYTHON = ("python", "pytorch", "triton", "tlx", "cute_dsl", "cutedsl", "cutile", "tilelang", "cudnn_frontend")
_COMPILED = ("cuda", "cuda_cpp", "cpp", "cutlass", "cublas")
_ON_CPU = ("python", "pytorch", "cpp")
_UNITS = (".cu", ".cpp", ".cc", ".cxx", ".c")
_OPS = {
    "rmsnorm": "rms_norm",
    "fused_add_rmsnorm": "add_rms_norm",
    "layernorm": "layer_norm",
    "silu_and_mul": "silu_mul",
    "gelu_and_mul": "gelu_mul",
    "gemm": "linear",
    **{name: name for name in ARGUMENTS},
}
"""Definitions and op types that mean the same as an op here; the arguments decide in the end."""
_SIZES = re.compile(r"(_[a-z]+\d+)*$")
"""What definitions' names end with: `rmsnorm_h4096`, `gemm_n128_k2048`."""
_ROWS = ("x", "residual", "gate", "up", "ids")
"""Arguments whose leading dimensions are rows, however many there are."""
_LAST_OF_X, _LAST_OF_GATE = {"hidden": ("x", -1)}, {"hidden": ("gate", -1)}
_DIMENSIONS = {
    "rms_norm": _LAST_OF_X,
    "add_rms_norm": _LAST_OF_X,
    "layer_norm": _LAST_OF_X,
    "gelu": _LAST_OF_X,
    "silu": _LAST_OF_X,
    "silu_mul": _LAST_OF_GATE,
    "gelu_mul": _LAST_OF_GATE,
    "linear": {"inputs": ("x", -1), "outputs": ("weight", 0)},
}
"""Named dimensions of ops, and which axis of which argument they are."""
_DTYPES = ("float32", "float16", "bfloat16")
_FAST = re.compile(r"fast[-_]math|-Ofast|ftz=true|prec-(div|sqrt)=false")
_EPS = re.compile(r"eps(ilon)?", re.IGNORECASE)


class SolutionFormat:
    """Reads a solution of either dialect; its sources are unpacked into the cache."""

    def read(self, spec: str, *, op: str | None) -> Kernel | None:
        """The kernel; None for a file that is no JSON or holds something else.

        Raises:
            UsageError: damaged, without its definition, for no op of ours, or in a language that is not read.
        """
        path, shown = Path(spec), shown_spec(spec)
        content = read_bytes(path, spec) if path.suffix == ".json" else None
        if content is None:
            return None
        data = parsed_json(decode(content, spec), shown)
        if not isinstance(data, dict) or not {"spec", "sources", "definition"} & data.keys():
            if isinstance(data, dict) and {"axes", "reference"} <= data.keys():
                raise UsageError(f"{shown}: this is a definition; name a solution of it, such as solution.json")
            return None
        solution = checked(Solution, data, shown)
        reader = _Reader(solution, definition_of(solution, path, shown), shown, asked=op)
        return reader.kernel(spec, path)


class _Reader:
    def __init__(self, solution: Solution, definition: Definition, shown: str, *, asked: str | None) -> None:
        self.solution, self.definition, self.shown = solution, definition, shown
        self.op = known_op(asked, None, f"{shown}: --op") if asked else self._op()
        self.notes: list[str] = []

    def kernel(self, spec: str, path: Path) -> Kernel:
        """The kernel, with its sources unpacked."""
        languages = [language.lower() for language in self.solution.spec.languages]
        if all(language in _PYTHON for language in languages):
            fields, entry = self._python(), self.solution.entry[0]
            extra: dict[str, str] = {}
        elif all(language in _COMPILED for language in languages):
            fields, entry, extra = self._compiled()
        else:
            known = ", ".join((*_PYTHON, *_COMPILED))
            raise self._mistake("spec.language", f"{', '.join(languages)} is not read; known: {known}")
        sources = {source.path: source.content for source in self.solution.sources} | extra
        root = unpacked(sources)
        first, others = root / entry, sorted(str(root / name) for name in sources if name != entry)
        if any(language not in _ON_CPU for language in languages):
            fields["device"] = "cuda"
        self._note_epsilon()
        return Kernel(
            spec=spec,
            path=str(first),
            others=others,
            sha256=digest(first, others),
            manifest=Manifest(**self._call(), **fields, claim=claim_of(self.solution, path)),
            format="solution",
            inside=entry,
            notes=self.notes,
        )

    def _op(self) -> str:
        name, kind = self.definition.name, self.definition.op_type
        for word in (_SIZES.sub("", name), kind):
            if word in _OPS:
                return known_op(_OPS[word], None, f"{self.shown}: definition {name!r}")
        typed = f" (op_type {printable(kind)!r})" if kind else ""
        raise self._mistake(
            "definition", f"{printable(name)!r}{typed} is no op of e2e; pass --op NAME where it computes one"
        )

    def _call(self) -> dict[str, Any]:
        """Arguments in the definition's order, dimensions, dtypes and the sizes that it is for."""
        if self.op not in ARGUMENTS:
            return {"op": self.op}
        names: dict[str, str] = {}
        for theirs in self.definition.inputs:
            own = argument_called(theirs, self.op, names)
            if own is None:
                raise self._mistake(
                    f"inputs.{printable(theirs)}",
                    f"definition {self.definition.name!r} has an argument that {self.op} ({explained(self.op)}) "
                    "does not have: it is another op",
                )
            names[own] = theirs
        shapes = {own: self.definition.inputs[theirs].shape for own, theirs in names.items()}
        first = next(iter(names))
        sizes = {
            name: self.definition.size_of((shapes.get(own) or [""])[axis])
            for name, (own, axis) in _DIMENSIONS.get(self.op, {}).items()
        }
        return {
            "op": self.op,
            "args": list(names),
            "ranks": {own: len(shape) for own, shape in shapes.items() if shape and own in _ROWS},
            "dtypes": [self._dtype(names[first])],
            "constraints": [f"{name} == {size}" for name, size in sizes.items() if size is not None],
        }

    def _dtype(self, theirs: str) -> str:
        dtype = self.definition.inputs[theirs].dtype
        if dtype not in _DTYPES and theirs not in ("ids", "indices", "input_ids"):
            raise self._mistake(f"inputs.{printable(theirs)}.dtype", f"{printable(dtype)} is none of {_DTYPES}")
        return next((spec.dtype for spec in self.definition.outputs.values() if spec.dtype in _DTYPES), "float32")

    def _python(self) -> dict[str, Any]:
        file, function = self.solution.entry
        text = next(source.content for source in self.solution.sources if source.path == file)
        last = self.solution.spec.destination_passing_style
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            tree = None  # the builder reports it, as the candidate's fault
        if tree is not None:
            found = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
            entry = next((node for node in found if node.name == function), None)
            if entry is None:
                there = ", ".join(node.name for node in found) or "none"
                raise self._mistake("spec.entry_point", f"no function {function!r} in {file}; it has: {there}")
            if last is None:  # solutions older than the field return their outputs
                last = len(entry.args.posonlyargs + entry.args.args) != len(self.definition.inputs)
        return {"entry": function, "binding": "python", "outputs": "last" if last in (None, True) else "return"}

    def _compiled(self) -> tuple[dict[str, Any], str, dict[str, str]]:
        spec, function = self.solution.spec, self.solution.entry[1]
        theirs = (spec.binding or "").replace("_", "-")
        texts = {source.path: source.content for source in self.solution.sources}
        scanned = scan("\n".join(texts.values()), ".cu" if any(name.endswith(".cu") for name in texts) else ".cpp")
        if theirs not in ("", scanned.binding) or scanned.binding == "raw":
            raise self._mistake(
                "spec.binding",
                f"{printable(theirs) or 'none'}, but the sources are bound by "
                f"{scanned.binding}; tvm-ffi and torch are read",
            )
        if function not in scanned.functions:
            there = ", ".join(scanned.functions) or "nothing"
            raise self._mistake("spec.entry_point", f"{function!r} is not exported; exported: {there}")
        options = spec.compile_options
        flags = [*(options.cuda_cflags if scanned.needs_cuda else options.cflags), *options.ld_flags] if options else []
        if fast := [flag for flag in flags if _FAST.search(flag)]:
            self.notes.append(f"compiled with fast maths, as the solution asks: {' '.join(fast)}")
        fields = {
            "entry": function,
            "binding": scanned.binding,
            "device": "cuda" if scanned.needs_cuda else "cpu",
            "outputs": "return" if spec.destination_passing_style is False else "last",
            "flags": flags,
        }
        units = [name for name in texts if PurePosixPath(name).suffix in _UNITS]
        if len(units) <= 1:
            return fields, (units or [self.solution.entry[0]])[0], {}
        # One compiler call, no build system: the entry's file comes last, and sees what it calls.
        units.sort(key=self.solution.entry[0].__eq__)
        whole = "all_of_it.cu" if scanned.needs_cuda else "all_of_it.cpp"
        return fields, whole, {whole: "".join(f'#include "{name}"\n' for name in units)}

    def _note_epsilon(self) -> None:
        """A definition without an epsilon among its inputs fixes one in its reference."""
        if "eps" not in ARGUMENTS.get(self.op, ()) or any(map(_EPS.fullmatch, self.definition.inputs)):
            return
        found = re.search(r"\beps(?:ilon)?\s*=\s*([\d.]+(?:e-?\d+)?)", self.definition.reference, re.IGNORECASE)
        fixed = f"fixes epsilon at {found.group(1)}" if found else "leaves epsilon to the kernel"
        self.notes.append(f"definition {self.definition.name} {fixed}: at a site with another one it is wrong")

    def _mistake(self, field: str, message: str) -> UsageError:
        return UsageError(f"{self.shown}: {field}: {message}")


PLUGIN = SolutionFormat()
