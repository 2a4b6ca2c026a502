"""What tasks share whose step is one forward without state."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn

from e2e.schema.evidence import Answer, ModelFacts
from e2e.schema.workload import Cell

Batch = tuple[Tensor, ...]
EXAM_ROWS = 8
"""Rows of the model check at least: the error of one row alone varies by more than a kernel changes it."""


class ForwardSession:
    """The step is one forward; the model check and the reference are the same forward on other inputs."""

    facts: ModelFacts
    answer: Answer

    def __init__(self, cell: Cell, device: str, model: nn.Module) -> None:
        self.cell = cell
        self.device = device
        self.model = model.requires_grad_(False)

    @abstractmethod
    def drawn(self, rows: int, seed: int) -> Batch:
        """Inputs of so many rows, on the host."""

    @abstractmethod
    def program(self, model: nn.Module) -> nn.Module:
        """The step of one arm."""

    def batch(self, seed: int) -> Batch:
        """Fresh inputs of one step, on the device."""
        return self._placed(self.drawn(self.cell.batch, seed))

    def prepare(self, seed: int) -> None:
        """There is no state."""

    def reset(self) -> None:
        """There is no state."""

    def exam(self, tokens: int, seed: int) -> list[Batch]:
        """Batches of the step's own shape, the last one cut; fewer rows where even one batch is too many."""
        costs = self.cell.sequence * self.answer.tokens
        rows = max(EXAM_ROWS, tokens // costs)
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

    def step_inputs(self, seed: int) -> Batch:
        """Nothing but the batch."""
        return self.batch(seed)

    def step_answers(self, model: nn.Module, *inputs: Tensor) -> Tensor:
        """See `answers`."""
        return self.answers(model, *inputs)

    def _placed(self, batch: Batch) -> Batch:
        dtype = getattr(torch, self.cell.dtype)
        return tuple(tensor.to(self.device, dtype if tensor.is_floating_point() else tensor.dtype) for tensor in batch)
