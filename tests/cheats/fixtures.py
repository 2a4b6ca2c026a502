"""What must come of a kernel file: a block of its own, in the manner of the file's manifest."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict

from e2e.schema.words import Outcome, ReasonCode, ReasonKind, Stage, kind_of

HERE = Path(__file__).parent
CHEATS = HERE / "kernels"
HONEST = HERE.parent / "honest"
BAD = HERE.parent / "kernels" / "bad"
"""Kernels of other tests; those with the block are fixtures as well."""
KINDS = (".py", ".cpp", ".cu")
_BLOCK = re.compile(r"^(?://|#) /// expected\n(.*?)^(?://|#) ///$", re.S | re.M)
_ACCUSED = (Outcome.INCORRECT, Outcome.FAILED)

Result = Literal["caught", "missed", "confirmed", "fair", "falsely accused"]


class Expected(BaseModel):
    """The block `expected` of a kernel file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    row: str
    """Of the catalogue of threats: T1, W3; of the honest controls, A10."""
    outcome: list[Outcome] = []
    """Any of these; of an honest kernel nothing need be said."""
    codes: list[ReasonCode] = []
    """The first reason is one of these; nothing is said of it where there are none."""
    until: Stage = Stage.CHECK
    device: Literal["cpu", "cuda"] = "cpu"
    set: list[str] = []
    """Fields of the workload."""
    ci: bool = True
    """Whether CI runs it, where time is short."""


@dataclass(frozen=True)
class Seen:
    """What came of one run."""

    outcome: Outcome | None
    codes: tuple[ReasonCode, ...]
    said: str
    seconds: float


@dataclass(frozen=True)
class Fixture:
    """A kernel file and what must come of it."""

    path: Path
    expected: Expected

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def is_honest(self) -> bool:
        return self.path.parent == HONEST

    def result(self, seen: Seen) -> Result:
        """The run in one word; a cheat that is not caught for its own reason counts as missed."""
        is_outcome = not self.expected.outcome or seen.outcome in self.expected.outcome
        is_code = not self.expected.codes or (bool(seen.codes) and seen.codes[0] in self.expected.codes)
        if self.is_honest:
            accusing = [code for code in seen.codes if kind_of(code) in (ReasonKind.INCORRECT, ReasonKind.FAILED)]
            return "fair" if not accusing and seen.outcome not in _ACCUSED and is_outcome else "falsely accused"
        if seen.outcome is Outcome.CONFIRMED:
            return "confirmed"
        return "caught" if is_outcome and is_code else "missed"


def read(path: Path) -> Fixture:
    """The fixture in that file.

    Raises:
        ValueError: it does not say what must come of it.
    """
    found = _BLOCK.search(path.read_text())
    if found is None:
        raise ValueError(f"{path.name} has no block `/// expected`")
    text = "\n".join(re.sub(r"^(//|#) ?", "", line) for line in found.group(1).splitlines())
    expected = Expected.model_validate(yaml.safe_load(text))
    if path.parent != HONEST and not expected.outcome:
        raise ValueError(f"{path.name}: a cheat says which outcome is right")
    return Fixture(path, expected)


def fixtures() -> list[Fixture]:
    """All of them, cheats by row, then the honest ones."""
    files = [path for folder in (CHEATS, HONEST) for path in sorted(folder.iterdir()) if path.suffix in KINDS]
    files = [path for path in files if not path.name.startswith(("_", "test_"))]
    files += [path for path in sorted(BAD.iterdir()) if path.suffix in KINDS and _BLOCK.search(path.read_text())]
    found = [read(path) for path in files]
    return sorted(found, key=lambda fixture: (fixture.is_honest, *_rank(fixture.expected.row), fixture.name))


def _rank(row: str) -> tuple[int, int]:
    return "TRFNCMGHWA".index(row[0]), int(row[1:])
