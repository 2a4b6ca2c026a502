"""Candidate side: a patch is run once, and what it did is kept to one copy of the model.

A patch may change the modules that it is given, the classes of modules, and names in the files where those classes
are written. The first is the copy's own. The others are shared by every arm: they are put back, and where the copy's
modules depend on them, the copy gets classes and functions of its own.
"""

from __future__ import annotations

import copy
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from e2e.errors import CandidateError
from e2e.patch import Patch, Standing, copy_sharing_weights, everywhere, over, sites_in
from e2e.protocols import Site

Space = type | types.ModuleType
"""Where names live that all models of a process share: a class, or a file of code."""
Step = Callable[[nn.Module], Sequence[Tensor]]
"""One step of a workload on a model: its outputs."""
Around = Callable[[Site, Callable[..., Any]], Callable[..., Any]]
"""What stands at a site instead of a function; for looking on in untimed steps."""
_CODE = (types.FunctionType, types.BuiltinFunctionType, type, staticmethod, classmethod, property)
_GONE = object()
_ENTRANCES = ("forward", "__call__")
"""Methods from which everything starts that a step runs."""


@dataclass(frozen=True)
class Replica:
    """The model as a patch leaves it, over the weights of the model as it is."""

    model: nn.Module
    fqns: tuple[str, ...]
    """Modules that the patch changed: themselves, their classes, or what their code calls by name."""

    def __call__(self, x: Tensor, fqn: str) -> Any:
        """What that module makes of one tensor."""
        return self.model.get_submodule(fqn)(x)

    def into(
        self,
        sites: Sequence[Site],
        around: Around | None = None,
        *,
        copied: Callable[[nn.Module], nn.Module] = copy_sharing_weights,
    ) -> nn.Module:
        """A module tree of its own; `around(site, forward)` is what its sites' forwards become."""
        model = copied(self.model)
        for site in sites if around is not None else ():
            module = model.get_submodule(site.fqn)
            module.forward = around(site, module.forward)  # type: ignore[misc]
        return model


def placed(
    model: nn.Module,
    kernels: Sequence[Standing],
    around: Around | None = None,
    *,
    copied: Callable[[nn.Module], nn.Module] = copy_sharing_weights,
) -> nn.Module:
    """A module tree of its own with the kernels: standing at their sites, or, of a patch, as the patch left it."""
    for kernel in kernels:
        if isinstance(kernel.call, Replica):  # alone: a patch goes everywhere
            return kernel.call.into(kernel.sites, around, copied=copied)
    tree = copied(model)
    for kernel in kernels:
        stands = everywhere(kernel.call) if around is None else _inside(around, kernel.call)
        Patch(kernel.op, sites_in(tree, list(kernel.sites)), stands)
    return tree


def _inside(around: Around, function: Callable[..., Any]) -> Callable[[Site], Callable[..., Any]]:
    return lambda site: around(site, function)


def replica_of(entry: Callable[..., Any], model: nn.Module, step: Step | None = None) -> Replica:
    """Run the patch, take what it changed, and put back everything that is not the replica's own.

    With `step`, prove that the replica does what the patched model did, and the model what it did before.

    Raises:
        CandidateError: `bind_failed`: it wants more than a model, or what it does cannot be kept to one copy.
        Exception: whatever the patch raises.
    """
    apply = _manner(entry)
    own = _twice(step, model)
    shared = Shared(model, apart_from=getattr(entry, "__module__", None))
    original = dict(model.named_modules())
    try:
        patched, changed, touched = apply(model, shared)
        real = _twice(step, patched)
    finally:
        elsewhere = shared.restore()
    private = Private(changed)
    for module in patched.modules():
        kind = private.kind(type(module))
        if kind is not type(module):
            module.__class__ = kind
    fqns = [
        fqn
        for fqn, module in patched.named_modules()
        if fqn in original and (fqn in touched or type(module) is not type(original[fqn]))
    ]
    replica = Replica(patched, tuple(fqns))
    if step is not None:
        _prove(step, model, own, "it changes what cannot be put back: afterwards the model as it was", elsewhere)
        _prove(step, replica.into(()), real, "what it changes cannot be kept to one copy: the copy alone", elsewhere)
    return replica


