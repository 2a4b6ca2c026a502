"""Classes of torch modules: one instance per site, over the site's own parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from e2e.builders._calls import bind_failed, entry_for
from e2e.builders._import import attribute, candidate_module, parsed
from e2e.protocols import BuildTarget, Built, Op, OpCall
from e2e.schema.kernel import Kernel

_MOST_INSTANCES = 4096
"""More sites than any model has; beyond that the oldest go, so that weights made anew do not pile up."""
_SPELLINGS = {
    "eps": ("epsilon", "variance_epsilon", "norm_eps", "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"),
    "hidden": ("hidden_size", "hidden_dim", "dim", "normalized_shape", "num_features", "features", "d_model"),
}
"""What constructors and layers call an op's scalars and dimensions."""
_OF_MATRIX = {"linear": ("out_features", "in_features"), "embedding": ("num_embeddings", "embedding_dim")}
"""What the two sizes of these ops' weight are called."""


class ModuleBuilder:
    """Takes a class derived from `torch.nn.Module`.

    Its `forward` receives as many of the op's arguments as it requires, from the first on. The remaining tensors are
    the site's state: the instance holds the very same objects as its parameters, so nothing is copied, an optimizer's
    step is seen, and gradients arrive where they belong. Its constructor's arguments are, by name, the op's scalars
    and dimensions, else what `get_init_inputs()` beside the class says.

    A class without a constructor of its own is a layer in the manner of Hugging Face `kernels`: state and scalars are
    its attributes.
    """

    def build(self, kernel: Kernel, target: BuildTarget) -> Built:
        """See `parsed`: nothing is compiled."""
        return parsed(kernel, target, builder="module")

    def bind(self, built: Built, op: Op, dtype: str) -> Callable[..., Any]:
        """The op's call, on the instance that belongs to its state.

        Raises:
            CandidateError: `bind_failed`: not a module's class; or, from the call, a parameter or an argument of the
                constructor without a counterpart in the op.
        """
        from torch import nn

        entry = entry_for(built, dtype)
        source = candidate_module(built)
        kind = attribute(source, entry, built)
        if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
            raise bind_failed(built, f"entry: {entry!r} is not a class derived from torch.nn.Module")
        return _bound(_Maker(kind, source, op, built))


class _Maker:
    """Makes instances of one class for one op's calls."""

    def __init__(self, kind: Any, source: ModuleType, op: Op, built: Built) -> None:
        self.kind, self.source, self.op, self.built = kind, source, op, built
        self.names = [*op.tensor_names, *op.scalar_names]
        self.given = _required(kind)
        self.state_places = range(self.given, len(op.tensor_names))
        self.scalar_places = range(len(op.tensor_names), len(self.names))
        if self.given > len(self.names):
            names = ", ".join(self.names)
            raise self._problem(f"forward requires {self.given} arguments; {op.name} has {len(self.names)}: {names}")

    def make(self, args: tuple[Any, ...]) -> tuple[Any, list[tuple[dict[str, Any], str, int]]]:
        """An instance for a call, and where it keeps which of the call's arguments.

        Raises:
            CandidateError: `bind_failed`.
        """
        import torch
        from torch import nn

        state = {self.names[place]: args[place] for place in self.state_places}
        is_layer = self.kind.__init__ is nn.Module.__init__
        # on the host, with the process's random numbers left alone: initial values are replaced anyway
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            instance = self.kind() if is_layer else self.kind(**self._constructor(args, state))
        instance = instance.to(device=args[0].device, dtype=args[0].dtype if args[0].is_floating_point() else None)
        instance.eval()
        if is_layer:
            for name, value in self._scalars(args).items():
                for spelling in (name, *_SPELLINGS.get(name, ())):
                    setattr(instance, spelling, value)
            return instance, [(instance._parameters, self.names[place], place) for place in self.state_places]
        return instance, list(self._places(instance, state))

    def _constructor(self, args: tuple[Any, ...], state: dict[str, Any]) -> dict[str, Any]:
        known = self._known(args, state)
        takes = _parameters(self.kind.__init__)
        stated = self._stated()
        chosen: dict[str, Any] = {}
        for place, item in enumerate(takes):
            if item.name in known:
                chosen[item.name] = known[item.name]
            elif place < len(stated):
                chosen[item.name] = stated[place]
            elif item.default is item.empty:
                names = ", ".join(sorted(known))
                raise self._problem(
                    f"the constructor requires {item.name!r}, which is none of {self.op.name}'s ({names}); "
                    "give it a default, or let get_init_inputs() return it"
                )
        return chosen

    def _known(self, args: tuple[Any, ...], state: dict[str, Any]) -> dict[str, Any]:
        """Values that a constructor may ask for by name."""
        values = dict(self._scalars(args))
        count = len(self.op.tensor_names)
        sizes = self.op.dims(OpCall(args[:count], args[count:]))
        values |= {name: size for name, size in sizes.items() if isinstance(size, int)}
        weight = state.get("weight")
        if weight is not None and self.op.name in _OF_MATRIX:
            values |= dict(zip(_OF_MATRIX[self.op.name], weight.shape, strict=True))
        if "bias" in state:
            values["bias"] = state["bias"] is not None
        for name, spellings in _SPELLINGS.items():
            if name in values:
                values |= dict.fromkeys(spellings, values[name])
        return values

    def _scalars(self, args: tuple[Any, ...]) -> dict[str, Any]:
        return {self.names[place]: args[place] for place in self.scalar_places}

    def _stated(self) -> list[Any]:
        get = getattr(self.source, "get_init_inputs", None)
        return list(get()) if callable(get) else []

    def _places(self, instance: Any, state: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str, int]]:
        """Every tensor of the site's state has one place, and every parameter gets one of them."""
        slots = dict(_slots(instance))
        free = set(slots)
        for name, tensor in state.items():
            if tensor is None:
                continue
            fits = [full for full in slots if full in free and slots[full][0][slots[full][1]].shape == tensor.shape]
            named = [full for full in fits if full == name] or [full for full in fits if full.split(".")[-1] == name]
            if len(found := named or fits) != 1:
                shape = tuple(tensor.shape)
                why = f"{', '.join(found)} all have that shape" if found else f"it has {_described(slots)}"
                raise self._problem(f"no parameter for {self.op.name}'s {name!r} {shape}: {why}")
            free.discard(found[0])
            yield *slots[found[0]], self.names.index(name)
        parameters = {full for full, _ in instance.named_parameters()}
        if left := sorted(free & parameters):
            raise self._problem(f"parameter {left[0]!r} has no counterpart in {self.op.name}: it would stay random")

    def _problem(self, reason: str) -> Exception:
        return bind_failed(self.built, f"{self.kind.__name__}: {reason}")


