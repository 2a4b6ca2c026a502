"""Text encoders: one forward over a padded batch; the features of every token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import Tensor, nn
from transformers import AutoModel

from e2e.errors import UsageError
from e2e.forward import Batch, ForwardSession
from e2e.schema.evidence import Answer
from e2e.schema.workload import SYNTHETIC, Cell, Workload
from e2e.tasks._model import Source, facts_of, load_model
from e2e.tasks._tokens import Rows


class Session(ForwardSession):
    """A batch is ids and mask (B, S); the answer is the last hidden state (B, S, H), zeros at padding."""

    def __init__(self, workload: Workload, cell: Cell, *, root: Path, device: str, seed: int) -> None:
        workload.need_sequence()
        spec = workload.model_in(cell)
        loaded = load_model(spec, AutoModel, root=root, device=device, seed=seed)
        super().__init__(cell, device, loaded.model)
        if self.model.config.is_encoder_decoder:
            raise UsageError(f"task: {self.model.config.model_type} has a decoder as well: take seq2seq-lm")
        vocabulary = self.model.config.vocab_size
        self._rows = Rows.read(workload.data, Source(spec, root), vocabulary=vocabulary, length=cell.sequence)
        is_synthetic = workload.data.path == SYNTHETIC
        self.facts = facts_of(loaded, spec, data=self._rows.label, is_synthetic=is_synthetic)
        self.answer = Answer(what="features", is_distribution=False, has_labels=False, width=self.facts.hidden)

    def drawn(self, rows: int, seed: int) -> Batch:
        """See `Rows.batch`."""
        return self._rows.batch(rows, self.cell.sequence, seed)

    def made(self, seed: int) -> Batch:
        """See `Rows.made`."""
        return self._rows.made(self.cell.batch, self.cell.sequence, seed)

    def count(self, *inputs: Tensor) -> int:
        """Tokens that are no padding."""
        return int(inputs[1].sum())

    def program(self, model: nn.Module) -> nn.Module:
        """The step of one arm."""
        return Features(model)


class Features(nn.Module):
    """Forward over a padded batch: the last hidden state. What a model leaves at padding is nobody's business."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        features = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
        return (features.masked_fill(mask[..., None] == 0, 0.0),)


class FeatureExtraction:
    """Sentence and token features, on any `AutoModel` that takes ids and an attention mask."""

    steps = ("forward",)

    open: Callable[..., Session] = Session


PLUGIN = FeatureExtraction()
