"""Workload: what to run. One YAML file under `workloads/`; holds no thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from e2e.errors import UsageError
from e2e.schema.record import Record

Step = Literal["prefill", "decode", "generate", "train", "forward"]
DType = Literal["float32", "float16", "bfloat16"]
COMMAND = "command"
"""The task whose step a program of the user's own runs."""
SYNTHETIC = "synthetic"
"""`data.path` of inputs that are drawn, not read; every report says so."""
HUB = "hf:"
"""What a `data.path` begins with that is a data set of the hub."""


class ModelSpec(Record):
    """Which model, with which weights, in which dtype."""

    id: str | None = None
    """Hub id; or a folder or a GGUF file, relative to the workload file or to the `package`."""
    package: str | None = None
    """Installed Python package (as pip names it) that holds the folder or file."""
    revision: str | None = None
    """Commit of the hub id; recorded in the result."""
    factory: str | None = None
    """`path/to/file.py:function`, relative to the workload file, or `package.module:function`: called with the built
    model, returns the model. Without `id` and `config` it is called with nothing, and builds one."""
    weights: Literal["pretrained", "random"] = "pretrained"
    """`random` is labelled in every report; there is never a silent fallback to it."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Fields laid over the model's config; alone (with `model_type`) they are that of random weights."""
    dtype: DType
    """Always stated, always checked on the parameters."""
    attention: Literal["sdpa", "eager"] = "sdpa"
    """Attention implementation to ask for; the one really used is reported."""
    trust_remote_code: bool = False
    """Run code that comes with the model; its hash is recorded."""

    @property
    def is_built_by_factory(self) -> bool:
        """Whether the factory has nothing to start from."""
        return self.factory is not None and self.id is None and "model_type" not in self.config

    @model_validator(mode="after")
    def _has_a_source(self) -> ModelSpec:
        if self.is_built_by_factory and not self.config:
            return self
        if self.weights == "pretrained" and self.id is None:
            raise ValueError("pretrained weights need `id` (a hub id or a folder)")
        if self.weights == "random" and self.id is None and "model_type" not in self.config:
            raise ValueError("random weights need `id` or a `config` with `model_type`")
        if self.package is not None and self.id is None:
            raise ValueError("`package` needs `id`: the folder or the GGUF file in it")
        return self


class DataSpec(Record):
    """Where the step's inputs come from."""

    path: str
    """Relative to the workload file: text, `.jsonl` or `.parquet`; for images a folder or a `.npz`. Or `hf:NAME`, a
    data set of text on the hub; or `synthetic`."""
    split: str = "train"
    """Of a data set on the hub, in its own words: `train`, `test[:1000]`."""
    revision: str | None = None
    """Of a data set on the hub: its commit."""
    field: str | None = None
    """Records of text: the field with it, `text` by default. `.npz`: the array of images, `images`."""
    tokenizer: Literal["model", "bytes"] = "model"
    """`bytes`: token id = byte value (byte-level models, and random weights, which have no tokenizer)."""
    workers: int = Field(0, ge=0, le=64)
    """With `include: [data]`: processes that make batches, as a DataLoader's do; 0: the step's own process does."""
    prefetch: int = Field(2, ge=1, le=64)
    """Batches that each of them makes ahead."""


class Cells(Record):
    """The sweep: the product of its lists is the list of cells."""

    batch: list[int] = Field(min_length=1)
    sequence: list[int] = []
    """Tokens per row, padding included. Decode: tokens already in the cache. Images have none."""

    lengths: str | None = None
    """A CSV file, relative to the workload file, whose prompt lengths choose `sequence`."""
    groups: int = Field(4, ge=1)
    """Cells that they are cut into."""
    dtype: list[DType] = []
    """None: `model.dtype`."""
    step: list[Step] = []
    """None: the workload's `step`."""
    weights: list[Annotated[float, Field(ge=0)]] = []
    """How often the workload runs each cell, in the order of the cells (step, dtype, batch, sequence); none: it does
    not say. `lengths` says it too."""

    @property
    def unweighted(self) -> Cells:
        """The same cells, all alike."""
        return self.model_copy(update={"weights": []})

    @field_validator("batch", "sequence")
    @classmethod
    def _are_sizes(cls, value: list[int]) -> list[int]:
        if value and min(value) < 1:
            raise ValueError(f"must be at least 1, not {min(value)}")
        return value

    @field_validator("batch", "sequence", "dtype", "step")
    @classmethod
    def _are_different(cls, value: list[Any]) -> list[Any]:
        again = [item for index, item in enumerate(value) if item in value[:index]]
        if again:
            raise ValueError(f"{again[0]} is given twice, and a cell is measured once")
        return value


