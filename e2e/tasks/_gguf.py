"""GGUF files, converted once into a folder that Transformers loads at once."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from e2e.cache import cache_folder
from e2e.errors import EnvironmentFault


def converted(file: Path) -> Path:
    """Folder of the model and its tokenizer, dequantised to float32; made on first use, by one process of many.

    Raises:
        EnvironmentFault: it cannot be read, or the cache not be written.
    """
    status = file.stat()
    asked = f"{file.resolve()} {status.st_size} {status.st_mtime_ns} {transformers.__version__}"
    folder = cache_folder() / "models" / f"{file.stem}-{hashlib.sha256(asked.encode()).hexdigest()[:16]}"
    if folder.is_dir():  # a process in a sandbox can only read it
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with Path(f"{folder}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir():
                _convert(file, folder)
    except (OSError, ValueError, KeyError, NotImplementedError) as error:
        raise EnvironmentFault(f"{file} cannot be converted: {error}") from error
    return folder


def _convert(file: Path, folder: Path) -> None:
    """Complete or absent. Transformers refuses to save what it read from a GGUF, so a fresh model takes the weights."""
    half = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{folder.name}.", suffix=".part"))
    try:
        place: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
        AutoTokenizer.from_pretrained(str(file.parent), **place).save_pretrained(half)
        read = AutoModelForCausalLM.from_pretrained(str(file.parent), dtype=torch.float32, **place)
        config = read.config
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        fresh = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        fresh.load_state_dict(read.state_dict())
        fresh.save_pretrained(half)
        half.rename(folder)
    finally:
        shutil.rmtree(half, ignore_errors=True)
