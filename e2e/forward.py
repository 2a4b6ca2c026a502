"""Sessions whose step is one forward without state: what such tasks share, ours and those from outside."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from e2e.schema.evidence import Answer, ModelFacts
from e2e.schema.workload import Cell

Batch = tuple[Tensor, ...]
EXAM_ROWS = 8
"""Rows of the model check at least: the error of one row alone varies by more than a kernel changes it."""


class ForwardSession(ABC):
    """The model check, the reference and the step are the same forward on other inputs.

    A task gives `drawn` and `program`, and states `facts` and `answer`.
    """

    facts: ModelFacts
    answer: Answer

    def __init__(self, cell: Cell, device: str, model: nn.Module) -> None:
        """`model` is on the device, in the cell's dtype."""
        self.cell = cell
        self.device = device
        self.model = model.eval().requires_grad_(False)

    @abstractmethod
    def drawn(self, rows: int, seed: int) -> Batch:
        """Inputs of so many rows, on the host: each tensor has the rows first; whole numbers stay what they are."""

    @abstractmethod
    def program(self, model: nn.Module) -> nn.Module:
        """The step of one arm: takes a batch, returns a tuple of tensors, rows first; the first one is compared."""

    def batch(self, seed: int) -> Batch:
        """Fresh inputs of one step, on the device, in the cell's dtype."""
        return self._placed(self.drawn(self.cell.batch, seed))

    def prepare(self, seed: int) -> None:  # noqa: B027  nothing to do is the right default
        """There is no state."""

    def reset(self) -> None:  # noqa: B027
        """There is no state."""

    def exam(self, tokens: int, seed: int) -> list[Batch]:
        """Calls of the step's own shape, as far as the rows go."""
        rows = max(EXAM_ROWS, tokens // (self.cell.sequence * self.answer.tokens))
        whole = self._placed(self.drawn(rows, seed))
        return list(zip(*(tensor.split(self.cell.batch) for tensor in whole), strict=True))

    def answers(self, model: nn.Module, *inputs: Tensor) -> Tensor:
        """The step's first output."""
        with torch.no_grad():
            found: Tensor = self.program(model)(*inputs)[0]
        return found

    def count(self, *inputs: Tensor) -> int:
        """One answer per row."""
        return int(inputs[0].shape[0])

    def labels(self, *inputs: Tensor) -> Tensor | None:
        """Not known."""
        return None

    def step_inputs(self, seed: int) -> Batch:
        """Nothing but the batch."""
        return self.batch(seed)

    def step_answers(self, model: nn.Module, *inputs: Tensor) -> Tensor:
        """See `answers`."""
        return self.answers(model, *inputs)

    def _placed(self, batch: Batch) -> Batch:
        dtype = getattr(torch, self.cell.dtype)
        return tuple(tensor.to(self.device, dtype if tensor.is_floating_point() else tensor.dtype) for tensor in batch)
