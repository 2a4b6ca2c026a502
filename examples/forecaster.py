"""A task of your own: a private model, without Transformers, that forecasts sensor readings.

Used as `task: forecaster.py:Forecasting` in `examples/forecaster.yaml`. The path is relative to the workload file.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from e2e.forward import Batch, ForwardSession
from e2e.schema.evidence import Answer, ModelFacts
from e2e.schema.workload import Cell, Workload


class Mixer(nn.Module):
    """One block: mixes readings over time, then over channels, each behind a norm.

    Shapes:
        x (B, S, H) -> (B, S, H).
    """

    def __init__(self, hidden: int, sequence: int) -> None:
        super().__init__()
        self.norm, self.over_time = nn.LayerNorm(hidden), nn.Linear(sequence, sequence)
        self.post_norm = nn.LayerNorm(hidden)
        self.over_channels = nn.Sequential(nn.Linear(hidden, 2 * hidden), nn.GELU(), nn.Linear(2 * hidden, hidden))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.over_time(self.norm(x).mT).mT
        return x + self.over_channels(self.post_norm(x))


class Forecaster(nn.Module):
    """The next reading of every sensor, after each one so far.

    Shapes:
        readings (B, S, sensors) -> (B, S, sensors).
    """

    def __init__(self, *, sensors: int, hidden: int, layers: int, sequence: int) -> None:
        super().__init__()
        self.embed = nn.Linear(sensors, hidden)
        self.blocks = nn.Sequential(*(Mixer(hidden, sequence) for _ in range(layers)))
        self.head = nn.Linear(hidden, sensors)

    def forward(self, readings: Tensor) -> Tensor:
        return self.head(self.blocks(self.embed(readings)))


class Step(nn.Module):
    """The step returns a tuple; its first tensor is compared with the reference."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, readings: Tensor) -> tuple[Tensor, ...]:
        return (self.model(readings),)


class Session(ForwardSession):
    """Builds the model, draws readings, and says what a step and an answer are."""

    def __init__(self, workload: Workload, cell: Cell, *, root: Path, device: str, seed: int) -> None:
        torch.manual_seed(seed)
        sizes = {name: int(size) for name, size in workload.model.config.items() if name != "model_type"}
        model = Forecaster(**sizes, sequence=cell.sequence).to(device, getattr(torch, cell.dtype))
        super().__init__(cell, device, model)
        self.sensors = sizes["sensors"]
        self.facts = ModelFacts(
            model_class="Forecaster",
            parameters=sum(p.numel() for p in model.parameters()),
            dtypes={cell.dtype: sum(p.numel() for p in model.parameters())},
            data="drawn readings: waves with noise",
            is_synthetic=True,
        )
        self.answer = Answer(
            what="forecasts", per="reading", is_distribution=False, has_labels=False, width=self.sensors
        )

    def drawn(self, rows: int, seed: int) -> Batch:
        """Waves of drawn pitch and phase, with noise: no two seeds have the same."""
        generator = torch.Generator().manual_seed(seed)
        pitch, phase = torch.rand(2, rows, 1, self.sensors, generator=generator)
        time = torch.arange(self.cell.sequence)[:, None]
        noise = 0.1 * torch.randn(rows, self.cell.sequence, self.sensors, generator=generator)
        return (torch.sin(pitch * time + 6.28 * phase) + noise,)

    def program(self, model: nn.Module) -> nn.Module:
        """The step of one arm."""
        return Step(model)

    def count(self, *inputs: Tensor) -> int:
        """A forecast after every reading."""
        return int(inputs[0].shape[0] * inputs[0].shape[1])


class Forecasting:
    """The task: its kinds of step, as a literal, and how a session is opened."""

    steps = ("forward",)
    open = Session
