"""Whether a block fits its op and its source: names of tensors and dimensions, functions and what they take."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import get_args

from e2e.formats._fields import Mistakes, Path, extras_of
from e2e.formats._functions import BOOLEAN, DOUBLE, FLOAT, INTEGER, LIST, MODULE_CLASS, TENSOR, TEXT, Function
from e2e.formats._source import Source
from e2e.schema.constraint import names_in
from e2e.schema.kernel import Manifest
from e2e.schema.workload import DType
from e2e.signatures import Signature
from e2e.yaml_lines import nearest, printable

_OUT = "out"
_NUMBERS = (FLOAT, DOUBLE, INTEGER, BOOLEAN)
_RAW_NUMBERS: Mapping[str, tuple[str, ...]] = {"float": (FLOAT,), "int": (INTEGER,), "bool": (BOOLEAN,)}
"""What a launch passes by value: a number of another size would be read out of the next one's bytes."""
_TAKES_LISTS = ("python", "tvm-ffi")
_OF_NO_CALL = ("module", "aten", "patch")
"""Bindings whose entries are not called with the op's arguments."""


@dataclass(frozen=True)
class Wanted:
    """A function that the block names, and what it is going to be called with."""

    field: Path
    name: str
    kinds: Sequence[str] | None
    """The arguments' kinds, as schemas have them; None where it is not known."""
    names: Sequence[str] = ()
    counts: frozenset[int] | None = None
    """Numbers of arguments that are possible; None is as many as there are kinds."""
    outputs: int | None = None
    """Tensors that it has to return; None where that is not known."""


def mistakes_of(manifest: Manifest, signature: Signature | None, source: Source | None) -> Mistakes:
    """Every mistake in a block whose fields fit one another."""
    call = _Call(manifest, signature) if signature is not None and signature.is_whole else None
    if signature is not None and signature.dims is not None and manifest.kind == "op":
        yield from _of_dimensions(manifest, signature.dims)
    if call is not None:
        yield from call.mistakes()
    if source is not None and source.binding in (manifest.binding, "python"):
        for wanted in _wanted(manifest, call):
            yield from _of_function(wanted, source, manifest)


# ---- dimensions


def _of_dimensions(manifest: Manifest, known: Sequence[str]) -> Mistakes:
    sizes = [name for name in known if name != "dtype"]
    for place, text in enumerate(manifest.constraints):
        names, texts = names_in(text)
        yield from _unknown(names, known, ("constraints", place), manifest.op)
        for dtype in (item for item in texts if item not in get_args(DType)):
            yield ("constraints", place), f"no dtype {printable(dtype)!r}; {nearest(dtype, get_args(DType))}"
    for place, launch in enumerate(manifest.launch):
        for field, items in (("grid", launch.grid), ("block", launch.block), ("shared_bytes", [launch.shared_bytes])):
            for item in items:
                yield from _unknown(names_in(item)[0], sizes, ("launch", place, field), manifest.op)
    extras = {"saves": manifest.saves, "workspace": manifest.workspace, "prepared": manifest.prepared}
    for field, listed in extras.items():
        for place, shape in ((place, shape) for place, item in enumerate(listed) for shape in item.values()):
            names = [name for size in shape.split(",")[:-1] for name in names_in(size.strip())[0]]
            yield from _unknown(names, sizes, (field, place), manifest.op)


def _unknown(names: Iterable[str], known: Sequence[str], field: Path, op: str) -> Mistakes:
    for name in names:
        if not any(fnmatchcase(name, pattern) for pattern in known):
            shown = [pattern.replace("[0-9]*", "0") for pattern in known]
            yield field, f"{op} has no dimension {printable(name)!r}; {nearest(name, shown)}"


# ---- the op's call


