"""A kernel file: .cu, .cpp, .cc or .py, with a manifest block (`// /// e2e`) or without one."""

from __future__ import annotations

import hashlib
from pathlib import Path

from e2e.errors import UsageError
from e2e.formats._draft import Block, Draft
from e2e.formats._files import decode, opens_block, read_bytes
from e2e.formats._names import shown_spec
from e2e.schema.kernel import Kernel
from e2e.yaml_lines import parse, printable

_MARKS = {".cu": "//", ".cpp": "//", ".cc": "//", ".py": "#"}


class BlockFormat:
    """Reads our own kernel files."""

    def read(self, spec: str, *, op: str | None) -> Kernel | None:
        """The kernel in a file with a known suffix; None for anything else.

        Raises:
            UsageError: unreadable, or wrongly described; every mistake, as `file:line: field: message`.
        """
        path = Path(spec)
        if path.suffix not in _MARKS:
            return None
        content = read_bytes(path, spec)
        if content is None:
            return None
        text = decode(content, spec)
        block = _find_block(text, _MARKS[path.suffix], spec)
        return Kernel(
            spec=spec,
            path=str(path.absolute()),
            sha256=hashlib.sha256(content).hexdigest(),
            manifest=Draft(spec, text, block, op=op).finish(),
            format="block",
            block_line=block.line if block else None,
        )


def _find_block(text: str, mark: str, spec: str) -> Block | None:
    """The block, or None when there is none.

    Raises:
        UsageError: opened differently, twice, or not closed; not a YAML mapping.
    """
    rows = text.rstrip("\n").split("\n")
    openings = [number for number, row in enumerate(rows) if opens_block(row)]
    if not openings:
        return None
    first, shown = openings[0], shown_spec(spec)
    if len(openings) > 1:
        raise UsageError(f"{shown}:{openings[1] + 1}: a second e2e block (first on line {first + 1}); keep one")
    if rows[first].rstrip() != f"{mark} /// e2e":
        raise UsageError(
            f"{shown}:{first + 1}: an e2e block opens with exactly `{mark} /// e2e`, "
            f"not {printable(rows[first].strip())!r}"
        )
    inside: list[str] = []
    for row in rows[first + 1 :]:
        if row.rstrip() == f"{mark} ///":
            break
        if not (row.startswith(f"{mark} ") or row.rstrip() == mark):
            raise UsageError(
                f"{shown}:{first + len(inside) + 2}: the e2e block from line {first + 1} is not closed; "
                f"start every line of it with `{mark} ` and end it with `{mark} ///`"
            )
        inside.append(row[len(mark) + 1 :])
    else:
        raise UsageError(f"{shown}:{first + 1}: the e2e block is not closed; end it with `{mark} ///`")
    data, lines = parse("\n".join(inside), file=shown, first_line=first + 2)
    if not isinstance(data, dict):
        raise UsageError(f"{shown}:{first + 1}: the e2e block must hold lines such as `op: rms_norm`")
    return Block(first + 1, data, lines)


PLUGIN = BlockFormat()
