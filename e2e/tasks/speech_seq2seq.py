"""Speech recognisers: one forward of encoder and decoder; the logits of every token that is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForSpeechSeq2Seq

from e2e.errors import UsageError
from e2e.forward import Batch, ForwardSession
from e2e.schema.evidence import Answer
from e2e.schema.workload import SYNTHETIC, Cell, Workload
from e2e.tasks._model import Source, facts_of, load_model
from e2e.tasks._sounds import Sounds


class Session(ForwardSession):
    """A batch is log-mel features (B, mels, frames) and the ids written so far (B, S); the answer is logits (B, S, V).

    There are no transcripts: what has been written is drawn.
    """

    def __init__(self, workload: Workload, cell: Cell, *, root: Path, device: str, seed: int) -> None:
        workload.need_sequence()
        spec = workload.model_in(cell)
        loaded = load_model(spec, AutoModelForSpeechSeq2Seq, root=root, device=device, seed=seed)
        super().__init__(cell, device, loaded.model)
        config: Any = self.model.config
        if not hasattr(config, "num_mel_bins") or not hasattr(config, "max_source_positions"):
            raise UsageError(f"model: {config.model_type} does not hear log-mel features, as Whisper does")
        self._vocabulary = int(config.vocab_size)
        self._start = int(config.decoder_start_token_id)
        frames = _FRAMES_PER_POSITION * int(config.max_source_positions)
        self._sounds = Sounds.read(workload.data, Source(spec, root), mels=int(config.num_mel_bins), frames=frames)
        is_synthetic = workload.data.path == SYNTHETIC
        label = f"{self._sounds.label}; the tokens written so far are drawn"
        self.facts = facts_of(loaded, spec, data=label, is_synthetic=is_synthetic)
        self.answer = Answer(width=self._vocabulary, has_labels=False)

    def drawn(self, rows: int, seed: int) -> Batch:
        """See `Sounds.batch`; a row of ids begins as generation does."""
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(0, self._vocabulary, (rows, self.cell.sequence), generator=generator)
        ids[:, 0] = self._start
        return self._sounds.batch(rows, seed), ids

    def count(self, *inputs: Tensor) -> int:
        """Every token is compared."""
        return int(inputs[1].numel())

    def program(self, model: nn.Module) -> nn.Module:
        """The step of one arm."""
        return Logits(model)


_FRAMES_PER_POSITION = 2
"""The encoder's second convolution has a stride of two."""


class Logits(nn.Module):
    """Encoder over sound, decoder over what has been written: logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, features: Tensor, ids: Tensor) -> tuple[Tensor, ...]:
        return (self.model(input_features=features, decoder_input_ids=ids, use_cache=False).logits,)


class SpeechSeq2Seq:
    """Any `AutoModelForSpeechSeq2Seq` that hears log-mel features; the cell's sequence is the tokens written."""

    steps = ("forward",)

    open: Callable[..., Session] = Session


PLUGIN = SpeechSeq2Seq()
