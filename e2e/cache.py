"""Where e2e keeps what it can make again: built kernels and compiled code. Safe to delete at any time."""

from __future__ import annotations

import os
from pathlib import Path

from e2e.errors import EnvironmentFault


def cache_folder() -> Path:
    """`E2E_CACHE_DIR`, else `XDG_CACHE_HOME/e2e`, else `~/.cache/e2e`; absolute, and not created here.

    Raises:
        EnvironmentFault: none of them is set and there is no home folder.

    Source:
        XDG Base Directory Specification 0.8: a relative `XDG_CACHE_HOME` is ignored.
    """
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    try:
        if stated := os.environ.get("E2E_CACHE_DIR"):
            return Path(stated).expanduser().absolute()
        return (Path(xdg) if os.path.isabs(xdg) else Path.home() / ".cache") / "e2e"
    except RuntimeError as error:
        raise EnvironmentFault("no home folder for the cache; set E2E_CACHE_DIR to a folder") from error
