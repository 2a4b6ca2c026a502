"""Built kernels by content hash.

A build is found by the hash of everything that goes in: source, the contents of every file that it includes,
command line, compiler, packages, machine. As in ccache's direct mode, the last build of a source remembers
which files it included (and where the compiler looked for them in vain): a hit reads files and runs nothing.

    <cache>/index/<hash of source and command>.json     the files that the last build included
    <cache>/<hash of all content>/                      artifact and build.json, complete or absent
    <cache>/tmp/, <cache>/logs/                         builds in progress; logs of failed ones

Builds happen in a private folder and are renamed into place. There is no lock that a killed build could leave
behind; two runs that build the same thing at once both succeed, and the first one's result stays.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from e2e.builders._compile import raise_failure, raise_timeout, resources, run_compiler
from e2e.errors import EnvironmentFault, UsageError
from e2e.protocols import BuildTarget, Built
from e2e.schema.kernel import Kernel
from e2e.schema.record import Record
from e2e.sources import digest

OUT = "<artifact>"
DEPENDENCIES = "<dependencies>"
"""Stand-ins in a recipe's command for paths that differ from build to build."""

DEPENDENCY_FLAGS = ("-MD", "-MF", DEPENDENCIES)
_ABANDONED_S = 24 * 3600.0
_INCLUDE = re.compile(rb"^\s*#\s*include\s*[<\"]([^>\"\n]+)[>\"]", re.MULTILINE)
_SYSTEM = ("/usr/include/", "/usr/lib/")
"""Headers of the system's packages; the compiler's version stands for them."""


@dataclass(frozen=True)
class Recipe:
    """How to build one kernel."""

    kernel: Kernel
    builder: str
    argv: tuple[str, ...]
    """The compiler's command line, with `OUT` and `DEPENDENCIES` in it."""
    artifact: str
    """File name of what is built."""
    identity: tuple[str, ...]
    """Versions of compiler (first), packages and machine."""
    versioned: tuple[Path, ...]
    """Header folders that `identity` stands for."""

    @property
    def source(self) -> Path:
        """The candidate's file."""
        return Path(self.kernel.path or self.kernel.spec)


class _Index(Record):
    """What the last build of a source included."""

    present: list[str]
    absent: list[str]


class _Entry(Record):
    """One finished build."""

    artifact: str
    sha256: str
    seconds: float
    command: str
    log: str


def build_once(recipe: Recipe, target: BuildTarget) -> Built:
    """The recipe's result, from the cache or freshly made.

    Raises:
        UsageError: the source or a header changed while it was read.
        CandidateError: `build_failed` or `timed_out`.
        EnvironmentFault: the cache cannot be written, or the machine cannot build.
    """
    started = time.monotonic()
    try:
        key = _first_key(recipe)
        found = _find(key, target.cache)
        if found is None:
            _sweep(target.cache / "tmp")
            return _build(recipe, key, target)
    except OSError as error:
        raise EnvironmentFault(
            f"the build cache {target.cache} cannot be used: {error}; set E2E_CACHE_DIR to a writable folder"
        ) from error
    return _built(recipe, found, seconds=time.monotonic() - started, cached=True)


def _first_key(recipe: Recipe) -> str:
    try:
        now = digest(recipe.source, recipe.kernel.others)
    except OSError as error:
        raise UsageError(f"{recipe.kernel.spec} cannot be read any more: {error.strerror}") from error
    if now != recipe.kernel.sha256:
        raise UsageError(f"{recipe.kernel.spec} changed since it was read; run again")
    parts = [recipe.kernel.sha256, str(recipe.source), *recipe.argv, *recipe.identity]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _find(key: str, cache: Path) -> Path | None:
    """Folder of a complete build whose inputs are what they were, or None."""
    try:
        index = _Index.model_validate_json((cache / "index" / f"{key}.json").read_bytes())
    except (OSError, ValidationError):
        return None
    if any(os.path.exists(path) for path in index.absent):
        return None
    full = _full_key(key, index.present)
    return cache / full if full and _entry(cache / full) else None


def _entry(folder: Path) -> _Entry | None:
    """The build in `folder`, if complete: a damaged artifact would crash a worker like a bad kernel."""
    try:
        entry = _Entry.model_validate_json((folder / "build.json").read_bytes())
        content = (folder / entry.artifact).read_bytes()
    except (OSError, ValidationError):
        return None
    return entry if hashlib.sha256(content).hexdigest() == entry.sha256 else None


def _full_key(key: str, paths: Iterable[str]) -> str | None:
    whole = hashlib.sha256(key.encode())
    for path in sorted(paths):
        try:
            whole.update(json.dumps([path, hashlib.sha256(Path(path).read_bytes()).hexdigest()]).encode())
        except OSError:
            return None
    return whole.hexdigest()[:32]


