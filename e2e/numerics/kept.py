"""CHILD, clean worker only: expensive answers kept in the cache for a later run that asks the very same.

A candidate runs as the same user and could write there. So nothing that was kept is believed whole: whoever takes it
computes a part of it again, and throws away what differs. Files are read as bytes, once: what is checked is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor, nn

from e2e.protocols import Site
from e2e.units import Bytes

ENTRY_BYTES: Bytes = 512 * 2**20
"""A larger entry is not kept."""
FOLDER_BYTES: Bytes = 2 * 2**30
"""Beyond it the entries that were used longest ago are removed."""
BYTES_PER_S = 200e6
"""An entry that took less to compute than such a disk takes to give it back is not kept. Assumed, not measured."""
_ENDING = ".safetensors"
_ABANDONED_S = 3600.0
_SWITCHES = ("ATEN_", "CUBLAS", "CUDA_", "CUDNN_", "DNNL_", "MKL_", "NVIDIA_", "OMP_", "ONEDNN_", "PYTORCH_", "TORCH_")
"""First letters of environment variables that may choose other code for the same maths."""

Tensors = dict[str, Tensor]


@dataclass
class Kept:
    """Named tensors, found by a hash of everything that they depend on."""

    folder: Path | None
    """None: nothing is taken and nothing is kept."""
    identity: Sequence[Any]
    """What every entry depends on; each is made of what JSON knows."""
    kept: list[str] = field(default_factory=list)
    """Names of entries that an earlier run had kept, and that held."""
    rows: int = 0
    """Rows in them."""
    rows_again: int = 0
    """How many of those were computed again, and came out the same."""
    rejected: list[str] = field(default_factory=list)
    """Names of entries that an earlier run had kept, and of which a part did not come out the same again."""

    def tensors(
        self, name: str, about: Sequence[Any], compute: Callable[[], Tensors], again: Callable[[Tensors], int]
    ) -> Tensors:
        """What is kept under that name, if it holds; else computed, and kept from now on.

        `again` computes a part of it again and says how many rows came out the same; 0 if it does not hold.

        A file that is missing, damaged, or too large is no answer. Two runs at once both compute, and the later one's
        file stays.
        """
        if self.folder is None:
            return compute()
        path = self.folder / f"{name}-{self.key(name, about)}{_ENDING}"
        known = _read(path)
        if known is not None:
            if rows := again(known):
                self.kept.append(name)
                self.rows += max(tensor.shape[0] for tensor in known.values())
                self.rows_again += rows
                return known
            self.rejected.append(name)
            with contextlib.suppress(OSError):
                path.unlink()
        start = time.monotonic()
        found = compute()
        size = sum(tensor.nbytes for tensor in found.values())
        if size <= min(ENTRY_BYTES, BYTES_PER_S * (time.monotonic() - start)):
            with contextlib.suppress(OSError, SafetensorError):  # a cache that is full or read-only costs time only
                _write(path, found)
                _prune(self.folder, keep=path)
        return found

    @property
    def report(self) -> dict[str, Any]:
        """What became of what was kept."""
        return {"kept": self.kept, "rows": self.rows, "rows_again": self.rows_again, "rejected": self.rejected}

    def key(self, name: str, about: Sequence[Any]) -> str:
        """Hash of all that the entry's values depend on."""
        return hashlib.sha256(json.dumps([name, *self.identity, *about], sort_keys=True).encode()).hexdigest()


def surroundings(model: nn.Module, sites: Sequence[Site]) -> list[Any]:
    """What a model's outputs depend on beside its weights and inputs: its code, its config, versions and switches.

    Modules that come from files of their own (a factory's, remote code's) count by the content of those files.
    """
    homes = {sys.modules[kind.__module__] for kind in {type(module) for module in model.modules()}}
    files = sorted(path for path in {getattr(home, "__file__", None) for home in homes} if path is not None)
    sources = [hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in files]
    config = getattr(model, "config", None)
    return [
        str(model),
        str(config),
        sources,
        [[site.fqn, site.incompatible, {name: repr(value) for name, value in site.scalars.items()}] for site in sites],
        [torch.__version__, torch.version.cuda, transformers.__version__, sys.version, platform.platform()],
        [torch.backends.cpu.get_cpu_capability(), torch.get_float32_matmul_precision()],
        {name: value for name, value in os.environ.items() if name.startswith(_SWITCHES)},
    ]


def _read(path: Path) -> Tensors | None:
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > ENTRY_BYTES + 2**20:
            return None
        content = path.read_bytes()
        os.utime(path)  # used now: the oldest go first
        found: Tensors = load(content)
    except (OSError, SafetensorError, ValueError, KeyError):
        return None
    return found


def _write(path: Path, tensors: Tensors) -> None:
    """Complete or absent: written beside, and renamed into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
    os.close(handle)
    try:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, name)
        os.replace(name, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def _prune(folder: Path, *, keep: Path) -> None:
    """Entries beyond the folder's size, oldest first, and what killed runs left half written."""
    entries = []
    for item in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another run removes too
            status = item.stat()
            if item.suffix == ".part" and time.time() - status.st_mtime > _ABANDONED_S:
                item.unlink()
            elif item.suffix == _ENDING and item != keep:
                entries.append((status.st_mtime, status.st_size, item))
    size = keep.stat().st_size
    for _, bytes_, item in sorted(entries, reverse=True):
        size += bytes_
        if size > FOLDER_BYTES:
            with contextlib.suppress(FileNotFoundError):
                item.unlink()
