"""BackendBench: an operator's folder, or the file OP__OVERLOAD_implementation*.py in it."""

from __future__ import annotations

import re
from pathlib import Path

from e2e.formats._names import shown_spec
from e2e.formats._python import PythonFile, known_op, python_file
from e2e.schema.kernel import Kernel, Manifest

_FILE = re.compile(r"(?P<name>\w+?)_implementation(_\w+)?\.py")
_OPS = {
    "rms_norm": "rms_norm",
    "layer_norm": "layer_norm",
    "native_layer_norm": "layer_norm",
    "silu": "silu",
    "gelu": "gelu",
    "softmax": "softmax",
    "_softmax": "softmax",
    "linear": "linear",
    "embedding": "embedding",
}
"""Operators of ATen that are an op here; how each is called is for the builder `aten` to know. Others are `aten:`."""
_OVERLOADS = ("", "default", "int")
"""Those that a forward calls: `softmax.int` takes a dimension by number."""


class BackendBenchFormat:
    """Reads `OP_kernel_impl`, which is called as ATen calls the operator."""

    def read(self, spec: str, *, op: str | None) -> Kernel | None:
        """The kernel in such a folder or file; None for anything else.

        Raises:
            UsageError: no `_kernel_impl` in the file, or `--op` says otherwise.

        Source:
            meta-pytorch/BackendBench, `backends/directory.py`.
        """
        path = _implementation(Path(spec))
        found = _FILE.fullmatch(path.name) if path else None
        file = python_file(str(path)) if found else None
        if path is None or found is None or file is None:
            return None
        name, entry = found["name"], f"{found['name']}_kernel_impl"
        operator, _, overload = name.partition("__") if not name.startswith("_") else _underscored(name)
        if file.function_called(entry) is None:
            raise file.refused(None, f"{entry}: no such function; BackendBench calls the operator by it")
        itself = f"aten:{operator}.{overload or 'default'}"
        meant = _OPS.get(operator, itself) if overload in _OVERLOADS else itself
        return _kernel(spec, file, known_op(itself if op == itself else meant, op, shown_spec(spec)), entry)


def _kernel(spec: str, file: PythonFile, op: str, entry: str) -> Kernel:
    return Kernel(
        spec=spec,
        path=str(file.path),
        sha256=file.sha256,
        manifest=Manifest(op=op, entry=entry, binding="aten", device=file.device),
        format="backendbench",
        inside=None if file.path == Path(spec).absolute() else file.path.name,
    )


def _implementation(path: Path) -> Path | None:
    """The file itself, or the first one in a folder, as BackendBench takes it."""
    try:
        found = sorted(path.glob(f"{path.name}_implementation*.py")) if path.is_dir() else [path]
    except (OSError, ValueError):
        return None
    return found[0] if found else None


def _underscored(name: str) -> tuple[str, str, str]:
    """Names such as `_softmax__default`, whose own underscore is no separator."""
    operator, mark, overload = name[1:].partition("__")
    return f"_{operator}", mark, overload


PLUGIN = BackendBenchFormat()
