"""The op's true outputs, and in training its true gradients, recorded once and given back instead of computed.

Worker side. What is left of the step is the most that any kernel for the op could leave.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch import library as lib

from e2e.operators import READS
from e2e.patch import Occurrence, Patch, observed
from e2e.protocols import Op, OpCall, Site, outputs_of
from e2e.schema.workload import TrainSpec


@dataclass(frozen=True)
class Recorded:
    """One call of the op."""

    outputs: tuple[Tensor, ...]
    gradients: dict[int, Tensor] = field(default_factory=dict)
    """Of the call's arguments, by their place; empty in inference, and where the op has no gradient of its own."""
    parameters: frozenset[int] = frozenset()
    """Places of arguments that are the model's parameters: their gradient becomes `.grad`, which clipping changes."""

    def gradient(self, place: int, known: Tensor) -> Tensor:
        """What the backward hands out for that argument, as `known` holds it."""
        return known.clone() if place in self.parameters else known.detach()


def recorded(
    occurrences: Sequence[Occurrence], program: nn.Module, batch: tuple[Tensor, ...], train: TrainSpec | None
) -> dict[str, list[Recorded]]:
    """Every call of one step, by site; of a training step, in which all parts are alike, those of one part."""
    if train is not None:
        return _recorded_training(occurrences, program, batch)
    calls: dict[str, list[Recorded]] = {}

    def record(site: Site, call: OpCall, output: Any) -> None:
        calls.setdefault(site.fqn, []).append(Recorded(_kept(outputs_of(output))))

    with torch.no_grad(), ExitStack() as stack:
        for op, sites in occurrences:
            stack.enter_context(observed(op, sites, record))
        program(*batch)
    return calls


def _recorded_training(
    occurrences: Sequence[Occurrence], program: nn.Module, batch: tuple[Tensor, ...]
) -> dict[str, list[Recorded]]:
    calls: dict[str, list[Recorded]] = {}
    patches = [Patch(op, list(sites), _recording(op, calls)) for op, sites in occurrences]
    try:
        (loss,) = program(batch[0])
        (loss / len(batch)).backward()
    finally:
        for patch in patches:
            patch.undo()
        program.zero_grad(set_to_none=True)
    return calls


def _recording(op: Op, calls: dict[str, list[Recorded]]) -> Callable[[Site], Callable[..., Any]]:
    def recording(site: Site) -> Callable[..., Any]:
        own = op.own(site)

        def call(*args: Any) -> Any:
            kept: dict[int, Tensor] = {}
            output = _Recording.apply(own, kept, *args)
            tensors = [(place, item) for place, item in enumerate(args) if isinstance(item, Tensor)]
            parameters = frozenset(place for place, item in tensors if item.requires_grad and item.is_leaf)
            calls.setdefault(site.fqn, []).append(Recorded(_kept(outputs_of(output)), kept, parameters))
            return output

        return call

    return recording


