"""AutoKernel: a Python file with KERNEL_TYPE and kernel_fn, CUDA in a string or not."""

from __future__ import annotations

from e2e.formats._arguments import argument_called, explained
from e2e.formats._python import PythonFile, known_op, parameters, python_file
from e2e.schema.kernel import Kernel, Manifest
from e2e.yaml_lines import printable

_TYPE, _ENTRY = "KERNEL_TYPE", "kernel_fn"
_OPS = {
    "rmsnorm": "rms_norm",
    "layernorm": "layer_norm",
    "softmax": "softmax",
    "cross_entropy": "cross_entropy",
    "flash_attention": "attention",
    "rotary_embedding": "rope",
}
_OTHERS = {
    "matmul": "its second matrix is not transposed, as a linear layer's weight is",
    "fused_mlp": "it is a whole feed-forward block",
    "reduce": "no model calls it by itself",
}
"""Types that are no op here, and why."""


class AutoKernelFormat:
    """Reads `kernel_fn`, whose parameters' names say which of the op's arguments they are."""

    def read(self, spec: str, *, op: str | None) -> Kernel | None:
        """The kernel in a file with a `KERNEL_TYPE`; None for anything else.

        Raises:
            UsageError: a type that is no op of ours, no `kernel_fn`, or a parameter that the op does not have.

        Source:
            RightNow-AI/autokernel, `bench.py`, `kernels/`.
        """
        file = python_file(spec)
        kind = file.constant_called(_TYPE) if file else None
        if file is None or kind is None:
            return None
        name = str(kind.value)
        where = f"{file.shown}:{kind.lineno}: {_TYPE}"
        if op is None and name not in _OPS:
            why = f": {_OTHERS[name]}" if name in _OTHERS else f"; known: {', '.join(_OPS)}"
            raise file.refused(kind, f"{_TYPE}: {printable(name)!r} is no op of e2e{why}")
        chosen = known_op(_OPS.get(name, op or ""), op, where)
        return Kernel(
            spec=spec,
            path=str(file.path),
            sha256=file.sha256,
            manifest=Manifest(
                op=chosen, entry=_ENTRY, binding="python", args=_arguments(file, chosen), device=file.device
            ),
            format="autokernel",
        )


def _arguments(file: PythonFile, op: str) -> list[str]:
    """The op's names for `kernel_fn`'s parameters; one with a default that the op does not have keeps it.

    Raises:
        UsageError: no `kernel_fn`, or a required parameter that the op does not have.
    """
    entry = file.function_called(_ENTRY)
    if entry is None:
        raise file.refused(None, f"{_ENTRY}: no such function; {_TYPE} says that there is one")
    names: list[str] = []
    for theirs, required in parameters(entry):
        own = argument_called(theirs, op, names)
        if own is None and required:
            raise file.refused(entry, f"{_ENTRY}: parameter {theirs!r} is none of {op}'s: {explained(op)}")
        if own is None:
            break
        names.append(own)
    return names


PLUGIN = AutoKernelFormat()
