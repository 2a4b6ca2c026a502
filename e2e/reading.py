"""From what stands on the command line to a Kernel: the first format that understands it."""

from __future__ import annotations

import difflib
from pathlib import Path

from e2e import registry
from e2e.errors import UsageError
from e2e.schema.kernel import Kernel
from e2e.yaml_lines import printable

_SUFFIXES = (".cu", ".cpp", ".cc", ".py")


def read_kernel(spec: str, *, op: str | None) -> Kernel:
    """The kernel that `spec` names; `op` is what `--op` says.

    Raises:
        UsageError: no format understands it, or one does and it is damaged; all mistakes, with their lines.
    """
    if op is not None:
        check_op(op)
    for name in registry.names("formats"):
        kernel: Kernel | None = registry.load("formats", name).read(spec, op=op)
        if kernel is not None:
            return kernel
    raise UsageError(_refusal(spec))


def check_op(name: str) -> None:
    """Refuse an op that nobody registered; `module:CLASS` is checked up to its colon.

    Raises:
        UsageError: the message names the nearest op.
    """
    kind, colon, parameter = name.partition(":")
    known = registry.names("ops")
    if kind in known and (parameter or not colon):
        return
    if kind in known:
        raise UsageError(f"op {printable(name)!r}: something must follow the colon, as in {kind}:NAME")
    close = difflib.get_close_matches(kind, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
    raise UsageError(f"no op called {printable(name)!r}; {hint} (see `e2e list ops`)")


def nearest_file(path: Path) -> str:
    """`; did you mean 'x.cu'?` for a file that does not exist, or nothing."""
    try:
        names = [item.name for item in path.parent.iterdir() if item.suffix in _SUFFIXES]
    except (OSError, ValueError):
        return f"; there is no folder {printable(str(path.parent))!r} either"
    close = difflib.get_close_matches(path.name, names, n=1)
    return f"; did you mean {str(path.parent / close[0])!r}?" if close else ""


def _refusal(spec: str) -> str:
    shown, path = printable(spec), Path(spec)
    kinds = f"a kernel is a file ({', '.join(_SUFFIXES)}) or package.module:callable"
    if not spec.strip():
        return f"the kernel's name is empty; {kinds}"
    try:
        if path.is_dir():
            found = sorted(item.name for item in path.iterdir() if item.suffix in _SUFFIXES)[:5]
            inside = f"name one file in it: {', '.join(found)}" if found else "and no kernel file is in it"
            return f"{shown} is a folder; {inside}"
        exists = path.exists()
    except (OSError, ValueError) as error:
        return f"{shown} cannot be read: {error}; {kinds}"
    file, colon, name = spec.partition(":")
    if colon and file.endswith(_SUFFIXES):
        return f"{shown}: a file's function is named in its manifest block, as `entry: {printable(name)}`"
    if not exists and not colon:
        return f"no such file: {shown}{nearest_file(path)}; {kinds}"
    return f"{shown} is not a kernel that e2e reads; {kinds} (see `e2e list formats`)"
