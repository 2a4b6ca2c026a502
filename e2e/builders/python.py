"""Python callables: plain torch, Triton, CuTe; nothing is compiled here."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from e2e.builders._calls import BORROWED, bind_failed, entry_for, output_count, require_device, unknown_argument
from e2e.errors import CandidateError, UsageError
from e2e.protocols import BuildTarget, Built, Op, outputs_of
from e2e.schema.kernel import Kernel


class PythonBuilder:
    """Takes a function from a file or an installed module; it returns its output."""

    def build(self, kernel: Kernel, target: BuildTarget) -> Built:
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
            builder="python",
            artifact=kernel.path or kernel.spec,
            seconds=time.monotonic() - started,
            cached=False,
        )

    def bind(self, built: Built, op: Op, dtype: str) -> Callable[..., Any]:
        """The function, taking the op's tensors and scalars in the manifest's order.

        Raises:
            CandidateError: `bind_failed`, with the line in the candidate; `dtype_not_supported`.
        """
        entry = entry_for(built, dtype)
        module = _module(built)
        try:
            function = functools.reduce(getattr, entry.split("."), module)
        except AttributeError as error:
            offered = ", ".join(name for name, item in vars(module).items() if _is_offered(module, name, item))
            raise bind_failed(built, f"entry: {entry!r} is not in it; it has: {offered or 'nothing'}") from error
        if not callable(function):
            raise bind_failed(built, f"entry: {entry!r} is a {type(function).__name__}, not a function")
        return _with_backward(_ordered(function, op, built), op, built, module)


def _with_backward(function: Callable[..., Any], op: Op, built: Built, module: ModuleType) -> Callable[..., Any]:
    """The function with the backward that its manifest names, if it names one of its own.

    The forward then returns what it saves after the op's outputs.

    Raises:
        CandidateError: `bind_failed`: there is no such function.
    """
    name = built.kernel.manifest.backward
    if name in (None, BORROWED):
        return function
    backward = getattr(module, str(name), None)
    if not callable(backward):
        raise bind_failed(built, f"backward: no function {name!r} in it")
    return Saving(function, backward, output_count(op))


class Saving:
    """A forward that returns the op's outputs and then what its backward wants to see again."""

    def __init__(self, function: Callable[..., Any], backward: Callable[..., Any], count: int) -> None:
        self._function, self._backward, self._count = function, backward, count

    def __call__(self, *args: Any) -> Any:
        return self.saving(*args)[0]

    def saving(self, *args: Any) -> tuple[Any, tuple[Any, ...]]:
        """What the op returns, and what is saved."""
        found = outputs_of(self._function(*args))
        outputs = found[: self._count]
        return outputs[0] if self._count == 1 else outputs, found[self._count :]

    def backward(self, gradients: Sequence[Any], tensors: Sequence[Any], saved: Sequence[Any]) -> tuple[Any, ...]:
        """A gradient for every tensor of the forward."""
        return outputs_of(self._backward(*gradients, *tensors, *saved))


def _parse(kernel: Kernel, path: Path) -> None:
    try:
        compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except OSError as error:
        raise UsageError(f"{kernel.spec} cannot be read any more: {error.strerror}") from error
    except SyntaxError as error:
        where = f"{kernel.spec}:{error.lineno}" if error.lineno else kernel.spec
        raise CandidateError(f"{where}: {error.msg}", code="build_failed", line=error.lineno) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise CandidateError(f"{kernel.spec}: Python cannot parse this source", code="build_failed") from error


def _module(built: Built) -> ModuleType:
    """The candidate's module, imported under a name that no other module can have."""
    kernel = built.kernel
    try:
        if kernel.path is None:
            return importlib.import_module(built.artifact.partition(":")[0])
        path = Path(kernel.path)
        if hashlib.sha256(path.read_bytes()).hexdigest() != kernel.sha256:
            raise bind_failed(built, "the file changed during the run; run again")
        name = f"e2e_kernel_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}_{kernel.sha256[:16]}"
        if name in sys.modules:
            return sys.modules[name]
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise bind_failed(built, "Python has no way to import this kind of file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # before it runs: dataclasses and Triton look their module up
        try:
            spec.loader.exec_module(module)
        except BaseException:  # re-raised: a half-imported module must not stay, whatever ended the import
            del sys.modules[name]
            raise
        return module
    except CandidateError:
        raise
    except Exception as error:  # re-raised as the candidate's fault: importing runs its code, which may raise anything
        line = _line_in(error, kernel.path)
        raise bind_failed(built, f"it cannot be imported: {type(error).__name__}: {error}", line=line) from error


def _line_in(error: Exception, path: str | None) -> int | None:
    """The last line of the candidate's own file on the way to the error."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return error.lineno
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return frames[-1].lineno if frames else None


def _is_offered(module: ModuleType, name: str, item: Any) -> bool:
    return callable(item) and not name.startswith("_") and getattr(item, "__module__", None) == module.__name__


def _ordered(function: Callable[..., Any], op: Op, built: Built) -> Callable[..., Any]:
    names, known = built.kernel.manifest.args, [*op.tensor_names, *op.scalar_names]
    if names is None or names == known:
        return function
    for name in names:
        if name not in known:
            raise unknown_argument(built, name, known)
    order = [known.index(name) for name in names]

    def call(*args: Any) -> Any:
        return function(*[args[place] for place in order])

    return call


PLUGIN = PythonBuilder()