class TrainSpec(Record):
    """What a training step is, beyond the model: the same in every arm. Other steps pass it over."""

    optimizer: Literal["adamw", "sgd"] = "adamw"
    implementation: Literal["default", "for-loop", "foreach", "fused"] = "default"
    """Torch's own ways to run the optimizer; `default` leaves the choice to torch, as a user does who says nothing."""
    learning_rate: float = Field(1e-5, gt=0)
    beta1: float = Field(0.9, ge=0, lt=1)
    """AdamW only, as are the next two."""
    beta2: float = Field(0.999, ge=0, lt=1)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.01, ge=0)
    momentum: float = Field(0.0, ge=0, lt=1)
    """SGD only."""
    gradient_accumulation: int = Field(1, ge=1)
    """Batches of the cell's size that a step runs forward and backward before the optimizer's turn."""
    checkpointing: bool = False
    """Whether activations are computed again in the backward, layer by layer, as the model's class offers it."""
    autocast: Literal["bfloat16", "float16"] | None = None
    """Dtype that torch.autocast runs forward and loss in; the parameters keep the model's."""
    clip: float | None = Field(None, gt=0)
    """Largest norm of all gradients together; longer ones are scaled down."""

    @model_validator(mode="after")
    def _is_the_optimizers(self) -> TrainSpec:
        others = ("momentum",) if self.optimizer == "adamw" else ("beta1", "beta2", "eps")
        for name in others:
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name}: {self.optimizer} has none; leave it out, or choose another optimizer")
        return self

    @property
    def copies(self) -> int:
        """Tensors as large as the model that training keeps: the parameters, and the optimizer's state."""
        return 3 if self.optimizer == "adamw" else 2 if self.momentum else 1


class CommandSpec(Record):
    """The program that a `task: command` runs, in a fresh process for every measurement; see `e2e.external`."""

    argv: list[str] = []
    """The program and its arguments; it runs in the workload file's folder."""
    metric: Literal["seconds", "rate"] = "seconds"
    """What it reports: seconds per step, or steps, tokens or images per second."""
    sham: bool = False
    """Whether it knows `E2E_ARM=sham`: the swap, with the original maths. Without it the program as it is stands in."""

    @field_validator("argv")
    @classmethod
    def _are_words(cls, value: list[str]) -> list[str]:
        if value and not value[0]:
            raise ValueError("the first word is the program's name, and it is empty")
        if any("\0" in word for word in value):
            raise ValueError("no word of a command line can hold the character 0")
        return value


