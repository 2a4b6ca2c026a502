"""Names that a spec or a manifest may hold, and the nearest right one when it is wrong."""

from __future__ import annotations

import difflib
from pathlib import Path

from e2e import outside, registry
from e2e.errors import UsageError
from e2e.yaml_lines import printable

SUFFIXES = (".cu", ".cpp", ".cc", ".py")
"""Kinds of kernel file."""


def check_op(name: str) -> None:
    """Refuse an op that nobody registered; `module:CLASS` is checked up to its colon.

    Raises:
        UsageError: the message names the nearest op, or says that an op from outside is not for a kernel to choose.
    """
    if outside.place_of(name) is not None:
        # its reference says what is right, and its mutants whether a check means anything
        raise UsageError(
            f"an op from a file is for the caller to name: leave it out here, and pass --op {printable(name)}"
        )
    kind, colon, parameter = name.partition(":")
    known = registry.names("ops")
    if kind in known and (parameter or not colon):
        return
    if kind in known:
        raise UsageError(f"op {printable(name)!r}: something must follow the colon, as in {kind}:NAME")
    close = difflib.get_close_matches(kind, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
    raise UsageError(f"no op called {printable(name)!r}; {hint} (see `e2e list ops`)")


def check_patched(op: str | None) -> None:
    """Refuse an op for a kernel that changes whatever it likes.

    Raises:
        UsageError: one is asked for.
    """
    if op not in (None, "patch"):
        raise UsageError(f"--op {printable(str(op))}: a patch changes what it likes, and is no kernel for one op")


def shown_spec(spec: str) -> str:
    """A spec as messages name it: whole, unless somebody passed a text for a name."""
    return printable(spec, 500)


def nearest_file(path: Path) -> str:
    """`; did you mean 'x.cu'?` for a file that does not exist, or nothing."""
    try:
        names = [item.name for item in path.parent.iterdir() if item.suffix in SUFFIXES]
    except (OSError, ValueError):
        return f"; there is no folder {printable(str(path.parent))!r} either"
    close = difflib.get_close_matches(path.name, names, n=1)
    return f"; did you mean {str(path.parent / close[0])!r}?" if close else ""