def _twice(step: Step | None, model: nn.Module) -> list[Sequence[Tensor]]:
    return [step(model), step(model)] if step is not None else []


def _prove(
    step: Step, model: nn.Module, known: Sequence[Sequence[Tensor]], what: str, elsewhere: Sequence[str]
) -> None:
    if not _same(*known) or _same(step(model), known[0]):  # a step that does not repeat itself proves nothing
        return
    more = f"; it also changed {', '.join(elsewhere[:5])}" if elsewhere else ""
    raise CandidateError(f"{what} gives other outputs{more}", code="bind_failed")


def _same(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    return len(found) == len(expected) and all(map(torch.equal, found, expected))


# ---- Running it

Changes = Mapping[Space, Mapping[str, Any]]
Applied = tuple[nn.Module, Changes, set[str]]
"""The patched model, what the patch changed in shared spaces, and which modules it changed themselves."""


def _manner(entry: Callable[..., Any]) -> Callable[[nn.Module, Shared], Applied]:
    """How it wants to be called: with the model, by that name or as its only argument, or before there is one."""
    taken = inspect.signature(entry).parameters
    named = [item for item in taken.values() if item.kind not in (item.VAR_POSITIONAL, item.VAR_KEYWORD)]
    required = [item.name for item in named if item.default is item.empty]
    if len(required) > 1 or (required and required != ["model"] and "model" in taken):
        wanted = ", ".join(required)
        raise CandidateError(
            f"the patch requires the arguments {wanted}; it is given the model, or nothing before the model is built",
            code="bind_failed",
        )
    is_named = "model" in taken and taken["model"].kind is not inspect.Parameter.POSITIONAL_ONLY
    if is_named:
        return lambda model, shared: _on_model(lambda copied: entry(model=copied), model, shared)
    if required:
        return lambda model, shared: _on_model(entry, model, shared)
    return lambda model, shared: _before_model(entry, model, shared)


def _on_model(entry: Callable[[nn.Module], Any], model: nn.Module, shared: Shared) -> Applied:
    copied = copy_sharing_weights(model)
    before = {fqn: _traits(module) for fqn, module in copied.named_modules()}
    returned = entry(copied)
    patched = returned if isinstance(returned, nn.Module) else copied
    touched = {
        fqn for fqn, module in patched.named_modules() if fqn in before and not _alike(_traits(module), before[fqn])
    }
    return patched, shared.changes(), touched


def _before_model(entry: Callable[[], Any], model: nn.Module, shared: Shared) -> Applied:
    entry()
    changed = shared.changes()
    return _built_again(model), changed, set()


def _built_again(model: nn.Module) -> nn.Module:
    """The model as the code stands now makes it, with the very tensors of the model that there is.

    Raises:
        CandidateError: `bind_failed`: it has no config to build it from, or now has other weights.
    """
    config = getattr(model, "config", None)
    if config is None:
        name = type(model).__name__
        raise CandidateError(
            f"the patch takes no model, and {name} has no config to build it from afterwards", code="bind_failed"
        )
    kind = getattr(sys.modules[type(model).__module__], type(model).__name__)
    with torch.device("meta"):
        built: nn.Module = kind(copy.deepcopy(config)).train(model.training)
    there, here = dict(model.named_modules()), dict(built.named_modules())
    if names := sorted({*_state_names(model)} ^ {*_state_names(built)}):
        raise CandidateError(
            f"the model built after the patch has other weights: {', '.join(names[:5])}", code="bind_failed"
        )
    for fqn, module in here.items():
        mine, theirs = module.__dict__, there[fqn].__dict__ if fqn in there else {}
        mine |= {name: dict(theirs[name]) for name in ("_parameters", "_buffers") if name in theirs}
        mine |= {name: value for name, value in theirs.items() if isinstance(value, Tensor)}
    return built


def _state_names(model: nn.Module) -> Iterator[str]:
    for tensors in (model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)):
        yield from (name for name, _ in tensors)


