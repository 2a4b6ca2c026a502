"""A candidate's Python source: parsed where nothing may run, imported in a worker."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import importlib.util
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from e2e.builders._calls import bind_failed, require_device
from e2e.errors import CandidateError, UsageError
from e2e.protocols import BuildTarget, Built
from e2e.schema.kernel import Kernel
from e2e.sources import digest

_PACKAGE = "__init__.py"


def parsed(kernel: Kernel, target: BuildTarget, *, builder: str) -> Built:
    """Parse the file, which runs nothing; the artifact is the file, or `package.module:callable`.

    Raises:
        CandidateError: `build_failed`: not Python; with its line.
        EnvironmentFault: it needs CUDA, and this run has none.
        UsageError: the file is gone.
    """
    require_device(kernel, target)
    started = time.monotonic()
    if kernel.path is not None:
        _parse(kernel, Path(kernel.path))
    return Built(
        kernel=kernel,
        builder=builder,
        artifact=kernel.path or kernel.spec,
        seconds=time.monotonic() - started,
        cached=False,
    )


def attribute(module: ModuleType, entry: str, built: Built) -> Any:
    """What the candidate's module holds under a dotted name.

    Raises:
        CandidateError: `bind_failed`; the message lists what is in it.
    """
    part, _, _ = entry.rpartition(".")
    if part and (built.kernel.path or "").endswith(_PACKAGE):  # which need not import the part that holds the entry
        with _blamed(built):
            importlib.import_module(f"{module.__name__}.{part}")
    try:
        return functools.reduce(getattr, entry.split("."), module)
    except AttributeError as error:
        offered = ", ".join(name for name, item in vars(module).items() if _is_offered(module, name, item))
        raise bind_failed(built, f"entry: {entry!r} is not in it; it has: {offered or 'nothing'}") from error


def candidate_module(built: Built) -> ModuleType:
    """The candidate's module, imported under a name that no other module can have."""
    kernel = built.kernel
    with _blamed(built):
        if kernel.path is None:
            return importlib.import_module(built.artifact.partition(":")[0])
        path = Path(kernel.path)
        if digest(path, kernel.others) != kernel.sha256:
            raise bind_failed(built, "the file changed during the run; run again")
        name = f"e2e_kernel_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}_{kernel.sha256[:16]}"
        if name in sys.modules:
            return sys.modules[name]
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise bind_failed(built, "Python has no way to import this kind of file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # before it runs: dataclasses and Triton look their module up
        if kernel.others and path.name != _PACKAGE:
            sys.path.append(str(path.parent))  # last, where its siblings hide nothing of anybody's
        try:
            spec.loader.exec_module(module)
        except BaseException:  # re-raised: a half-imported module must not stay, whatever ended the import
            del sys.modules[name]
            raise
        return module


@contextlib.contextmanager
def _blamed(built: Built) -> Iterator[None]:
    """Whatever importing raises is the candidate's fault: it runs its code, which may raise anything."""
    try:
        yield
    except CandidateError:
        raise
    except Exception as error:  # re-raised
        line = _line_in(error, built.kernel.path)
        raise bind_failed(built, f"it cannot be imported: {type(error).__name__}: {error}", line=line) from error


def _line_in(error: Exception, path: str | None) -> int | None:
    """The last line of the candidate's own file on the way to the error."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return error.lineno
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return frames[-1].lineno if frames else None


def _is_offered(module: ModuleType, name: str, item: Any) -> bool:
    return callable(item) and not name.startswith("_") and getattr(item, "__module__", None) == module.__name__


def _parse(kernel: Kernel, path: Path) -> None:
    try:
        compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except OSError as error:
        raise UsageError(f"{kernel.spec} cannot be read any more: {error.strerror}") from error
    except SyntaxError as error:
        where = f"{kernel.shown}:{error.lineno}" if error.lineno else kernel.shown
        raise CandidateError(f"{where}: {error.msg}", code="build_failed", line=error.lineno) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise CandidateError(f"{kernel.shown}: Python cannot parse this source", code="build_failed") from error