class _Call:
    """What an entry may ask for, and what it is called with."""

    def __init__(self, manifest: Manifest, signature: Signature) -> None:
        self.manifest, self.signature = manifest, signature
        self.kinds = {argument.name: argument.kind for argument in signature.arguments}
        self.tensors = [name for name, kind in self.kinds.items() if kind.startswith("Tensor")]
        self.scalars = [name for name, kind in self.kinds.items() if not kind.startswith("Tensor")]
        count = signature.outputs
        self.outputs = [_OUT] if count == 1 else [f"{_OUT}{number}" for number in range(count)]
        self.extras = dict(extras_of(manifest))
        self.handed = [*self.extras["saves"], *self.extras["workspace"]]

    @property
    def own_order(self) -> bool:
        """Whether `builders._adapt` makes the call, which knows the op's own arguments only."""
        manifest = self.manifest
        is_handed = manifest.binding == "raw" or (manifest.binding == "tvm-ffi" and manifest.outputs != "return")
        return not (is_handed and not manifest.ranks)

    @property
    def seen(self) -> list[str]:
        """The op's tensors as the entry sees them: what was prepared stands in the parameters' place."""
        parameters = self.signature.parameters
        if self.manifest.prepare is None or not self.extras["prepared"] or not parameters:
            return self.tensors
        start = self.tensors.index(parameters[0])
        end = start + len(parameters)
        return [*self.tensors[:start], *self.extras["prepared"], *self.tensors[end:]]

    @property
    def usual(self) -> list[str]:
        """What the entry is called with where `args` says nothing."""
        names = [*self.seen, *self.scalars]
        if self.own_order:
            return [*names, _OUT] if self.manifest.takes_outputs else names
        return [*names, *self.outputs, *self.handed]

    def mistakes(self) -> Mistakes:
        """Names that the op does not have, or that mean two things."""
        manifest = self.manifest
        for field, names in (("mutates", manifest.mutates), ("ranks", manifest.ranks)):
            for name in (name for name in names if name not in self.tensors):
                known = ", ".join(self.tensors)
                yield (field,), f"{manifest.op} has no tensor {printable(name)!r}; it has: {known}"
        yield from self._of_extras()
        yield from self._of_ranks()
        yield from self._of_parameters()
        if manifest.binding not in _TAKES_LISTS and any(kind.endswith("[]") for kind in self.kinds.values()):
            yield ("binding",), f"{manifest.op} hands over lists of tensors, which {manifest.binding} does not take"
        if manifest.binding not in _OF_NO_CALL:
            yield from self._of_arguments()

    def _of_extras(self) -> Mistakes:
        for field, names in self.extras.items():
            parameters = (self.signature.parameters or ()) if field == "prepared" else ()
            taken = {*self.kinds, *self.outputs, *(self.signature.dims or ())} - set(parameters)
            for place, name in enumerate(names):
                if name in taken:
                    yield (field, place), f"{printable(name)!r} is {self.manifest.op}'s own; take another name"

    def _of_ranks(self) -> Mistakes:
        for name, rank in self.manifest.ranks.items():
            sizes = self.signature.sizes.get(name, ("...",))
            if "..." not in sizes and rank > len(sizes):
                yield ("ranks", name), f"{name} has {len(sizes)} dimensions ({', '.join(sizes)}), not {rank}"

    def _of_parameters(self) -> Mistakes:
        if self.manifest.prepare is not None and self.signature.parameters == ():
            yield ("prepare",), f"a site of {self.manifest.op} has no parameters to prepare"
        if self.manifest.backward is not None and not self.signature.outputs:
            yield ("backward",), f"{self.manifest.op} works in place: nothing flows back through it"

    def _of_arguments(self) -> Mistakes:
        manifest = self.manifest
        if manifest.binding != "raw":
            field, names = ("args",), manifest.args
            yield from self._of_names(field, names)
            for name in self.outputs + self.handed if names is not None and not self.own_order else []:
                if names is not None and names.count(name) != 1:
                    yield field, f"must name `{name}` once: it is preallocated and passed in"
            return
        yield from self._of_names(("args",), manifest.args)
        usual = manifest.args or self.usual
        for place, launch in enumerate(manifest.launch):
            yield from self._of_names(("launch", place, "args"), launch.args)
        given = {name for launch in manifest.launch for name in launch.args or usual}
        for name in (name for name in (*self.outputs, *self.handed) if manifest.launch and name not in given):
            yield ("launch",), f"no launch is given `{name}`, which is preallocated and passed in"

    def _of_names(self, field: Path, names: Sequence[str] | None) -> Mistakes:
        known = [*self.seen, *self.scalars]
        if not self.own_order:
            known += [*self.outputs, *self.handed, *(name for name in self.signature.dims or () if name != "dtype")]
        elif self.manifest.takes_outputs:
            known.append(_OUT)
        for name in (name for name in names or () if name not in known):
            yield field, f"{self.manifest.op} has no {printable(name)!r} for it; {nearest(name, known)}"
        if self.manifest.binding == "raw":
            for name in names or self.usual:
                if self.kinds.get(name, "").startswith("str"):
                    yield field, f"`{name}` is text, which a raw kernel cannot take; leave it out of `args`"

    def of(self, names: Iterable[str]) -> list[str] | None:
        """Kinds of these arguments; None where a name is unknown."""
        own = dict.fromkeys((*self.seen, *self.outputs, *self.handed), "Tensor")
        sizes = dict.fromkeys(self.signature.dims or (), "int")
        known = {**sizes, **own, **self.kinds}
        found = [known.get(name) for name in names]
        return None if None in found else [kind for kind in found if kind is not None]


