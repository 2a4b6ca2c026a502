"""From what stands on the command line to a Kernel: the first format that understands it."""

from __future__ import annotations

import os
from pathlib import Path

from e2e import outside, registry
from e2e.errors import UsageError
from e2e.formats._names import SUFFIXES, check_op, nearest_file, shown_spec
from e2e.schema.kernel import Kernel
from e2e.yaml_lines import printable

_ANY_SOURCE = "block"
"""The format that reads any source; asked last, when no other recognises what is in it."""


def read_kernel(spec: str, *, op: str | None) -> Kernel:
    """The kernel that `spec` names; `op` is what `--op` says.

    Raises:
        UsageError: no format understands it, or one does and it is damaged; all mistakes, with their lines. Or
            there is no such op.
    """
    place = outside.place_of(op or "")
    sha256 = outside.sha256_of(place) if place is not None else None
    if op is not None and place is None:
        check_op(op)
    for name in sorted(registry.names("formats"), key=_ANY_SOURCE.__eq__):
        kernel: Kernel | None = registry.load("formats", name).read(spec, op=op)
        if kernel is not None:
            if kernel.manifest.op == "patch" and kernel.manifest.kind != "patch":
                raise UsageError(
                    f"{shown_spec(spec)} is no patch: write patch:package.module:callable, or `kind: patch`"
                )
            return kernel.model_copy(update={"op_sha256": sha256})
    raise UsageError(_refusal(spec))


def _refusal(spec: str) -> str:
    shown, path = shown_spec(spec), Path(spec)
    kinds = f"a kernel is a file ({', '.join(SUFFIXES)}) or package.module:callable"
    if not spec.strip():
        return f"the kernel's name is empty; {kinds}"
    if os.path.isdir(path):
        found = sorted(name for name in os.listdir(path) if name.endswith(SUFFIXES))[:5]
        inside = f"name one file in it: {', '.join(found)}" if found else "and no kernel file is in it"
        return f"{shown} is a folder; {inside}"
    file, colon, name = spec.partition(":")
    if colon and file.endswith(SUFFIXES):
        return f"{shown}: a file's function is named in its manifest block, as `entry: {printable(name)}`"
    if not os.path.exists(path) and not colon:
        return f"no such file: {shown}{nearest_file(path)}; {kinds}"
    return f"{shown} is not a kernel that e2e reads; {kinds} (see `e2e list formats`)"