def _kept(outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(item.detach().clone() for item in outputs)


class _Recording(torch.autograd.Function):
    """The op's own code, whose backward notes the gradients of the call's arguments."""

    @staticmethod
    def forward(ctx: Any, own: Callable[..., Any], kept: dict[int, Tensor], *args: Any) -> Any:
        with torch.enable_grad():
            given = [
                item.detach().requires_grad_(item.requires_grad) if isinstance(item, Tensor) else item for item in args
            ]
            output = own(*given)
        ctx.given, ctx.outputs, ctx.kept = given, outputs_of(output), kept
        return _returned(tuple(item.detach() for item in ctx.outputs))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        places = [place for place, item in enumerate(ctx.given) if isinstance(item, Tensor) and item.requires_grad]
        wanted = [ctx.given[place] for place in places]
        found = torch.autograd.grad(ctx.outputs, wanted, gradients, allow_unused=True)
        by_place = dict(zip(places, found, strict=True))
        ctx.kept |= {place: item.clone() for place, item in by_place.items() if item is not None}
        return (None, None, *(by_place.get(place) for place in range(len(ctx.given))))


def replay(site: Site, calls: list[Recorded], *, is_compiled: bool) -> Callable[..., Any]:
    """What stands at the site instead of the op.

    Raises:
        RuntimeError: the op runs there in a way that cannot be replayed.
    """
    if is_compiled and (len(calls) == 1 or (calls and not site.is_declared)):
        return _replay_compiled(site, calls)
    if calls and not is_compiled:
        return _replay_eager(calls[0]) if len(calls) == 1 else _replay_several(calls)
    raise RuntimeError(f"{site.fqn} ran {len(calls)} times in a step: its outputs cannot be replayed")


def _replay_eager(recorded: Recorded) -> Callable[..., Any]:
    if recorded.gradients:
        return lambda *call: _Replayed.apply(recorded, *call)
    output = _returned(recorded.outputs)
    return lambda *call: output


def _replay_several(recorded: list[Recorded]) -> Callable[..., Any]:
    calls = itertools.cycle([_replay_eager(item) for item in recorded])
    return lambda *call: next(calls)(*call)


class _Replayed(torch.autograd.Function):
    """Recorded outputs, and recorded gradients for the call's arguments."""

    @staticmethod
    def forward(ctx: Any, recorded: Recorded, *call: Any) -> Any:
        ctx.recorded, ctx.count = recorded, len(call)
        return _returned(tuple(item.detach() for item in recorded.outputs))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        mine: Recorded = ctx.recorded
        found = {place: mine.gradient(place, known) for place, known in mine.gradients.items()}
        return (None, *(found.get(place) for place in range(ctx.count)))


def _replay_compiled(site: Site, recorded: list[Recorded]) -> Callable[..., Any]:
    """Under a compiler recordings are buffers, and an opaque op keeps the call's tensors alive.

    Without it the compiler deletes everything upstream of the site, and the ceiling means nothing.
    """
    _define_touch()
    module = site.module
    names = [
        [f"e2e_recorded_{turn}_{place}" for place in range(len(item.outputs))] for turn, item in enumerate(recorded)
    ]
    slopes = [{place: f"e2e_gradient_{turn}_{place}" for place in item.gradients} for turn, item in enumerate(recorded)]
    for turn, item in enumerate(recorded):
        for name, tensor in zip(names[turn], item.outputs, strict=True):
            module.register_buffer(name, tensor, persistent=False)
        for place, name in slopes[turn].items():
            module.register_buffer(name, item.gradients[place], persistent=False)

    def given(turn: int, call: tuple[Any, ...]) -> Any:
        outputs = [getattr(module, name) for name in names[turn]]
        if slopes[turn]:
            gradients = [getattr(module, name) for name in slopes[turn].values()]
            return _ReplayedCompiled.apply(recorded[turn], *outputs, *gradients, *call)
        torch.ops.e2e_headroom.touch(outputs[0], [item for item in call if isinstance(item, Tensor)])
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    turns = itertools.cycle(range(len(recorded)))

    def replayed(*call: Any) -> Any:
        return given(next(turns) if len(recorded) > 1 else 0, call)  # where there are more, no Dynamo looks in here

    vars(replayed)[READS] = tuple(itertools.chain(*names))
    return replayed


class _ReplayedCompiled(torch.autograd.Function):
    """As `_Replayed`; the gradients that come in are kept alive as well."""

    @staticmethod
    def forward(ctx: Any, recorded: Recorded, *tensors: Any) -> Any:
        count = len(recorded.outputs)
        lead = count + len(recorded.gradients)
        torch.ops.e2e_headroom.touch(tensors[0], [item for item in tensors[lead:] if isinstance(item, Tensor)])
        ctx.save_for_backward(*tensors[count:lead])
        ctx.recorded, ctx.lead, ctx.count = recorded, 1 + lead, len(tensors) - lead
        return tensors[0].detach() if count == 1 else tuple(item.detach() for item in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        torch.ops.e2e_headroom.touch(ctx.saved_tensors[0], [item for item in gradients if item is not None])
        found: list[Any] = [None] * (ctx.lead + ctx.count)
        for place, known in zip(ctx.recorded.gradients, ctx.saved_tensors, strict=True):
            found[ctx.lead + place] = ctx.recorded.gradient(place, known)
        return tuple(found)


def _returned(outputs: tuple[Tensor, ...]) -> Any:
    return outputs[0] if len(outputs) == 1 else outputs


_TOUCH: list[lib.Library] = []


def _define_touch() -> None:
    if _TOUCH:
        return
    own = lib.Library("e2e_headroom", "DEF")
    own.define("touch(Tensor(a!) recorded, Tensor[] inputs) -> ()")
    own.impl("touch", lambda recorded, inputs: None, "CompositeExplicitAutograd")
    lib.register_fake("e2e_headroom::touch", lambda recorded, inputs: None, lib=own)
    _TOUCH.append(own)
