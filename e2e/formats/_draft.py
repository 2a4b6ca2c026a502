"""A manifest in the making: the block's fields, what the source says where they are silent, all mistakes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from pydantic import ValidationError

from e2e import registry
from e2e.errors import UsageError
from e2e.formats import _call, _fields
from e2e.formats._fields import Mistakes, Path
from e2e.formats._names import check_op, check_patched, shown_spec
from e2e.formats._source import Source, pick_entry, same_name, scan
from e2e.schema.kernel import LAYOUTS, OTHER_OPS, Manifest
from e2e.signatures import signature_of
from e2e.yaml_lines import dotted, explain, printable

_STAND_INS = {"op": "unknown", "entry": "unknown", "binding": "tvm-ffi"}
"""For fields that the source can fill in, and did not."""
_OF_CALLS = {"args", "prepare", "layout", "outputs", "ranks", "mutates", "constraints", "launch", "flags"}
"""Fields about what an entry is called with."""


_OF_FUNCTIONS = {"entry", "args", "outputs", "saves", "workspace", "prepare", "prepared", "backward", "launch"}
"""Fields that say what the source's functions are called with."""


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
        self.wrong: set[str] = set()
        """Fields with mistakes."""
        self.source = source = self._scan(text)
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
        try:
            manifest = Manifest.model_validate(self.data)
        except ValidationError as error:
            lines: Mapping[tuple[str | int, ...], int] = self.block.lines if self.block else {(): 1}
            for message in explain(error, lines, self.shown, Manifest):
                line = int(message.removeprefix(f"{self.shown}:").partition(":")[0])
                self.mistakes.append((line, message))
            broken = {str(item["loc"][0]) for item in error.errors() if item["loc"]}
            kept = {**_STAND_INS, **{name: value for name, value in self.data.items() if name not in broken}}
            manifest = Manifest.model_validate(kept)
            self.wrong |= broken
        self._cross_check(manifest)
        if self.mistakes:
            ordered = sorted(dict.fromkeys(self.mistakes), key=lambda mistake: mistake[0])
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
        """The fields against one another, then against op and source; what is wrong with a field is said once."""
        self._tell(_fields.mistakes_of(manifest, self.path.suffix))
        if self.wrong & {"op", "kind", "binding"}:
            return  # then it is not known what a call looks like
        signature = None if manifest.kind == "patch" else signature_of(manifest.op)
        self._tell(_call.mistakes_of(manifest, signature, None if self.wrong & _OF_FUNCTIONS else self.source))

    def _tell(self, found: Mistakes) -> None:
        before = frozenset(self.wrong)
        for path, message in found:
            if path[0] not in before:
                self._mistake(path, message)

    def _mistake(self, path: Path | str, message: str) -> None:
        path = (path,) if isinstance(path, str) else path
        self.wrong.add(str(path[0]))
        lines, line = (self.block.lines, self.block.line) if self.block else ({}, 1)
        for end in range(1, len(path) + 1):
            line = lines.get(path[:end], line)
        self.mistakes.append((line, f"{self.shown}:{line}: {dotted(path)}: {message}"))
        # A stand-in, so that validation does not report the same field again, with less in it.
        if path[0] in _STAND_INS and not isinstance(self.data.get(str(path[0])), str):
            self.data[str(path[0])] = _STAND_INS[str(path[0])]


def _in_layout(op: str, layout: Any) -> str:
    """The op that a kernel of that layout computes."""
    is_other = isinstance(layout, str) and layout in OTHER_OPS and layout in LAYOUTS.get(op, ())
    return f"{op}:{layout}" if is_other else op


def _launched(launches: Any) -> Any:
    """The first launch's function, where every launch of a list names its own; `finish` says what is wrong with it."""
    if not isinstance(launches, list) or not launches:
        return None
    named = [launch.get("entry") for launch in launches if isinstance(launch, dict)]
    return named[0] if len(named) == len(launches) and all(named) else None
