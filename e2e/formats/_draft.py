"""A manifest in the making: the block's fields, what the source says where they are silent, all mistakes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from pydantic import ValidationError

from e2e import registry
from e2e.errors import UsageError
from e2e.formats._names import check_op, check_patched, shown_spec
from e2e.formats._source import Source, pick_entry, same_name, scan
from e2e.schema.kernel import LAYOUTS, OTHER_OPS, Manifest
from e2e.signatures import signature_of
from e2e.yaml_lines import explain, printable

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_NAMES = ("op", "entry", "binding")
"""Fields that the source can fill in."""
_FORWARD_ONLY = ("raw", "module", "aten", "patch")
"""Bindings that know one entry; modules and ATen's operators bring their gradients by themselves."""
_PREPARING = ("tvm-ffi", "torch", "python")
"""Bindings with functions beside the entry that run once."""
_HANDED_MEMORY = ("tvm-ffi", "raw")
"""Bindings whose entries allocate nothing."""
_OF_CALLS = {"args", "prepare", "layout", "outputs", "ranks", "mutates", "constraints", "launch", "flags"}
"""Fields about what an entry is called with."""
_BORROWED = (None, "reference")
"""Backwards that need no function in the source."""


@dataclass(frozen=True)
class Block:
    """A manifest block as it stands in the file."""

    line: int
    """Line of its opening."""
    data: Mapping[str, Any]
    lines: Mapping[tuple[str | int, ...], int]


