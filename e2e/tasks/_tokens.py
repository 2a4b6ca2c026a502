"""Real text as token ids: one long row cut into windows, or samples as padded rows. Steps never repeat one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoTokenizer

from e2e.errors import EnvironmentFault, UsageError
from e2e.schema.workload import SYNTHETIC, DataSpec
from e2e.tasks._model import Source
from e2e.tasks._texts import read_samples, read_text

_CHARACTERS = 4
"""Of text per token that a piece of it has: about what tokenizers make of English; a shorter row takes one more."""
SYNTHETIC_TOKENS = 2**17
"""Ids that are drawn in the place of a text."""


class Coder:
    """From text to ids: by the model's tokenizer, or byte by byte."""

    def __init__(self, data: DataSpec, source: Source, *, vocabulary: int) -> None:
        self._source = source
        self._vocabulary = vocabulary
        self._is_bytes = data.tokenizer == "bytes" or source.spec.weights == "random"
        self.label = f"bytes of {data.path}" if self._is_bytes else f"{data.path} by the model's tokenizer"

    def ids(self, text: str) -> np.ndarray:
        """The ids of one text, with what the tokenizer puts around it.

        Raises:
            UsageError: an id is outside the vocabulary.
            EnvironmentFault: the tokenizer cannot be reached.
        """
        if self._is_bytes:
            ids = np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64)
        else:
            ids = np.asarray(self._tokenizer(text)["input_ids"], dtype=np.int64)
        if ids.size and int(ids.max()) >= self._vocabulary:
            inside = f"is outside the model's vocabulary of {self._vocabulary}"
            raise UsageError(f"{self.label}: id {int(ids.max())} {inside}")
        return ids

    @property
    def padding(self) -> int:
        """The id that fills rows up."""
        return 0 if self._is_bytes else int(self._tokenizer.pad_token_id or 0)

    @cached_property
    def _tokenizer(self) -> Any:
        if self._source.spec.id is None:
            raise UsageError("data.tokenizer: a factory's model brings none; say `tokenizer: bytes`")
        try:
            return AutoTokenizer.from_pretrained(self._source.name, **self._source.options)
        except (OSError, ValueError) as error:
            raise EnvironmentFault(f"the tokenizer of {self._source.spec.id} cannot be read: {error}") from error


class Tokens:
    """A text as one long row of ids, from which batches of windows are drawn."""

    def __init__(self, ids: np.ndarray, vocabulary: int, label: str, raw: tuple[Coder, str] | None = None) -> None:
        """`raw`: what the ids were made from, and by what."""
        self._raw = raw
        self._ids = ids
        self._vocabulary = vocabulary
        self.label = label
        """Says what the ids are, for the report."""

    @classmethod
    def read(cls, data: DataSpec, source: Source, *, vocabulary: int) -> Tokens:
        """Read and tokenise the text; random weights have no tokenizer, so their ids are the text's bytes.

        Raises:
            UsageError: the file is missing or has ids outside the vocabulary.
            EnvironmentFault: the tokenizer cannot be reached.
        """
        if data.path == SYNTHETIC:
            drawn = np.random.Generator(np.random.PCG64(0)).integers(0, vocabulary, SYNTHETIC_TOKENS)
            return cls(drawn, vocabulary, "drawn ids")
        coder = Coder(data, source, vocabulary=vocabulary)
        text = read_text(data, source.root)
        return cls(coder.ids(text), vocabulary, coder.label, (coder, text))

    def made(self, count: int, length: int, seed: int) -> Tensor:
        """`windows` as a data pipeline makes them: pieces of text, tokenised now and packed to rows without padding.

        Shapes:
            -> (count, length), int64, on the host.
        """
        assert self._raw is not None, "drawn ids are made from nothing"
        coder, text = self._raw
        draw = np.random.Generator(np.random.PCG64(seed))
        piece = min(len(text), _CHARACTERS * length)
        rows = []
        for _ in range(count):
            ids = np.empty(0, dtype=np.int64)
            while ids.size < length:
                start = int(draw.integers(0, len(text) - piece + 1))
                ids = np.concatenate([ids, coder.ids(text[start : start + piece])])
            rows.append(ids[:length])
        return torch.from_numpy(np.stack(rows))

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


class Rows:
    """Samples of their own lengths, as rows padded to one length, with masks."""

    def __init__(
        self,
        samples: Sequence[np.ndarray],
        padding: int,
        label: str,
        raw: tuple[Coder, Sequence[str]] | None = None,
    ) -> None:
        """`raw`: the texts that they were made from, and by what."""
        self._raw = raw
        self._samples = samples
        self._padding = padding
        self._everything = np.concatenate(samples)
        self.label = label
        """Says what the rows are, for the report."""

    @classmethod
    def read(cls, data: DataSpec, source: Source, *, vocabulary: int, length: int) -> Rows:
        """Read and tokenise every sample, cut at `length` ids.

        Raises:
            UsageError, EnvironmentFault: as `Tokens.read`.
        """
        if data.path == SYNTHETIC:
            draw = np.random.Generator(np.random.PCG64(0))
            sizes = draw.integers(max(1, length // 4), length + 1, size=1024)
            return cls([draw.integers(0, vocabulary, size) for size in sizes], 0, "drawn ids of drawn lengths")
        coder = Coder(data, source, vocabulary=vocabulary)
        texts = read_samples(data, source.root)
        samples = [coder.ids(text)[:length] for text in texts]
        share = float(np.mean([sample.size for sample in samples])) / length
        label = f"{coder.label}, {len(samples)} samples; {share:.0%} of a row is text, the rest padding"
        return cls(samples, coder.padding, label, (coder, texts))

    def made(self, count: int, length: int, seed: int) -> tuple[Tensor, Tensor]:
        """Drawn samples as a data pipeline makes them: tokenised now, cut, padded and masked.

        Shapes:
            -> ids (count, length), int64; mask (count, length), int64, 1 on what is no padding; on the host.
        """
        assert self._raw is not None, "drawn ids are made from nothing"
        coder, texts = self._raw
        draw = np.random.Generator(np.random.PCG64(seed))
        chosen = [coder.ids(texts[place])[:length] for place in draw.integers(0, len(texts), size=count)]
        return self._padded(chosen, length)

    def _padded(self, chosen: Sequence[np.ndarray], length: int) -> tuple[Tensor, Tensor]:
        ids = np.full((len(chosen), length), self._padding, dtype=np.int64)
        mask = np.zeros((len(chosen), length), dtype=np.int64)
        for row, sample in enumerate(chosen):
            ids[row, : sample.size], mask[row, : sample.size] = sample, 1
        return torch.from_numpy(ids), torch.from_numpy(mask)

    def batch(self, count: int, length: int, seed: int) -> tuple[Tensor, Tensor]:
        """`count` drawn samples, and where they are.

        Shapes:
            -> ids (count, length), int64; mask (count, length), int64, 1 on what is no padding; on the host.
        """
        draw = np.random.Generator(np.random.PCG64(seed))
        chosen = [self._samples[place] for place in draw.integers(0, len(self._samples), size=count)]
        ids, mask = self._padded(chosen, length)
        for row, sample in enumerate(chosen):
            # There are few samples: one drawn id inside keeps every step's values new.
            inside = int(draw.integers(min(1, sample.size - 1), sample.size))
            ids[row, inside] = int(draw.choice(self._everything))
        return ids, mask
