"""A training step as an arm runs it, by turns with others: from one snapshot, on one state that its turn makes its own.

Worker side. A step's outputs, for its fingerprint, are numbers that every gradient and every update goes into.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from e2e.errors import CandidateError
from e2e.schema.workload import TrainSpec

Batch = tuple[Tensor, ...]
SAMPLE = 4096
"""Elements of each parameter whose update is measured, evenly spaced: all of them would be one more model to read."""
GRADIENT, MOVED = "gradient:", "moved:"
"""Before a parameter's name, in what a probe finds."""
_TINY = 1e-12
"""Below it a size counts as none: it would outweigh all others in a projection of logarithms."""


class Update(nn.Module):
    """The optimizer's step as a module of the model, so that a kernel can stand in its place; holds no tensors.

    The arm's Trainer says which optimizer it is. A replaced forward asks for the op's call.
    """

    def __init__(self, train: TrainSpec) -> None:
        super().__init__()
        self.train_spec = train
        self._optimizer: torch.optim.Optimizer | None = None
        self.steps = 0

    def bind(self, optimizer: torch.optim.Optimizer | None) -> None:
        """What a step of it is; None where no arm trains the model."""
        self._optimizer = optimizer

    def forward(self) -> None:
        assert self._optimizer is not None
        self._optimizer.step()

    def call(self) -> tuple[Any, ...]:
        """The call of the op `adamw` that the step is; its number counts from 1."""
        assert self._optimizer is not None
        self.steps += 1
        parameters = [item for group in self._optimizer.param_groups for item in group["params"]]
        learning = [item for item in parameters if item.grad is not None]
        states = [self._state(item) for item in learning]
        gradients = tuple(item.grad for item in learning)
        moments = (tuple(state[name] for state in states) for name in ("exp_avg", "exp_avg_sq"))
        group = self._optimizer.param_groups[0]
        scalars = (self.steps, group["lr"], *group["betas"], group["eps"], group["weight_decay"])
        return (tuple(item.detach() for item in learning), gradients, *moments, *scalars)

    def _state(self, parameter: Tensor) -> dict[str, Tensor]:
        assert self._optimizer is not None
        state: dict[str, Tensor] = self._optimizer.state[parameter]
        if not state:
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        return state


UPDATE = "optimizer"
"""Name of that module in a model that is trained with AdamW."""


@dataclass(frozen=True)
class State:
    """What training changes, held once for all arms of a model: whoever's turn it is starts it from the snapshot."""

    model: nn.Module
    """Its parameters and buffers are the ones that are trained; arms' trees are over them."""
    optimizer: torch.optim.Optimizer

    @classmethod
    def of(cls, source: nn.Module, train: TrainSpec) -> State:
        """A copy of the model, and an optimizer that has all of its tensors already: no arm's turn makes them."""
        model = copy.deepcopy(source).train()
        parameters = [item for item in model.parameters() if item.requires_grad]
        optimizer = optimizer_of(train, parameters)
        for item in parameters:
            item.grad = torch.zeros_like(item)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return cls(model, optimizer)


