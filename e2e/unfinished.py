"""A run that has not ended: what it takes to show it, and to finish it on the path that it was on.

`unfinished.jsonl` in the run's folder, replaced as a whole whenever a part is complete: a line with the sha256 of the
second, and the second with everything. What was begun after that is lost with its processes, on purpose.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Literal

import pydantic_core
from pydantic import Field, ValidationError

from e2e import store
from e2e.errors import StoredRunError, UsageError
from e2e.measure.audit import Replay
from e2e.schema.record import Record
from e2e.schema.result import Result
from e2e.units import Seconds

SCHEMA = "e2e.unfinished/1"


class VerdictSoFar(Record):
    """What the verdict decided before its first worker, and what the audit has of those that are done."""

    plan: dict[str, int]
    """Arms of every block, and their counted steps."""
    blocks: int
    """Per worker."""
    clean_arms: list[str]
    """Those that the clean process has."""
    steps_run: int = 0
    steps_committed: int = 0
    steps_compared: int = 0
    steps_apart: int = 0
    """Of the candidate's timed steps that were compared with the baseline's those that differ."""
    replays: list[Replay] = Field(default_factory=list)


class CellSoFar(Record):
    """How far one cell has come, beside its evidence."""

    is_complete: bool
    used_s: Seconds
    """Since it began, without the time between a stop and the next start."""
    weights: str | None
    """Checksum of the model, as the first process built it."""
    verdict: VerdictSoFar | None


class Unfinished(Record):
    """Everything that is known of a run that has not ended."""

    schema_version: Literal["e2e.unfinished/1"] = "e2e.unfinished/1"
    result: Result
    """As it would be if nothing more came, segments included."""
    cells: list[CellSoFar]
    """Of the cells that were begun, in the order of the result's."""
    sources: str
    """Hash of e2e's own sources."""
    data: str | None
    """Hash of the file that the inputs are read from; None where there is none."""

    @property
    def run_id(self) -> str:
        """Name of the run's folder."""
        return self.result.run_id


def keep(unfinished: Unfinished, run: store.Run) -> None:
    """Write it, whole or not at all.

    Raises:
        EnvironmentFault: it cannot be written.
    """
    text = unfinished.model_dump_json()
    head = json.dumps({"schema_version": SCHEMA, "sha256": hashlib.sha256(text.encode()).hexdigest()})
    run.write_text(store.UNFINISHED, f"{head}\n{text}\n")


def load(folder: Path) -> Unfinished:
    """The run in that folder, of which something is left to do.

    Raises:
        UsageError: it has ended.
        StoredRunError: there is none, or what there is was damaged, edited, or written by another version.
    """
    file = folder / store.UNFINISHED
    if not file.exists():
        if (folder / store.RESULT).exists():
            raise UsageError(f"run {folder.name} has ended: there is nothing to resume; `e2e report {folder}` shows it")
        raise StoredRunError(store.why_none(folder))
    head, _, text = store.read_limited(file, store.MAX_RESULT_BYTES + store.MAX_SAMPLES_BYTES).partition(b"\n")
    text = text.removesuffix(b"\n")
    try:
        said = pydantic_core.from_json(head)
        if said["schema_version"] != SCHEMA:
            raise StoredRunError(f"{file} has schema {said['schema_version']!r}; this e2e reads {SCHEMA!r} only")
        if said["sha256"] != hashlib.sha256(text).hexdigest():
            raise StoredRunError(f"{file} does not have the hash in its first line: it was edited")
        return Unfinished.model_validate_json(text, strict=True)
    except (ValueError, TypeError, KeyError, ValidationError) as error:
        raise StoredRunError(f"{file} is not what e2e writes there: {str(error).splitlines()[0]}") from error


def shown(run: str | Path) -> Result:
    """A stored run, or of one that has not ended what is known by now.

    Raises:
        StoredRunError: neither; or it is damaged, edited, or of another schema.
    """
    folder = store.find(run)
    if (folder / store.RESULT).exists() or not (folder / store.UNFINISHED).exists():
        return store.load(run)
    result = load(folder).result
    if store.is_held(folder):
        assert result.error is not None
        still = result.error.model_copy(update={"message": "the run is still going; this is what it has so far"})
        return result.model_copy(update={"error": still})
    return result
