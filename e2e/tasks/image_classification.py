"""Image classifiers: one forward over a batch of images; the logits of the classes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import Tensor, nn
from transformers import AutoModelForImageClassification

from e2e.forward import Batch, ForwardSession
from e2e.schema.evidence import Answer
from e2e.schema.workload import SYNTHETIC, Cell, Workload
from e2e.tasks._images import Images, Shape
from e2e.tasks._model import Source, facts_of, load_model

_USUAL_PATCH = 16
"""Where a model has no patches: what a token of its would be, for the size of the model check."""


class Session(ForwardSession):
    """A batch is pixels (B, C, H, W); the answer is logits (B, classes)."""

    def __init__(self, workload: Workload, cell: Cell, *, root: Path, device: str, seed: int) -> None:
        spec = workload.model_in(cell)
        loaded = load_model(spec, AutoModelForImageClassification, root=root, device=device, seed=seed)
        super().__init__(cell, device, loaded.model)
        shape = Shape.of(self.model.config)
        self._images = Images.read(workload.data, Source(spec, root), shape=shape)
        is_synthetic = workload.data.path == SYNTHETIC
        self.facts = facts_of(loaded, spec, data=self._images.label, is_synthetic=is_synthetic)
        patch = getattr(self.model.config, "patch_size", _USUAL_PATCH)
        tokens = max(1, shape.height // patch) * max(1, shape.width // patch) if isinstance(patch, int) else 1
        self.answer = Answer(per="image", has_labels=False, width=int(self.model.config.num_labels), tokens=tokens)

    def drawn(self, rows: int, seed: int) -> Batch:
        """See `Images.batch`."""
        return (self._images.batch(rows, seed),)

    def made(self, seed: int) -> Batch:
        """See `Images.made`."""
        return (self._images.made(self.cell.batch, seed),)

    def program(self, model: nn.Module) -> nn.Module:
        """The step of one arm."""
        return Classes(model)


class Classes(nn.Module):
    """Forward over images: the logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        return (self.model(pixel_values=pixels).logits,)


class ImageClassification:
    """Any `AutoModelForImageClassification`; its cells have a batch, and no sequence."""

    steps = ("forward",)

    open: Callable[..., Session] = Session


PLUGIN = ImageClassification()
