"""An installed Python function: package.module:callable with --op, or patch:package.module:callable without."""

from __future__ import annotations

import hashlib
import importlib.machinery
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from e2e import registry
from e2e.errors import UsageError
from e2e.formats._names import SUFFIXES, check_patched
from e2e.schema.kernel import Kernel, Manifest

_SPEC = re.compile(
    r"(?P<patch>patch:)?(?P<module>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*):(?P<name>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)", re.ASCII
)


class CallableFormat:
    """Names a Python function. The module is found but never imported here: the parent runs no candidate."""

    def read(self, spec: str, *, op: str | None) -> Kernel | None:
        """The kernel; None when `spec` is not `package.module:callable`, with or without `patch:` before it.

        Raises:
            UsageError: no `--op`, or one for a patch; no such module in this environment.
        """
        found = _SPEC.fullmatch(spec)
        if found is None or f".{found['module'].rpartition('.')[2]}" in SUFFIXES:
            return None
        if found["patch"]:
            check_patched(op)
        elif op is None:
            known = ", ".join(registry.names("ops"))
            ways = "Pass --op NAME, or beside other kernels a file whose block says it"
            raise UsageError(f"{spec}: which op does it replace? {ways} (known: {known})")
        source = _source_of(found["module"])
        content = source.read_bytes() if source else spec.encode()
        return Kernel(
            spec=spec,
            path=None,
            sha256=hashlib.sha256(content).hexdigest(),
            manifest=_manifest(op, found["name"], is_patch=bool(found["patch"])),
            format="callable",
        )


def _manifest(op: str | None, entry: str, *, is_patch: bool) -> Manifest:
    if is_patch or op is None:
        return Manifest(kind="patch", op="patch", entry=entry, binding="patch")
    return Manifest(op=op, entry=entry, binding="python")


def _source_of(module: str) -> Path | None:
    """The module's file, found without importing its parents; None when it has none.

    Raises:
        UsageError: there is no such module.
    """
    places: Iterable[str] | None = sys.path
    name, origin = "", None
    for part in module.split("."):
        name = f"{name}.{part}".removeprefix(".")
        spec = importlib.machinery.PathFinder.find_spec(name, list(places) if places is not None else [])
        if spec is None:
            break
        places, origin = spec.submodule_search_locations, spec.origin
    else:
        return Path(origin) if origin and Path(origin).is_file() else None
    # Editable installs bring finders of their own. Asking them about a top-level name imports nothing.
    top = module.partition(".")[0]
    if name == top and not any(_knows(finder, top) for finder in sys.meta_path):
        raise UsageError(f"no module called {top!r} in this environment; install it or set PYTHONPATH")
    if name != top:
        package, _, missing = name.rpartition(".")
        raise UsageError(f"package {package!r} has no module called {missing!r}")
    return None


def _knows(finder: object, name: str) -> bool:
    find = getattr(finder, "find_spec", None)
    return find is not None and find(name, None) is not None


PLUGIN = CallableFormat()