class Draft:
    """Collects mistakes while it fills in, so that the author sees all of them at once."""

    def __init__(self, spec: str, text: str, block: Block | None, *, op: str | None) -> None:
        self.shown, self.block = shown_spec(spec), block
        self.path = PurePath(spec)
        self.data: dict[str, Any] = dict(block.data) if block else {}
        self.mistakes: list[tuple[int, str]] = []
        source = self._scan(text)
        if self.data.get("kind") == "module":
            self._fill_module()
        if self.data.get("kind") == "patch":
            self._fill_patch(op)
        self._fill_op(op)
        if source:
            self._fill_from(source)

    def finish(self) -> Manifest:
        """The manifest.

        Raises:
            UsageError: every mistake, in file order.
        """
        manifest = None
        try:
            manifest = Manifest.model_validate(self.data)
        except ValidationError as error:
            lines: Mapping[tuple[str | int, ...], int] = self.block.lines if self.block else {(): 1}
            for message in explain(error, lines, self.shown, Manifest):
                line = int(message.removeprefix(f"{self.shown}:").partition(":")[0])
                self.mistakes.append((line, message))
        if manifest:
            self._cross_check(manifest)
        if manifest is None or self.mistakes:
            ordered = sorted(self.mistakes, key=lambda mistake: mistake[0])
            raise UsageError("\n".join(message for _, message in ordered))
        return manifest

    def _scan(self, text: str) -> Source | None:
        try:
            return scan(text, self.path.suffix)
        except UsageError as error:
            number, _, reason = error.message.removeprefix("line ").partition(": ")
            if "entry" not in self.data:
                raise UsageError(f"{self.shown}:{number}: {reason}") from error
            self.data.setdefault("binding", "python")
            return None  # the builder reports it, as the candidate's fault

    def _fill_module(self) -> None:
        """A module is how an op is bound: `kind` says so in one word."""
        if self.data.setdefault("binding", "module") != "module":
            self._mistake("kind", f"module, where `binding` says {printable(str(self.data['binding']))!r}")
        self.data["kind"] = "op"

    def _fill_patch(self, asked: str | None) -> None:
        """A patch replaces no one op, is Python, and is handed a model, not calls."""
        try:
            check_patched(asked)
        except UsageError as error:
            self._mistake("kind", error.message)
        self.data.setdefault("op", "patch")
        self.data.setdefault("binding", "patch")
        for field in sorted(_OF_CALLS & set(self.data)):
            self._mistake(field, "not for `kind: patch`, whose entry is handed a model, and no op's arguments")

    def _fill_op(self, asked: str | None) -> None:
        stated = self.data.get("op")
        if stated is None and "op" not in self.data:
            self.data["op"] = asked or same_name(self.path.stem, registry.names("ops"))
            if self.data["op"] is None:
                known = ", ".join(registry.names("ops"))
                self._mistake("op", f"not stated, and the file's name is no op; pass --op NAME (known: {known})")
            else:
                self.data["op"] = _in_layout(self.data["op"], self.data.get("layout"))
        elif isinstance(stated, str):
            self.data["op"] = _in_layout(stated, self.data.get("layout"))
            if asked not in (None, stated, self.data["op"]):
                self._mistake("op", f"the file says {printable(stated)!r}, where {printable(str(asked))!r} is wanted")
            try:
                check_op(stated)
            except UsageError as error:
                self._mistake("op", error.message)

    def _fill_from(self, source: Source) -> None:
        if source.unsupported:
            self._mistake("binding", source.unsupported)
        self.data.setdefault("binding", source.binding)
        if self.data.get("device") is None and source.binding != "python":
            self.data["device"] = "cuda" if source.needs_cuda else "cpu"
        if "entry" not in self.data and (launched := _launched(self.data.get("launch"))) is not None:
            self.data["entry"] = launched
        if "entry" not in self.data and not source.unsupported:
            op = self.data.get("op")
            try:
                self.data["entry"] = pick_entry(source, op if isinstance(op, str) else None)
            except UsageError as error:
                self._mistake("entry", error.message)
        entry = self.data.get("entry")
        if isinstance(entry, dict) and entry and "dtypes" not in self.data:
            self.data["dtypes"] = list(entry)

    def _cross_check(self, manifest: Manifest) -> None:
        suffix, native = self.path.suffix, self.path.suffix != ".py"
        if manifest.is_python == native:
            known = "tvm-ffi, raw or torch" if native else "python or module"
            self._mistake("binding", f"a {suffix} file is bound by {known}, not {manifest.binding}")
        elif manifest.binding == "raw" and suffix != ".cu":
            self._mistake("binding", f"raw needs a .cu file, not {suffix}")
        elif manifest.binding == "raw" and not manifest.launch:
            self._mistake("launch", "missing; raw needs one, such as `launch: {grid: [rows], block: [256]}`")
        patches = [manifest.kind == "patch", manifest.op == "patch", manifest.binding == "patch"]
        if any(patches) and not all(patches):
            self._mistake("kind", "a patch is `kind: patch` alone: leave `op` and `binding` out")
        if manifest.launch and manifest.binding != "raw":
            self._mistake("launch", f"only for `binding: raw`; {manifest.binding} launches by itself")
        own = {"saves": manifest.saves, "backward": manifest.backward not in _BORROWED}
        for field in (field for field, stated in own.items() if stated and manifest.binding in _FORWARD_ONLY):
            self._mistake(field, f"not for `binding: {manifest.binding}`, which hands over one entry's arguments only")
        if manifest.workspace and manifest.binding not in _HANDED_MEMORY:
            self._mistake("workspace", f"not for `binding: {manifest.binding}`, which allocates by itself")
        if manifest.prepare is not None and manifest.binding not in _PREPARING:
            self._mistake("prepare", f"not for `binding: {manifest.binding}`; for {', '.join(_PREPARING)}")
        elif manifest.prepare is not None and not manifest.prepared and manifest.takes_outputs:
            self._mistake("prepared", 'missing: what `prepare` fills, such as `[{packed: "outputs, inputs, dtype"}]`')
        if manifest.prepared and manifest.prepare is None:
            self._mistake("prepared", "only beside `prepare`")
        if manifest.backward is not None and manifest.op.startswith("aten:"):
            self._mistake("backward", "not for an operator of ATen: in training the operator's own stays in its place")
        if suffix == ".cu" and manifest.device == "cpu":
            self._mistake("device", "a .cu file runs on cuda; name a C++ source .cpp")
        if not manifest.dtypes:
            self._mistake("dtypes", "must name at least one")
        layouts = LAYOUTS.get(manifest.op.partition(":")[0], ())
        if manifest.layout is not None and manifest.layout not in layouts:
            known = f"{manifest.op} has {' and '.join(layouts)}" if layouts else f"{manifest.op} has one only"
            self._mistake("layout", f"no {printable(manifest.layout)!r}: {known}")
        self._check_tensors(manifest)
        self._check_entries(manifest)

    def _check_tensors(self, manifest: Manifest) -> None:
        """Names of the op's tensors, as far as its file states them."""
        if ":" in manifest.op or manifest.op not in registry.names("ops"):
            return
        signature = signature_of(manifest.op)
        known = [item.name for item in signature.arguments if item.kind.startswith("Tensor")] if signature else []
        stated = {"mutates": manifest.mutates, "ranks": list(manifest.ranks)}
        for field, names in stated.items():
            if known and (unknown := [name for name in names if name not in known]):
                has = f"{manifest.op} has no tensor {printable(unknown[0])!r}; it has: {', '.join(known)}"
                self._mistake(field, has)

    def _check_entries(self, manifest: Manifest) -> None:
        for entry in manifest.entries:
            for name in entry.values() if isinstance(entry, dict) else [entry]:
                if not _IDENTIFIER.fullmatch(name):
                    self._mistake("entry", f"{printable(name)!r} is not a function's name")
            if isinstance(entry, dict) and (silent := set(manifest.dtypes) - set(entry)):
                self._mistake("entry", f"no function for {', '.join(sorted(silent))}, which `dtypes` lists")

    def _mistake(self, field: str, message: str) -> None:
        line = self.block.lines.get((field,), self.block.line) if self.block else 1
        self.mistakes.append((line, f"{self.shown}:{line}: {field}: {message}"))
        # A stand-in, so that validation does not report the same field again, with less in it.
        if field in _NAMES and not isinstance(self.data.get(field), str):
            self.data[field] = {"binding": "tvm-ffi"}.get(field, "unknown")


def _in_layout(op: str, layout: Any) -> str:
    """The op that a kernel of that layout computes."""
    return f"{op}:{layout}" if layout in OTHER_OPS and layout in LAYOUTS.get(op, ()) else op


def _launched(launches: Any) -> Any:
    """The first launch's function, where every launch of a list names its own; `finish` says what is wrong with it."""
    if not isinstance(launches, list) or not launches:
        return None
    named = [launch.get("entry") for launch in launches if isinstance(launch, dict)]
    return named[0] if len(named) == len(launches) and all(named) else None