def _build(recipe: Recipe, key: str, target: BuildTarget) -> Built:
    cache = target.cache
    (cache / "tmp").mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=cache / "tmp"))
    try:
        made = folder / "made"
        made.mkdir()
        places = {OUT: str(made / recipe.artifact), DEPENDENCIES: str(folder / "dependencies")}
        argv = [places.get(word, word) for word in recipe.argv]
        began_ns = time.time_ns()
        code, ran = run_compiler(argv, folder=folder, timeout_s=target.timeout_s)
        if code is None:
            raise_timeout(recipe.kernel, target.timeout_s)
        if code != 0 or not (made / recipe.artifact).is_file():
            log = cache / "logs" / f"{key[:32]}.txt"
            _write(log, ran.log, folder)
            raise_failure(recipe.kernel, ran.log, log)
        index = _dependencies(recipe, folder / "dependencies", began_ns)
        full = _full_key(key, index.present)
        if full is None:
            raise UsageError(f"a file that {recipe.kernel.spec} includes is gone; run again")
        entry = _Entry(
            artifact=recipe.artifact,
            sha256=hashlib.sha256((made / recipe.artifact).read_bytes()).hexdigest(),
            seconds=ran.seconds,
            command=_shown(recipe),
            log=ran.log,
        )
        (made / "build.json").write_text(entry.model_dump_json(indent=1), encoding="utf-8")
        _put(made, cache / full, folder)
        _write(cache / "index" / f"{key}.json", index.model_dump_json(), folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return _built(recipe, cache / full, seconds=ran.seconds, cached=False)


def _built(recipe: Recipe, folder: Path, *, seconds: float, cached: bool) -> Built:
    entry = _entry(folder)
    if entry is None:
        raise EnvironmentFault(f"the build in {folder} was damaged by something else; run again")
    return Built(
        kernel=recipe.kernel,
        builder=recipe.builder,
        artifact=str(folder / entry.artifact),
        seconds=seconds,
        cached=cached,
        compiler=_called(recipe),
        command=entry.command,
        log=entry.log,
        resources=resources(entry.log),
    )


def _called(recipe: Recipe) -> str:
    """Name and version of the compiler, which begin its identity."""
    return re.split(r";| in /", recipe.identity[0], maxsplit=1)[0]


def _shown(recipe: Recipe) -> str:
    """The command line for people: what it makes lands in the current folder."""
    words = [word for word in recipe.argv if word not in DEPENDENCY_FLAGS]
    return shlex.join(recipe.artifact if word == OUT else word for word in words)


def _dependencies(recipe: Recipe, listing: Path, began_ns: int) -> _Index:
    """The candidate's own files in the compiler's list, and the places where it looked for others before.

    Raises:
        UsageError: one of them changed during the build, so nobody knows which content was compiled.
    """
    skipped = (*_SYSTEM, *(f"{path}/" for path in recipe.versioned))
    present = {str(recipe.source)}
    for name in _listed(listing.read_text(encoding="utf-8", errors="surrogateescape")):
        path = os.path.normpath(listing.parent / name)
        if not path.startswith(skipped) and not os.path.realpath(path).startswith(skipped):
            present.add(path)
    for path in present:
        if os.stat(path).st_ctime_ns > began_ns:
            raise UsageError(f"{path} changed while {recipe.kernel.spec} was being built; run again")
    folders = {os.path.dirname(path) for path in present}
    folders |= {word[2:] for word in recipe.argv if word.startswith("-I")}
    wanted = {os.fsdecode(name) for path in present for name in _INCLUDE.findall(Path(path).read_bytes())}
    places = {os.path.normpath(os.path.join(folder, name)) for folder in folders for name in wanted}
    return _Index(present=sorted(present), absent=sorted(path for path in places if not os.path.exists(path)))


def _listed(text: str) -> list[str]:
    """File names in a make rule, as -MD writes it."""
    _, _, names = text.replace("\\\n", " ").partition(":")
    words = re.findall(r"(?:\\.|\S)+", names)
    return [re.sub(r"\\(.)", r"\1", word).replace("$$", "$") for word in words]


def _put(made: Path, place: Path, folder: Path) -> None:
    """Move a finished build to its place; whoever came first with the same content stays."""
    for _ in range(3):
        try:
            os.rename(made, place)
            return
        except OSError:
            if _entry(place):
                return
            # Damaged, or being moved by another run: out of the way, and once more.
            with contextlib.suppress(FileNotFoundError):
                os.rename(place, folder / f"damaged-{time.time_ns()}")
    os.rename(made, place)


def _write(path: Path, text: str, folder: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = folder / "new"
    new.write_text(text, encoding="utf-8", errors="surrogateescape")
    os.replace(new, path)


def _sweep(folder: Path) -> None:
    """Remove what builds that were killed long ago left behind."""
    with contextlib.suppress(OSError):
        for item in folder.iterdir():
            if time.time() - item.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(item, ignore_errors=True)