class Trainer:
    """Steps of one arm: zero the gradients, forward, backward, clip, update."""

    def __init__(
        self, model: nn.Module, source: nn.Module, train: TrainSpec, optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        """`source`: the model that `model` was copied from, which no arm trains; its values are the snapshot.

        `optimizer`: of these parameters, where others train them as well, by turns; None makes one.
        """
        self._clip = train.clip
        self._named = {name: item for name, item in model.named_parameters() if item.requires_grad}
        self._optimizer = optimizer_of(train, self._named.values()) if optimizer is None else optimizer
        self._update: Callable[[], Any] = self._optimizer.step
        update = getattr(model, UPDATE, None)
        if isinstance(update, Update) and train.optimizer == "adamw":
            update.bind(self._optimizer)
            self._update = update
        state = {**dict(source.named_parameters()), **dict(source.named_buffers())}
        own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        self._live = [own[name].detach() for name in state]
        self._start = [item.detach() for item in state.values()]
        self._samples = [_sampled(item.detach()) for item in self._named.values()]
        self._sampled_start = [_sampled(state[name].detach()) for name in self._named]

    def restore(self) -> None:
        """Back to the snapshot: parameters, buffers, the optimizer's state and the drawing of numbers.

        Every tensor keeps its address. The snapshot's optimizer has made no step, so all of its state is zero.

        Raises:
            CandidateError: `tampered`: a hook hangs on a parameter, and would run in every arm's backward.
        """
        for name, item in self._named.items():
            if item._backward_hooks or item._post_accumulate_grad_hooks:
                raise CandidateError(f"a hook was left on {name}, which every arm trains", code="tampered")
        torch.manual_seed(0)
        self.release()
        if isinstance(self._update, Update):
            self._update.steps = 0
        torch._foreach_copy_(self._live, self._start)
        state = [item for items in self._optimizer.state.values() for item in items.values() if item is not None]
        for group in ([item for item in state if item.dim()], [item for item in state if not item.dim()]):
            if group:
                torch._foreach_zero_(group)

    def release(self) -> None:
        """Let go of the gradients: an arm whose turn is over needs no memory for them."""
        self._optimizer.zero_grad(set_to_none=True)

    def step(self, program: Callable[..., Sequence[Tensor]], batch: Batch) -> tuple[Tensor, ...]:
        """One step; `program` gives the loss of one of the tensors in `batch`.

        Shapes:
            -> (N + 2,), float32: logarithms of the loss, of every gradient's norm, and of how far samples of the
            parameters are from the snapshot; (N,), float32: norms of the parameters.
        """
        return self._told(self.advance(program, batch))

    def advance(self, program: Callable[..., Sequence[Tensor]], batch: Batch) -> Tensor:
        """The step itself; its loss."""
        self._optimizer.zero_grad(set_to_none=True)
        loss = accumulated(program, batch)
        if self._clip is not None:
            nn.utils.clip_grad_norm_(self._named.values(), self._clip)
        with torch.no_grad():
            self._update()
        return loss

    def update(self) -> None:
        """The optimizer's part alone, on the gradients that there are."""
        with torch.no_grad():
            self._update()

    def probe(self, program: Callable[..., Sequence[Tensor]], batch: Batch) -> dict[str, Tensor]:
        """One step from the snapshot: a sample of every gradient, and the share of every parameter that moved."""
        self.restore()
        self.step(program, batch)
        gradients = {GRADIENT + name: _sampled(grad).clone() for name, grad in self._gradients().items()}
        pairs = zip(self._named, self._samples, self._sampled_start, strict=True)
        moved = {MOVED + name: (now != then).float().mean().reshape(1) for name, now, then in pairs}
        self.release()
        return {**gradients, **moved}

    def _gradients(self) -> dict[str, Tensor]:
        """Those that there are."""
        return {name: item.grad for name, item in self._named.items() if item.grad is not None}

    def _told(self, loss: Tensor) -> tuple[Tensor, ...]:
        """Sizes differ by orders of magnitude, so that only their logarithms fit into one projection."""
        with torch.no_grad():
            found = self._gradients()
            norms = dict(zip(found, _norms(list(found.values())), strict=True))
            sizes = [norms[name] if name in norms else loss.new_zeros(()) for name in self._named]
            moved = torch.stack(_norms(torch._foreach_sub(self._samples, self._sampled_start))).norm()
            told = torch.stack([item.to(moved.dtype) for item in (loss, *sizes, moved)]).clamp_min(_TINY).log()
            return told, torch.stack(_norms(list(self._named.values())))


@contextmanager
def stepping(session: Any) -> Iterator[Callable[[Batch], Any]]:
    """Runs steps of the session's own model, to look on; after training steps the model is as it was before."""
    model, program, train = session.model, session.program(session.model), getattr(session, "train", None)
    if train is None:
        with torch.no_grad():
            yield lambda batch: program(*batch)
        return
    trainer = Trainer(model, copy.deepcopy(model), train)
    try:
        with torch.enable_grad():
            yield lambda batch: trainer.advance(program, batch)
    finally:
        trainer.restore()
        if isinstance(update := getattr(model, UPDATE, None), Update):
            update.bind(None)


def accumulated(program: Callable[..., Sequence[Tensor]], batch: Batch) -> Tensor:
    """Run every tensor of the batch forward and backward; the mean loss, of which gradients have been added up.

    Shapes:
        -> (), without a graph.
    """
    total = None
    for part in batch:
        (loss,) = program(part)
        mine = loss / len(batch) if len(batch) > 1 else loss
        mine.backward()
        total = mine.detach() if total is None else total + mine.detach()
    assert total is not None
    return total


def optimizer_of(train: TrainSpec, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    """Torch's own optimizer, as the workload states it."""
    how: dict[str, Any] = {
        "default": {},
        "for-loop": {"foreach": False, "fused": False},
        "foreach": {"foreach": True},
        "fused": {"fused": True},
    }[train.implementation]
    common = {"lr": train.learning_rate, "weight_decay": train.weight_decay, **how}
    if train.optimizer == "sgd":
        return torch.optim.SGD(parameters, momentum=train.momentum, **common)
    return torch.optim.AdamW(parameters, betas=(train.beta1, train.beta2), eps=train.eps, **common)


def _norms(tensors: Sequence[Tensor]) -> list[Tensor]:
    if not tensors:
        return []
    found: list[Tensor] = list(torch._foreach_norm(tensors, 2, torch.promote_types(tensors[0].dtype, torch.float32)))
    return found


def _sampled(tensor: Tensor) -> Tensor:
    """A view of evenly spaced elements; an odd step meets every column of a matrix whose width is a power of two."""
    flat = tensor.view(-1)
    return flat[:: (flat.numel() // SAMPLE) | 1]
