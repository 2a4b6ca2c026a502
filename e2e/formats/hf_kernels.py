"""Hugging Face `kernels`: a layer of a project or a built folder, as FOLDER#LAYER."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import platform
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.errors import UsageError
from e2e.formats._names import shown_spec
from e2e.formats._python import op_for
from e2e.schema.kernel import Kernel, Manifest
from e2e.sources import digest
from e2e.yaml_lines import nearest, printable

_LAYERS = ("layers.py", "layers/__init__.py", "__init__.py")
"""Where the `kernels` package looks for layers, and where small ones keep them."""
_OPS = {
    r"\w*RMSNorm": "rms_norm",
    r"\w*LayerNorm": "layer_norm",
    r"SiLU|Silu": "silu",
    r"GELU|Gelu": "gelu",
    r"Linear": "linear",
}
"""Names of layers that stand for an op; for others `--op` says which."""
_CONFIG = "build.toml"
_FLAGS = ("has_backward", "can_torch_compile")
_NO_BACKWARD = "has_backward = False: a training step with it has no gradients"


@dataclass(frozen=True)
class _Layer:
    """A class in a package."""

    name: str
    module: str
    """`layers`, or nothing for the package itself."""
    file: Path
    node: ast.ClassDef

    @property
    def flags(self) -> dict[str, bool]:
        """What its class says of itself; what it does not say is absent."""
        found = {}
        for node in self.node.body:
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            value = getattr(node, "value", None)
            if isinstance(target, ast.Name) and target.id in _FLAGS and isinstance(value, ast.Constant):
                found[target.id] = bool(value.value)
        return found


class HfKernelsFormat:
    """Reads a layer class; in a built folder of the variant for this machine."""

    def read(self, spec: str, *, op: str | None) -> Kernel | None:
        """The kernel in `FOLDER#LAYER`; None for what is no such folder.

        Raises:
            UsageError: no layer named or no such layer, no variant for this machine, or a project not yet built.

        Source:
            huggingface/kernels, `variants.py`, `layer/`.
        """
        name, hash_sign, layer = spec.partition("#")
        folder, shown = Path(name), shown_spec(name)
        if not _is_project(folder):
            return None
        package = _package(folder, shown)
        layers = list(_layers(package))
        chosen = next((item for item in layers if item.name == layer), None)
        if chosen is None:
            offered = [item.name for item in layers]
            what = f"no layer called {printable(layer)!r}" if hash_sign else "which layer?"
            how = nearest(layer, offered) if layer and offered else f"it has: {', '.join(offered) or 'none'}"
            example = f"; name one as {shown}#{offered[0]}" if offered else ""
            raise UsageError(f"{shown}: {what}; {how}{example}")
        first = package / "__init__.py"
        others = sorted(str(path) for path in package.rglob("*") if path.is_file() and _belongs(path) and path != first)
        stated = next((own for form, own in _OPS.items() if re.fullmatch(form, chosen.name)), chosen.name)
        return Kernel(
            spec=spec,
            path=str(first),
            others=others,
            sha256=digest(first, others),
            manifest=Manifest(
                op=op_for(op, stated, shown_spec(spec)),
                entry=f"{chosen.module}.{chosen.name}".removeprefix("."),
                binding="module",
            ),
            format="hf_kernels",
            inside=chosen.file.relative_to(package.parent).as_posix(),
            notes=[*_notes(chosen), *_built_notes(package)],
        )


def _is_project(folder: Path) -> bool:
    try:
        return (folder / _CONFIG).is_file() or (folder / "torch-ext").is_dir() or any(folder.glob("build/torch*"))
    except (OSError, ValueError):
        return False


def _package(folder: Path, shown: str) -> Path:
    """The Python package of a project, built for this machine if anything in it is compiled.

    Raises:
        UsageError: none; says what there is, and what is wanted.
    """
    name, compiled = _described(folder, shown)
    built = folder / "build"
    variants = sorted(item.name for item in built.iterdir() if item.is_dir()) if built.is_dir() else []
    wanted = _variants()
    for variant in (variant for form in wanted for variant in variants if form.fullmatch(variant)):
        # newer builds are the package, older ones hold it
        for place in (f"{variant}/__init__.py", f"{variant}/*/__init__.py"):
            if found := sorted(built.glob(place)):
                return found[0].parent.absolute()
    if variants:
        raise UsageError(f"{shown}: no build for this machine ({_machine()}); it has: {', '.join(variants)}")
    packages = [path.parent for path in sorted(folder.glob("torch-ext/*/__init__.py"))]
    if compiled:
        raise UsageError(f"{shown}: it has kernels to compile ({compiled}); build it first, for build/VARIANT/")
    if not packages:
        raise UsageError(f"{shown}: no Python package in build/VARIANT/ or torch-ext/")
    return next((item for item in packages if item.name == name.replace("-", "_")), packages[0]).absolute()


def _described(folder: Path, shown: str) -> tuple[str, str]:
    """The project's name, and the compiled kernels that its build.toml lists."""
    path = folder / _CONFIG
    if not path.is_file():
        return folder.name, ""
    try:
        config: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{shown}/{_CONFIG}: not readable as TOML: {printable(str(error), 200)}") from error
    general, kernels = config.get("general"), config.get("kernel", {})
    if not isinstance(general, dict) or not isinstance(general.get("name"), str):
        raise UsageError(f"{shown}/{_CONFIG}: general.name: missing; it is required")
    return general["name"], ", ".join(kernels) if isinstance(kernels, dict) else ""


