"""Sessions without files, for tests of what works on one: the tiny Llama, and three modules that trace at once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from e2e.numerics.examine import Examiner
from e2e.protocols import Op
from e2e.schema.evidence import Answer
from e2e.schema.workload import TrainSpec
from e2e.tasks.causal_lm import Loss
from e2e.trainer import UPDATE, Update
from tests import families, tiny


class LlamaSession:
    """A step of the tiny Llama on random ids: logits, and a training loss."""

    device = "cpu"

    def __init__(self, *, step: str = "prefill", train: TrainSpec | None = None) -> None:
        self.model: nn.Module = tiny.llama().requires_grad_(step == "train")
        self.train = train or (TrainSpec() if step == "train" else None)
        if self.train is not None and self.train.optimizer == "adamw":
            self.model.add_module(UPDATE, Update(self.train))
        self.cell = SimpleNamespace(dtype="float32", step=step, batch=2, sequence=12)
        self.answer = Answer(width=tiny.VOCABULARY)

    def windows(self, count: int, length: int, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(0, tiny.VOCABULARY, (count, length), generator=generator)

    def batch(self, seed: int) -> tuple[Tensor, ...]:
        parts = self.train.gradient_accumulation if self.train is not None else 1
        return self.windows(parts * self.cell.batch, self.cell.sequence, seed).split(self.cell.batch)

    def step_inputs(self, seed: int) -> tuple[Tensor, ...]:
        return self.batch(seed)

    def step_answers(self, model: nn.Module, ids: Tensor) -> Tensor:
        with torch.no_grad():
            found: Tensor = model(input_ids=ids, use_cache=False, logits_to_keep=1).logits
        return found

    def exam(self, tokens: int, seed: int) -> list[tuple[Tensor, ...]]:
        length = min(tokens, self.cell.sequence)
        ids = self.windows(max(1, tokens // length), length, seed)
        return [(part,) for part in ids.split(self.cell.batch)]

    def count(self, ids: Tensor) -> int:
        return ids.numel()

    def labels(self, ids: Tensor) -> Tensor:
        return nn.functional.pad(ids[:, 1:], (0, 1), value=-1).reshape(-1)

    def reset(self) -> None:
        """No state."""

    def program(self, model: nn.Module) -> Any:
        if self.train is not None:
            return Loss(model, self.device, self.train.autocast)
        return lambda ids: (model(input_ids=ids, use_cache=False, logits_to_keep=1).logits,)

    def answers(self, model: nn.Module, ids: Tensor) -> Tensor:
        with torch.no_grad():
            found: Tensor = model(input_ids=ids, use_cache=False).logits
        return found

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return torch.stack([Loss(model, self.device, None)(ids)[0] for ids in batch]).mean()


class FamilySession:
    """One forward of a small model of some family, on fixed inputs."""

    device = "cpu"
    train = None

    def __init__(self, family: str, model: nn.Module, *, labels: bool = False) -> None:
        self._family = family
        self._labels = labels
        self.model = model

    def batch(self, seed: int) -> tuple[Tensor, ...]:
        return ()

    def reset(self) -> None:
        """No state."""

    def program(self, model: nn.Module) -> Any:
        return lambda: families.run(self._family, model, labels=self._labels)


def surveyed(
    op: Op, family: str, folder: Path, model: nn.Module | None = None, *, labels: bool = False
) -> dict[str, str | None]:
    """What a survey of the family's model says of the op's sites: by name, why it is refused, or None."""
    model = families.model_of(family) if model is None else model
    examiner = Examiner(FamilySession(family, model, labels=labels), op, op.find_sites(model))
    rows = examiner.survey(seed=1, path=folder / "calls", budget_bytes=2**22)["sites"]
    return {row["fqn"]: row["incompatible"] for row in rows}


class ToySession:
    """Two linear layers with a norm between them."""

    device = "cpu"
    train = None

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 8), ToyRMSNorm(), nn.Linear(8, 8)).requires_grad_(False)

    def batch(self, seed: int) -> tuple[Tensor, ...]:
        return (torch.randn(3, 8, generator=torch.Generator().manual_seed(seed)),)

    def program(self, model: nn.Module) -> nn.Module:
        return _ToyProgram(model)

    def reset(self) -> None:
        """No state."""


class ToyRMSNorm(nn.Module):
    """An RMS norm by its name and its fields; `factor` makes it another function under the same name."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 8), requires_grad=False)
        self.eps = 1e-5
        self._factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self._factor * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class _ToyProgram(nn.Module):
    """The step: the model's output, as a tuple."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (self.model(x),)
