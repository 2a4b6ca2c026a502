"""Worker side: each arm's own module tree, over shared weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal

from torch import Tensor, nn

from e2e.arm_names import WITH_KERNELS, ArmName, alternative_for, places_of
from e2e.binding import registered, sparing
from e2e.bound import Bound, Part
from e2e.headroom import recorded, replay
from e2e.patch import Patch, Standing, copy_sharing_weights, everywhere, sites_in
from e2e.protocols import Op, Site, written_by
from e2e.schema.words import Mode, Role
from e2e.schema.workload import TrainSpec
from e2e.scout import Around, Replica, placed
from e2e.trainer import State, Trainer

OPERATOR = "aten:"
"""Start of the name of an op that is one of torch's own operators."""


class Trees:
    """Module trees of one worker's arms, and what stands at the ops' sites in each."""

    def __init__(self, session: Any, parts: Sequence[Part]) -> None:
        """No two parts have a site in common."""
        self.parts = parts
        self._session = session
        self._train: TrainSpec | None = getattr(session, "train", None)
        self._states: dict[int, State] = {}
        """By identity of the model that they started from: the session's, and the one that a patch made of it."""
        self._registered: dict[str, tuple[Callable[..., Any], Any]] = {}
        """By hash of the kernel: what stands at its sites, and the operator that a graph of it holds."""
        self._captured_calls: Counter[str] = Counter()
        """By site."""

    def grown(self, name: ArmName, replayed: Callable[[], tuple[Tensor, ...]]) -> nn.Module:
        """The arm's own module tree; `replayed` gives the batch whose calls a headroom arm replays."""
        if name.role in WITH_KERNELS:
            return self._with_candidate(name)
        model = self._copied(self._session.model)
        if name.role is Role.HEADROOM:
            self._replay(model, name.mode, replayed())
        elif name.role is not Role.BASELINE or name.alternative is not None:
            self._swap(name, model)
        return model

    def grown_with(self, name: ArmName, around: Around) -> nn.Module:
        """An eager arm's tree once more, with `around(site, function)` at every site in place of what stands there.

        For inference only.
        """
        if name.role in WITH_KERNELS:
            return self._with_candidate(name, around)
        model = self._copied(self._session.model)
        for part in self.parts:
            function = self._alternative(part, name.alternative, name.mode)
            Patch(part.op, sites_in(model, list(part.sites)), _inside(around, part.op, function))
        return model

    def _learns(self, op: Op) -> bool:
        """Whether a kernel needs gradients of its own: not in an operator's place, whose own stay, nor where the step
        has done its backward already.
        """
        return self._train is not None and not (op.name.startswith(OPERATOR) or written_by(op))

    def _copied(self, model: nn.Module) -> nn.Module:
        """A module tree of its own: over the model's weights, or in training over those that are trained by turns."""
        return copy_sharing_weights(model if self._train is None else self._state(model).model)

    def _state(self, source: nn.Module) -> State:
        assert self._train is not None
        if id(source) not in self._states:
            self._states[id(source)] = State.of(source, self._train)
        return self._states[id(source)]

    def trainer(self, name: ArmName, model: nn.Module) -> Trainer | None:
        """Of the arm whose tree that is; None in inference."""
        if self._train is None:
            return None
        source = self._source(name)
        return Trainer(model, source, self._train, self._state(source).optimizer)

    def _source(self, name: ArmName) -> nn.Module:
        """The model that the arm's tree is a copy of."""
        standing = self._standing(name) if name.role in WITH_KERNELS else []
        calls = [part.candidate.kernel.call for part in standing if part.candidate is not None]
        source: nn.Module = next((call.model for call in calls if isinstance(call, Replica)), self._session.model)
        return source

    def _swap(self, name: ArmName, model: nn.Module) -> None:
        """The alternatives that the name says, and every other op's own code in the same place.

        Raises:
            RuntimeError: no op has such an alternative.
        """
        alternative = None if name.role is Role.PLANTED else name.alternative
        found = [self._alternative(part, alternative, name.mode) for part in self.parts]
        if alternative is not None and not any(found):
            raise RuntimeError(f"no op here has an alternative {alternative}")
        for part, function in zip(self.parts, found, strict=True):
            if function is not None or alternative is None or name.role is Role.SHAM:
                Patch(part.op, sites_in(model, list(part.sites)), everywhere(function))

    def _alternative(self, part: Part, name: str | None, mode: Mode) -> Callable[..., Any] | None:
        """What stands at the part's sites in an arm of that alternative; None for their own code."""
        own = None if name is None else alternative_for((*part.adopted, *part.op.alternatives), name)
        if own is None:
            return None
        return self._function(part.op, part.adopted[own], mode) if own in part.adopted else part.op.alternatives[own]

    def _standing(self, name: ArmName) -> list[Part]:
        """Those whose kernels stand in the arm."""
        places = places_of(name)
        return [part for place, part in enumerate(self.parts) if places is None or place in places]

    def _with_candidate(self, name: ArmName, around: Around | None = None) -> nn.Module:
        self.forget_captured()
        kernels = [
            Standing(part.op, part.usable, self._standing_there(part, part.candidate.kernel, name.mode))
            for part in self._standing(name)
            if part.candidate is not None
        ]
        if not kernels:
            raise RuntimeError("no candidate in this worker")
        around = around or (self._counted if name.mode is Mode.CUDA_GRAPH else None)
        return placed(self._session.model, kernels, around, copied=self._copied)

    def traces(self, name: ArmName, model: nn.Module) -> Callable[[Any], Counter[int]]:
        """Counts kernels in a graph of that tree: calls of their ops, or a patch's modules that left nodes there."""
        for number, part in enumerate(self.parts):
            if part.candidate is not None and isinstance(part.candidate.kernel.call, Replica):
                changed = part.usable if name.role is Role.CANDIDATE else []
                keys = {str(id(site.module)) for site in sites_in(model, changed)}
                return _nodes_in(keys, number)
        watched = self.watched(1)
        return lambda graph: Counter(watched[node.target] for node in graph.nodes if node.target in watched)

    def _standing_there(self, part: Part, kernel: Bound, mode: Mode) -> Callable[..., Any]:
        """The kernel as it stands at the part's sites; what no compiler meets is counted, where its graphs are."""
        function = self._function(part.op, kernel, mode)
        is_outside = mode.is_compiled and written_by(part.op)
        return self._counted(part.usable[0], function) if is_outside and part.usable else function

    def watched(self, place: Literal[0, 1]) -> dict[Any, int]:
        """What stands for the kernels under a compiler (0), or tells them in its graphs (1), and their parts' numbers.

        Only kernels that are registered already.
        """
        kernels = [part.candidate.kernel.sha256 if part.candidate is not None else "" for part in self.parts]
        known = ((number, self._registered.get(sha256)) for number, sha256 in enumerate(kernels))
        return {found[place]: number for number, found in known if found is not None}

    def _function(self, op: Op, kernel: Bound, mode: Mode) -> Callable[..., Any]:
        """The kernel itself, or under a compiler as an op that the compiler cannot look into; a patch is no op."""
        if isinstance(kernel.call, Replica):
            return kernel.call
        if not mode.is_compiled or written_by(op):
            return kernel.in_training(op) if self._learns(op) else kernel.call
        if kernel.sha256 not in self._registered:
            self._registered[kernel.sha256] = self._registration(op, kernel)
        return self._registered[kernel.sha256][0]

    def _registration(self, op: Op, kernel: Bound) -> tuple[Callable[..., Any], Any]:
        """What stands at the sites, and the operator by which a graph shows that it does."""
        device = self._session.device.partition(":")[0]
        if self._learns(op):
            return kernel.in_compiled_training(op, device)
        found = registered(op, sparing(kernel.call, kernel.writes), sha256=kernel.sha256, device=device)
        return found, found

    def _counted(self, site: Site, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """The kernel, counting its calls: those of the capture are those of every replay, which makes none."""

        def call(*args: Any, **named: Any) -> Any:
            self._captured_calls[site.fqn] += 1
            return kernel(*args, **named)

        return call

    def _replay(self, model: nn.Module, mode: Mode, batch: tuple[Tensor, ...]) -> None:
        """Record every call's true outputs for one batch, then return them in that tree instead of computing them.

        Nothing comes out of an optimizer: it is left out, and its state stays where it is.
        """
        inside = [part for part in self.parts if not written_by(part.op)]
        occurrences = [(part.op, sites_in(self._session.model, part.usable)) for part in inside]
        self._session.reset()
        calls = recorded(occurrences, self._session.program(self._session.model), batch, self._train) if inside else {}

        def replayed(site: Site) -> Callable[..., Any]:
            return replay(site, calls.get(site.fqn, []), is_compiled=mode.is_compiled)

        for part in self.parts:
            stands = everywhere(_nothing) if written_by(part.op) else replayed
            Patch(part.op, sites_in(model, part.usable), stands)

    def forget_captured(self) -> None:
        """Before a capture: what counts are the calls in it."""
        self._captured_calls.clear()

    def captured(self) -> list[int]:
        """Calls of each kernel in the graph that was captured last, or outside of what is compiled."""
        return [sum(self._captured_calls[site.fqn] for site in part.usable) for part in self.parts]

    @property
    def kernels(self) -> list[Bound]:
        """All that may stand in one of the trees."""
        bound = [kernel for part in self.parts for kernel in part.adopted.values()]
        return bound + [part.candidate.kernel for part in self.parts if part.candidate is not None]

    def kernels_of(self, name: ArmName) -> list[Bound]:
        if name.role in WITH_KERNELS:
            return [part.candidate.kernel for part in self._standing(name) if part.candidate is not None]
        return [kernel for part in self.parts if (kernel := part.adopted.get(str(name.alternative))) is not None]


def _inside(around: Around, op: Op, function: Callable[..., Any] | None) -> Callable[[Site], Callable[..., Any]]:
    """What stands at a site: that function, or the site's own code."""
    return lambda site: around(site, function or op.own(site))


def _nothing(*call: Any) -> None:
    """In the place of what has no outputs."""


def _nodes_in(modules: set[str], number: int) -> Callable[[Any], Counter[int]]:
    return lambda graph: Counter({number: len(modules & _modules_of(graph))})


def _modules_of(graph: Any) -> set[str]:
    """Modules whose code made a graph's nodes, as Dynamo names them: by identity."""
    return {key for node in graph.nodes for key in node.meta.get("nn_module_stack") or ()}
