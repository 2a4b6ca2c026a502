"""Real text as token ids, cut into windows that never repeat."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import AutoTokenizer

from e2e.errors import EnvironmentFault, UsageError
from e2e.schema.workload import DataSpec, ModelSpec


class Tokens:
    """A text as one long row of ids, from which batches of windows are drawn."""

    def __init__(self, ids: np.ndarray, vocabulary: int, label: str) -> None:
        self._ids = ids
        self._vocabulary = vocabulary
        self.label = label
        """Says what the ids are, for the report."""

    @classmethod
    def read(cls, data: DataSpec, model: ModelSpec, *, root: Path, vocabulary: int) -> Tokens:
        """Read and tokenise the text; random weights have no tokenizer, so their ids are the text's bytes.

        Raises:
            UsageError: the file is missing or has ids outside the vocabulary.
            EnvironmentFault: the tokenizer cannot be reached.
        """
        path = root / data.path
        if not path.is_file():
            raise UsageError(f"data.path: no file {path}")
        raw = path.read_bytes()
        if data.tokenizer == "bytes" or model.weights == "random":
            ids = np.frombuffer(raw, dtype=np.uint8).astype(np.int64)
            label = f"bytes of {data.path}"
        else:
            location = root / str(model.id)
            try:
                tokenizer = AutoTokenizer.from_pretrained(
                    str(location) if location.is_dir() else str(model.id), revision=model.revision or "main"
                )
            except (OSError, ValueError) as error:
                raise EnvironmentFault(f"the tokenizer of {model.id} cannot be read: {error}") from error
            ids = np.asarray(tokenizer(raw.decode("utf-8"))["input_ids"], dtype=np.int64)
            label = f"{data.path} by the model's tokenizer"
        if ids.size and int(ids.max()) >= vocabulary:
            raise UsageError(f"{label}: id {int(ids.max())} is outside the model's vocabulary of {vocabulary}")
        return cls(ids, vocabulary, label)

    def singles(self, count: int, seed: int) -> Tensor:
        """One id per row, from a walk over the whole vocabulary: consecutive seeds repeat as late as possible.

        Shapes:
            -> (count, 1), int64, on the host.
        """
        order = np.random.Generator(np.random.PCG64(0)).permutation(self._vocabulary)
        places = (seed * count + np.arange(count)) % self._vocabulary
        return torch.from_numpy(order[places].astype(np.int64)[:, None])

    def windows(self, count: int, length: int, seed: int) -> Tensor:
        """`count` windows of `length` ids.

        Shapes:
            -> (count, length), int64, on the host.

        Raises:
            UsageError: the text is shorter than one window.
        """
        if self._ids.size < length:
            raise UsageError(f"{self.label}: {self._ids.size} tokens, but a row needs {length}")
        draw = np.random.Generator(np.random.PCG64(seed))
        starts = draw.integers(0, self._ids.size - length + 1, size=count)
        rows = np.stack([self._ids[start : start + length] for start in starts])
        # A short text has few windows: one drawn id at the front keeps every step's values new.
        rows[:, 0] = self._ids[draw.integers(0, self._ids.size, size=count)]
        return torch.from_numpy(rows)