def _bound(maker: _Maker) -> Callable[..., Any]:
    find, given = _finder(maker), maker.given
    if not maker.state_places:
        return lambda *args: find(args)(*args[:given])
    recent: dict[tuple[int, ...], tuple[Any, tuple[Any, ...]]] = {}
    """By identity, with the objects kept, so that no other one can have it."""

    # Every eager call of the candidate passes here: a site that was seen before costs one look-up.
    def call(*args: Any) -> Any:
        key = tuple(map(id, args[given:]))
        known = recent.get(key)
        if known is None:
            instance = find(args)
            if len(recent) >= _MOST_INSTANCES:
                recent.clear()
            for other in [key for key, (same, _) in recent.items() if same is instance]:
                del recent[other]  # it holds these tensors now
            known = recent[key] = (instance, args[given:])
        return known[0](*args[:given])

    return call


def _finder(maker: _Maker) -> Callable[[tuple[Any, ...]], Any]:
    """The instance for a call, holding the call's own tensors."""
    instances: dict[Any, tuple[Any, list[tuple[dict[str, Any], str, int]]]] = {}
    state_places, scalar_places = maker.state_places, maker.scalar_places

    def find(args: tuple[Any, ...]) -> Any:
        # By address, since arms see the same weight through other objects; an instance keeps its weights alive, so
        # that no other tensor can have the address.
        key = (
            args[0].shape[-1:],
            *[args[place] is not None and (args[place].data_ptr(), args[place].shape) for place in state_places],
            *[args[place] for place in scalar_places],
        )
        known = instances.get(key)
        if known is None:
            if len(instances) >= _MOST_INSTANCES:
                del instances[next(iter(instances))]
            known = instances[key] = maker.make(args)
        instance, places = known
        for owner, name, place in places:
            owner[name] = args[place]
        return instance

    return find


def _slots(instance: Any) -> Iterator[tuple[str, tuple[dict[str, Any], str]]]:
    """Where the module and its children keep parameters and buffers, by full name."""
    for prefix, child in instance.named_modules():
        for owner in (child._parameters, child._buffers):
            for name, tensor in owner.items():
                if tensor is not None:
                    yield f"{prefix}.{name}".removeprefix("."), (owner, name)


def _described(slots: dict[str, tuple[dict[str, Any], str]]) -> str:
    return ", ".join(f"{full} {tuple(owner[name].shape)}" for full, (owner, name) in slots.items()) or "none"


def _required(kind: Any) -> int:
    """How many arguments its forward cannot do without; at least the op's first tensor."""
    return max(1, sum(item.default is item.empty for item in _parameters(kind.forward)))


def _parameters(method: Any) -> list[inspect.Parameter]:
    """What it takes by name, after `self`."""
    taken = list(inspect.signature(method).parameters.values())[1:]
    return [item for item in taken if item.kind not in (item.VAR_POSITIONAL, item.VAR_KEYWORD)]


PLUGIN = ModuleBuilder()