def _variants() -> list[re.Pattern[str]]:
    """Forms of variant names that fit this machine's torch, the nearest first."""
    version, _, local = importlib.metadata.version("torch").partition("+")
    major, minor = version.split(".")[:2]
    backend = local or "cu"
    compute = r"cu\d+" if backend.startswith("cu") else re.escape(backend)
    cpu, system = re.escape(platform.machine()), platform.system().lower()
    forms = [
        rf"torch{major}{minor}-cxx11-{re.escape(backend)}-{cpu}-{system}",
        rf"torch{major}{minor}-cxx11-{compute}-{cpu}-{system}",
        "torch-cuda" if backend.startswith("cu") else f"torch-{re.escape(backend)}",
        "torch-universal",
    ]
    return [re.compile(form) for form in forms]


def _machine() -> str:
    return f"torch {importlib.metadata.version('torch')}, {platform.machine()}, {platform.system().lower()}"


def _layers(package: Path) -> Iterator[_Layer]:
    seen: set[str] = set()
    for place in _LAYERS:
        file = package / place
        if not file.is_file():
            continue
        try:
            tree = ast.parse(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, SyntaxError) as error:
            raise UsageError(f"{shown_spec(str(file))}:{getattr(error, 'lineno', 1)}: not Python: {error}") from error
        module = "layers" if place.startswith("layers") else ""
        for node in tree.body:
            is_layer = isinstance(node, ast.ClassDef) and any("Module" in ast.unparse(base) for base in node.bases)
            if isinstance(node, ast.ClassDef) and is_layer and node.name not in seen:
                seen.add(node.name)
                yield _Layer(node.name, module, file, node)


def _belongs(path: Path) -> bool:
    return "__pycache__" not in path.parts and path.suffix != ".pyc"


def _notes(layer: _Layer) -> list[str]:
    flags = layer.flags
    said = ", ".join(f"{name} = {value}" for name, value in flags.items()) or "nothing of backward or compiling"
    return [f"{layer.name} states {said}"] + ([_NO_BACKWARD] if flags.get("has_backward") is False else [])


def _built_notes(package: Path) -> list[str]:
    """Packages that a build says it needs."""
    for place in (package / "metadata.json", package.parent / "metadata.json"):
        try:
            needed = json.loads(place.read_text(encoding="utf-8")).get("python-depends", [])
        except (OSError, ValueError, AttributeError):
            continue
        return [f"it needs {', '.join(map(str, needed))}"] if needed else []
    return []


PLUGIN = HfKernelsFormat()
