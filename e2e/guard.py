"""PARENT: kernelguard's rules over a kernel's sources, as advice: it reads text, and decides nothing here.

Source:
    gpu-mode/kernelguard, `analyze_code`; the extra `guard` brings it.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from e2e.schema.kernel import Kernel

_PACKAGE = "kernelguard"
_LIMIT_S = 20.0
_MOST_BYTES = 1 << 20
_SHOWN = 5


def is_here() -> bool:
    """Whether the package is installed."""
    return importlib.util.find_spec(_PACKAGE) is not None


def findings(kernel: Kernel) -> list[str]:
    """`PATTERN: evidence (file)` for every rule that matches; none where the package is not installed or fails.

    The package runs in a process of its own: what a candidate's text does to it stays there.
    """
    if not is_here():
        return []
    paths = [Path(path) for path in (kernel.path, *kernel.others) if path is not None]
    return [found for path in paths for found in _matched(path)][:_SHOWN]


def _matched(path: Path) -> Iterator[str]:
    try:
        text = path.read_bytes()
        ran = subprocess.run(
            [sys.executable, "-P", "-m", _PACKAGE, "--api-mode"],
            input=text[:_MOST_BYTES],
            capture_output=True,
            timeout=_LIMIT_S,
            check=False,
        )
        said = json.loads(ran.stdout)
    except (OSError, ValueError, RecursionError, subprocess.TimeoutExpired):
        return  # advice only: nothing is said, rather than something wrong
    matched = said.get("matched_patterns") if isinstance(said, dict) else None
    for item in matched if isinstance(matched, list) else []:
        if isinstance(item, dict):
            yield f"{_plain(item.get('pattern'))}: {_plain(item.get('evidence'))} ({path.name})"


def _plain(value: Any) -> str:
    return "".join(char if char.isprintable() else " " for char in str(value))[:160]