# ---- the source's functions


def _wanted(manifest: Manifest, call: _Call | None) -> Iterator[Wanted]:
    """Every function that the block names."""
    if manifest.binding == "raw":
        for place, launch in enumerate(manifest.launch):
            entry, field = launch.entry or manifest.entry, ("launch", place) if launch.entry else ("entry",)
            names = launch.args or manifest.args or (call.usual if call else [])
            yield from _entry(field, entry, call, names, None)
        return
    outputs = None
    if call is not None and manifest.binding not in _OF_NO_CALL:
        has_own = manifest.backward not in (None, "reference")
        returned = call.signature.outputs + (len(manifest.saves) if has_own else 0)
        is_free = manifest.takes_outputs or (has_own and not manifest.saves)
        outputs = None if is_free else returned
        names = manifest.args or call.usual
        if call.own_order and manifest.takes_outputs and _OUT not in names:
            names = [*names, _OUT]
        names = [item for name in names for item in (call.outputs if name == _OUT else [name])]
        yield from _entry(("entry",), manifest.entry, call, names, outputs)
    else:
        yield from _entry(("entry",), manifest.entry, None, (), None)
    yield from _beside(manifest, call)


def _entry(
    field: Path, entry: str | Mapping[DType, str], call: _Call | None, names: Sequence[str], outputs: int | None
) -> Iterator[Wanted]:
    kinds = call.of(names) if call is not None else None
    for name in dict.fromkeys([entry] if isinstance(entry, str) else entry.values()):
        yield Wanted(field, name, kinds, names, outputs=outputs)


def _beside(manifest: Manifest, call: _Call | None) -> Iterator[Wanted]:
    """The functions of `backward` and `prepare`."""
    if manifest.backward not in (None, "reference"):
        counts = None
        if call is not None:
            needed = sum(kind == "Tensor" for kind in call.kinds.values())
            most = len(call.tensors)
            per_tensor = 2 if manifest.takes_outputs else 1
            beside = call.signature.outputs + len(manifest.saves)
            is_free = not manifest.saves and not manifest.takes_outputs
            counts = None if is_free else frozenset(beside + per_tensor * n for n in range(needed, most + 1))
        yield Wanted(("backward",), str(manifest.backward), None, counts=counts)
    if manifest.prepare is not None:
        kinds = outputs = None
        if call is not None and call.signature.parameters:
            handed = manifest.prepared if manifest.takes_outputs else []
            kinds = ["Tensor"] * (len(call.signature.parameters) + len(handed))
            outputs = None if manifest.takes_outputs else len(manifest.prepared or call.signature.parameters)
        yield Wanted(("prepare",), manifest.prepare, kinds, outputs=outputs)