def _traits(module: nn.Module) -> dict[str, Any]:
    """What an instance holds: its attributes, tensors and hooks one by one, and the names of its children."""
    found: dict[str, Any] = {}
    for name, value in vars(module).items():
        entries = value if isinstance(value, dict) else {"": value}
        found |= {f"{name}.{key}": None if name == "_modules" else item for key, item in entries.items()}
    return found


def _alike(found: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    return found.keys() == known.keys() and all(_is(value, known[name]) for name, value in found.items())


def _is(value: Any, known: Any) -> bool:
    is_plain = isinstance(value, int | float | str) and type(value) is type(known)
    return value is known or (is_plain and bool(value == known))


# ---- What is shared


class Shared:
    """What every model of this process shares, as it was, so that it can be put back exactly.

    Of the classes of a model's modules, and of the files where those are written, that is every name; of other classes
    and files that are loaded, the code that was replaced.
    """

    def __init__(self, model: nn.Module, *, apart_from: str | None = None) -> None:
        """`apart_from`: the patch's own package, which may remember that it ran."""
        kinds: set[type] = {kind for module in model.modules() for kind in type(module).__mro__ if kind is not object}
        files = {sys.modules[kind.__module__] for kind in kinds if kind.__module__ in sys.modules}
        spaces: list[Space] = [*kinds, *files]
        self._own = {space: dict(vars(space)) for space in spaces}
        package = (apart_from or "").partition(".")[0]
        others = [space for space in _loaded(apart_from=package) if space not in self._own]
        self._elsewhere = {space: _code_in(space) for space in others}

    def changes(self) -> Changes:
        """What the model's own spaces hold now that they did not; `_GONE` where a name was taken away."""
        found = {space: _difference(vars(space), before) for space, before in self._own.items()}
        return {space: names for space, names in found.items() if names}

    def restore(self) -> list[str]:
        """Put everything back; what was changed elsewhere, by name."""
        for space, before in self._own.items():
            for name in _difference(vars(space), before):
                _put(space, name, before.get(name, _GONE))
        found = []
        for space, held in self._elsewhere.items():
            now = _code_in(space)
            for name in (name for name, value in held.items() if now.get(name, value) is not value):
                _put(space, name, held[name])
                found.append(f"{_name_of(space)}.{name}")
        return found


def _loaded(*, apart_from: str) -> Iterator[Space]:
    """Every file of Python code in this process, and the classes written in it."""
    for name, file in list(sys.modules.items()):
        if isinstance(file, types.ModuleType) and name.partition(".")[0] != apart_from:
            yield file
            yield from (item for item in list(vars(file).values()) if _is_kind(item) and item.__module__ == name)


def _is_kind(item: Any) -> bool:
    return issubclass(type(item), type)  # what an object says of its own class may have effects: some warn


def _code_in(space: Space) -> dict[str, Any]:
    return {name: item for name, item in vars(space).items() if issubclass(type(item), _CODE)}


def _name_of(space: Space) -> str:
    return space.__name__ if isinstance(space, types.ModuleType) else f"{space.__module__}.{space.__qualname__}"


def _difference(now: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    names = (*before, *(name for name in now if name not in before))
    return {name: now.get(name, _GONE) for name in names if now.get(name, _GONE) is not before.get(name, _GONE)}


def _put(space: Space, name: str, value: Any) -> None:
    if value is _GONE:
        delattr(space, name)
    else:
        setattr(space, name, value)


# ---- What the replica has of its own


class Private:
    """Classes and functions in which the changes hold, beside those that everybody else uses."""

    def __init__(self, changed: Changes) -> None:
        """After everything was put back."""
        self._changed = changed
        self._functions: dict[types.FunctionType, types.FunctionType] = {}
        self._kinds: dict[type, type] = {}
        self._reached: dict[int, set[str]] = {}
        """Names that mean something else now, in one file or through a function in it; by its globals."""
        self._globals: dict[int, dict[str, Any]] = {}
        for file, names in changed.items():
            if isinstance(file, types.ModuleType):
                self._open(vars(file), names)

    def _open(self, space: dict[str, Any], names: Mapping[str, Any]) -> None:
        reached = self._reached[id(space)] = set(names)
        while more := {name for name, item in space.items() if name not in reached and self._reaches(item)}:
            reached |= more
        own = self._globals[id(space)] = {**space, **names}
        del own["__name__"]  # else torch.compile looks names up in the module of that name, and guards what is there
        for name in reached:
            if own[name] is _GONE:
                del own[name]
            else:
                own[name] = self._grown(own[name])

    def kind(self, kind: type) -> type:
        """The class, or one derived from it that has what changed."""
        if kind not in self._kinds:
            own = self._attributes(kind)
            named = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
            self._kinds[kind] = type(kind)(kind.__name__, (kind,), {**own, **named}) if own else kind
        return self._kinds[kind]

    def _attributes(self, kind: type) -> dict[str, Any]:
        own: dict[str, Any] = {}
        for base in reversed(kind.__mro__):  # what a class defines itself hides what changed in its bases
            changed = self._changed.get(base, {})
            own = {name: item for name, item in own.items() if name not in vars(base)}
            own |= {name: item for name, item in changed.items() if item is not _GONE}
        methods = {name: own.get(name, inspect.getattr_static(kind, name, None)) for name in self._live(kind, own)}
        own |= {name: self._grown(method) for name, method in methods.items() if self._reaches(method)}
        return own

    def _live(self, kind: type, own: Mapping[str, Any]) -> set[str]:
        """Methods that a call of the module may run, by what their code names; building one runs others."""
        live: set[str] = set()
        waiting = list(_ENTRANCES)
        while waiting:
            name = waiting.pop()
            method = own.get(name, inspect.getattr_static(kind, name, None))
            if name not in live and isinstance(method, types.FunctionType):
                live.add(name)
                waiting += [item for function in _within(method) for item in _names(function.__code__)]
        return live

    def _reaches(self, item: Any) -> bool:
        """Whether its code, or that of a function it wraps, names something that changed."""
        return isinstance(item, types.FunctionType) and any(
            not self._reached.get(id(function.__globals__), set()).isdisjoint(_names(function.__code__))
            for function in _within(item)
        )

    def _grown(self, item: Any) -> Any:
        """The same code where the changes hold, under the same decorators."""
        if not self._reaches(item):
            return item
        if item not in self._functions:
            known = item.__closure__ or ()
            held = [_held(cell) for cell in known]
            cells = [
                types.CellType() if self._reaches(inner) else cell for cell, inner in zip(known, held, strict=True)
            ]
            space = self._globals.get(id(item.__globals__), item.__globals__)
            self._functions[item] = grown = over(item, space, closure=tuple(cells))
            for cell, inner in zip(cells, held, strict=True):
                if self._reaches(inner):
                    cell.cell_contents = self._grown(inner)
            vars(grown).update({name: self._grown(value) for name, value in vars(item).items()})
        return self._functions[item]


def _held(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # an empty cell says so only by raising
        return None


def _within(function: types.FunctionType) -> Iterator[types.FunctionType]:
    """The function, and those that it closes over."""
    seen: set[types.FunctionType] = set()
    waiting = [function]
    while waiting:
        item = waiting.pop()
        if item in seen:
            continue
        seen.add(item)
        yield item
        held = [_held(cell) for cell in item.__closure__ or ()]
        waiting += [inner for inner in held if isinstance(inner, types.FunctionType)]


def _names(code: types.CodeType) -> set[str]:
    """Globals and attributes that the code names, and code inside it."""
    inner = [item for item in code.co_consts if isinstance(item, types.CodeType)]
    return {*code.co_names, *(name for item in inner for name in _names(item))}
