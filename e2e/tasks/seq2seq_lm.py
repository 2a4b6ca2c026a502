"""Encoder-decoder language models: one forward over padded sources and targets; the logits of every target token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModelForSeq2SeqLM

from e2e.forward import Batch, ForwardSession
from e2e.schema.evidence import Answer
from e2e.schema.workload import SYNTHETIC, Cell, Workload
from e2e.tasks._model import Source, facts_of, load_model
from e2e.tasks._tokens import Rows


class Session(ForwardSession):
    """A batch is sources, their mask, targets, their mask, (B, S) each; the answer is logits (B, S, V)."""

    def __init__(self, workload: Workload, cell: Cell, *, root: Path, device: str, seed: int) -> None:
        workload.need_sequence()
        spec = workload.model_in(cell)
        loaded = load_model(spec, AutoModelForSeq2SeqLM, root=root, device=device, seed=seed)
        super().__init__(cell, device, loaded.model)
        vocabulary = self.model.config.vocab_size
        self._rows = Rows.read(workload.data, Source(spec, root), vocabulary=vocabulary, length=cell.sequence)
        is_synthetic = workload.data.path == SYNTHETIC
        self.facts = facts_of(loaded, spec, data=self._rows.label, is_synthetic=is_synthetic)
        self.answer = Answer(width=vocabulary, has_labels=False)

    def drawn(self, rows: int, seed: int) -> Batch:
        """Sources and targets are samples of one text; a target begins as generation does."""
        return self._parted(*self._rows.batch(2 * rows, self.cell.sequence, seed))

    def made(self, seed: int) -> Batch:
        """The same as `drawn`, see `Rows.made`."""
        return self._parted(*self._rows.made(2 * self.cell.batch, self.cell.sequence, seed))

    def _parted(self, both: Tensor, masks: Tensor) -> Batch:
        rows = both.shape[0] // 2
        targets = both[rows:].roll(1, 1)
        targets[:, 0] = self.model.config.decoder_start_token_id
        return both[:rows], masks[:rows], targets, masks[rows:]

    def count(self, *inputs: Tensor) -> int:
        """Tokens of targets that are no padding."""
        return int(inputs[3].sum())

    def program(self, model: nn.Module) -> nn.Module:
        """The step of one arm."""
        return Logits(model)


class Logits(nn.Module):
    """Encoder and decoder over a padded batch: logits, zeros at padding."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor, targets: Tensor, targets_mask: Tensor) -> tuple[Tensor, ...]:
        logits = self.model(
            input_ids=ids,
            attention_mask=mask,
            decoder_input_ids=targets,
            decoder_attention_mask=targets_mask,
            use_cache=False,
        ).logits
        return (torch.masked_fill(logits, targets_mask[..., None] == 0, 0.0),)


class Seq2SeqLM:
    """Any `AutoModelForSeq2SeqLM`; sources and targets have the cell's sequence."""

    steps = ("forward",)

    open: Callable[..., Session] = Session


PLUGIN = Seq2SeqLM()