class Workload(Record):
    """What to run: model, data, task, step, cells."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")
    task: str
    step: Step
    model: ModelSpec
    data: DataSpec
    cells: Cells
    cache: Literal["static", "dynamic"] = "static"
    """Decode and generate: keys and values in memory of one size, or in tensors that grow with every token."""
    new_tokens: int = Field(16, ge=1)
    """Generate: tokens that a step writes per row."""
    train: TrainSpec = TrainSpec()
    include: list[Literal["transfer", "data"]] = Field(default_factory=list)
    """Parts of the pipeline that count; `transfer`: in every timed step inputs start on the host, in pinned memory.
    `data`: steps that make their batches from raw data are timed beside those of prepared batches, which decide."""
    command: CommandSpec = CommandSpec()
    """`task: command` only."""
    sites: list[str] = Field(default=["*"], min_length=1)
    """Where the op is looked for: globs over fully qualified module names; what none of them matches is left alone."""
    policy: str | None = None
    """Name of a built-in policy or path of a policy file; `--policy` wins over it."""
    description: str = ""

    @model_validator(mode="before")
    @classmethod
    def _need_not_say(cls, value: Any) -> Any:
        """A command has model and data of its own: only the dtype has to be stated."""
        if not isinstance(value, dict) or value.get("task") != COMMAND:
            return value
        model = value.get("model")
        own = {"model": {"id": COMMAND, **model}} if isinstance(model, dict) else {}
        return {"step": "forward", "data": {"path": SYNTHETIC}, "cells": {"batch": [1]}, **value, **own}

    @model_validator(mode="after")
    def _has_a_command(self) -> Workload:
        if self.is_command and not self.command.argv:
            raise ValueError("`task: command` needs `command: {argv: [program, argument, ...]}`")
        if not self.is_command and self.command != CommandSpec():
            raise ValueError(f"`command` goes with `task: command`, not with {self.task}")
        return self

    @model_validator(mode="after")
    def _has_data_to_include(self) -> Workload:
        if "data" in self.include and self.is_command:
            raise ValueError("include: data: the command has a pipeline of its own, which it may time or not")
        if "data" in self.include and self.data.path == SYNTHETIC:
            raise ValueError("include: data: there is no pipeline where inputs are drawn (data.path: synthetic)")
        return self

    @model_validator(mode="after")
    def _has_a_weight_for_every_cell(self) -> Workload:
        weights, cells = self.cells.weights, cells_of(self.model_copy(update={"cells": self.cells.unweighted}))
        if self.cells.lengths is not None and not self.cells.sequence:
            return self  # the cells are not known yet
        if weights and len(weights) != len(cells):
            raise ValueError(f"cells.weights: {len(weights)} of them for {len(cells)} cells")
        if weights and not sum(weights):
            raise ValueError("cells.weights: all are 0")
        return self

    @property
    def is_command(self) -> bool:
        """Whether a program of the user's own runs the step."""
        return self.task == COMMAND

    @property
    def trains(self) -> bool:
        """Whether some cell is a training step."""
        return "train" in (self.cells.step or [self.step])

    def need_sequence(self) -> None:
        """For tasks whose rows are tokens.

        Raises:
            UsageError: the cells do not say how many.
        """
        if not self.cells.sequence:
            message = f"cells.sequence: a row of {self.task} is so many tokens: say how many, as in `sequence: [128]`"
            raise UsageError(message)

    def model_in(self, cell: Cell) -> ModelSpec:
        """The model as that cell has it."""
        return self.model.model_copy(update={"dtype": cell.dtype})


class Cell(Record):
    """One point of the sweep."""

    batch: int
    sequence: int
    dtype: DType
    step: Step
    new_tokens: int = 0
    """Tokens written per row, where the step is `generate`."""
    weight: float | None = None
    """How often the workload runs it, compared with its other cells; None: it does not say."""

    @property
    def title(self) -> str:
        """For people: `prefill 8 x 2048 bfloat16`; `generate 1 x 512 + 16 float16`; for images `forward 64 float32`."""
        size = str(self.batch) if self.sequence == 1 else f"{self.batch} x {self.sequence}"
        size += f" + {self.new_tokens}" if self.new_tokens else ""
        return f"{self.step} {size} {self.dtype}"

    @property
    def rows(self) -> int:
        """Tokens that go through the model in one step: decoding takes one of every sequence."""
        read = 1 if self.step == "decode" else self.sequence + max(0, self.new_tokens - 1)
        return self.batch * read


def cells_of(workload: Workload) -> list[Cell]:
    """Every cell of the sweep, in file order."""
    cells = [
        Cell(
            batch=batch,
            sequence=sequence,
            dtype=dtype,
            step=step,
            new_tokens=workload.new_tokens if step == "generate" else 0,
        )
        for step in workload.cells.step or [workload.step]
        for dtype in workload.cells.dtype or [workload.model.dtype]
        for batch in workload.cells.batch
        for sequence in workload.cells.sequence or [1]
    ]
    weights: Sequence[float | None] = workload.cells.weights or [None] * len(cells)
    return [cell.model_copy(update={"weight": weight}) for cell, weight in zip(cells, weights, strict=True)]