def _of_function(wanted: Wanted, source: Source, manifest: Manifest) -> Mistakes:
    found = source.known.get(wanted.name)
    if found is None:
        if source.is_whole:
            known = nearest(wanted.name, source.functions) if source.functions else "it has none"
            yield wanted.field, f"no function {printable(wanted.name)!r} in this file; {known}"
        return
    shown = f"{wanted.name} (line {found.line})"
    if manifest.binding == "module":
        if found.what != MODULE_CLASS and (found.names or found.what not in ("function", "class")):
            yield wanted.field, f"{shown} is no class derived from nn.Module"
    elif found.what not in ("function", "class"):
        hint = "say `kind: module`" if found.what == MODULE_CLASS else "wanted is a function that is called by position"
        yield wanted.field, f"{shown} is a {found.what}; {hint}"
    elif manifest.kind == "patch":
        yield from _of_patch(wanted, found)
    else:
        yield from _of_parameters(wanted, found, manifest)


def _of_patch(wanted: Wanted, found: Function) -> Mistakes:
    required = [name for name in found.names[: found.least] if name != "model"]
    if len(required) > (0 if "model" in found.names else 1):
        takes = ", ".join(found.names)
        yield wanted.field, f"{wanted.name} takes {takes}, and is called with the model alone, or with nothing"


def _of_parameters(wanted: Wanted, found: Function, manifest: Manifest) -> Mistakes:
    counts = wanted.counts or (frozenset({len(wanted.kinds)}) if wanted.kinds is not None else None)
    if counts is not None and not any(map(found.fits, counts)):
        given = " or ".join(map(str, sorted(counts)))
        handed = f" ({', '.join(wanted.names)})" if wanted.names else ""
        yield wanted.field, f"{wanted.name} takes {_taken(found)}, and is called with {given}{handed}"
        return
    if wanted.kinds is not None and found.kinds:
        for place, (kind, given) in enumerate(zip(found.kinds, wanted.kinds, strict=True)):
            if kind is not None and kind not in _passes(given, manifest.binding):
                name = wanted.names[place] if wanted.names else "a tensor"
                parameter = f"parameter {place + 1} of {wanted.name}, {found.names[place]}, is a {kind}"
                yield wanted.field, f"{parameter}, and gets {name} ({given}); state `args:` in its order"
                return
    if wanted.outputs is not None and found.returned is not None and wanted.outputs not in found.returned:
        what = "nothing" if found.returned == {0} else f"{' or '.join(map(str, sorted(found.returned)))} values"
        saved = f" ({len(manifest.saves)} of them listed in `saves`)" if manifest.saves else ""
        yield wanted.field, f"{wanted.name} returns {what}; expected are {wanted.outputs}{saved}"


def _taken(found: Function) -> str:
    names = f" ({', '.join(found.names)})" if found.names else ""
    if found.most == found.least:
        return f"{found.least} argument{'' if found.least == 1 else 's'}{names}"
    return f"{found.least} or more arguments{names}" if found.most > 1e9 else f"{found.least} to {found.most}{names}"


def _passes(kind: str, binding: str) -> tuple[str, ...]:
    """Kinds of parameters that may stand for an argument."""
    if re.fullmatch(r"Tensor(\(\w!\))?\??", kind):
        return (TENSOR,)
    if kind.endswith("]"):
        return (LIST, TENSOR)
    if kind.startswith("str"):
        return (TEXT, TENSOR)  # `const char*` is one
    return _RAW_NUMBERS.get(kind.removesuffix("?"), _NUMBERS) if binding == "raw" else _NUMBERS
