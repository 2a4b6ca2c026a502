"""All that a run knows: on disk whenever a part is complete, and in the end as its result."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from datetime import UTC, datetime

from e2e import assembly, store, unfinished
from e2e.errors import UsageError
from e2e.exam import identity_of
from e2e.request import Loaded
from e2e.schema.evidence import Evidence
from e2e.schema.result import METHOD, ErrorRecord, Result, Resumption
from e2e.schema.workload import SYNTHETIC, Cell, cells_of
from e2e.stages.course import Course
from e2e.unfinished import CellSoFar, Unfinished

STOPPED = "the run was stopped before it ended"
_SAME_PLACE = ("platform", "python", "packages", "arch", "driver", "variables")


class Keeper:
    """One run's cells, as far as they have come; `loaded.request.resume` says how far an earlier process came.

    Made while the run's folder is held.

    Raises:
        UsageError: another process went on with the run meanwhile.
        EnvironmentFault: nothing can be written.
    """

    def __init__(self, loaded: Loaded, run: store.Run) -> None:
        self._loaded, self._run = loaded, run
        self._began = time.monotonic()
        self._before = loaded.request.resume
        if self._before is not None and self._before != unfinished.load(run.folder):
            raise UsageError(f"another process went on with run {run.run_id} meanwhile: `e2e report {run.folder}`")
        self._created = self._before.result.created if self._before else _now()
        self._data = data_sha256(loaded)
        entries = _entries(self._before)
        self._cells = [entry for entry in entries if entry[2].is_complete]
        self._begun = [entry for entry in entries if not entry[2].is_complete]
        """By an earlier process, and not complete: one, or none."""
        self._course: Course | None = None
        """The one at work."""
        self._resumed: list[Resumption] = []
        if self._before is not None:
            self._resumed = [*self._before.result.resumed, self._resumption()]
            run.clear()
        self.save()

    def waiting(self) -> list[Cell]:
        """Cells that are not complete."""
        return cells_of(self._loaded.workload.workload)[len(self._cells) :]

    def follow(self, course: Course) -> None:
        """Keep what that course learns from now on; if its cell was begun before, it goes on from there."""
        for _, evidence, so_far in self._begun:
            course.take_up(evidence, so_far)
        self._begun, self._course, course.keep = [], course, self.save
        self.save()

    def complete(self) -> None:
        """The cell at work is done."""
        assert self._course is not None
        self._cells.append(_entry(self._course, is_complete=True))
        self._course = None
        self.save()

    def save(self) -> None:
        """Put everything on disk.

        Raises:
            EnvironmentFault: it cannot be written.
        """
        how = f"{STOPPED}: `e2e validate --resume {self._run.folder}` finishes it"
        kept = Unfinished(
            result=self.result(ErrorRecord(code=130, message=how)),
            cells=[so_far for _, _, so_far in self._all()],
            sources=identity_of([]),
            data=self._data,
        )
        unfinished.keep(kept, self._run)

    def result(self, error: ErrorRecord | None) -> Result:
        """Everything as one record."""
        before_s = self._before.result.seconds if self._before else 0.0
        return assembly.assemble(
            self._loaded,
            [(cell, evidence) for cell, evidence, _ in self._all()],
            run_id=self._run.run_id,
            created=self._created,
            seconds=before_s + time.monotonic() - self._began,
            error=error,
            resumed=self._resumed,
        )

    def _all(self) -> list[tuple[Cell, Evidence, CellSoFar]]:
        at_work = [_entry(self._course, is_complete=False)] if self._course is not None else []
        return [*self._cells, *self._begun, *at_work]

    def _resumption(self) -> Resumption:
        evidence = self._begun[0][1] if self._begun else None
        return Resumption(
            at=_now(),
            cell=len(self._cells),
            stage=evidence.stage_finished if evidence else None,
            workers_finished=evidence.workers_finished if evidence else 0,
        )


def _entry(course: Course, *, is_complete: bool) -> tuple[Cell, Evidence, CellSoFar]:
    so_far = CellSoFar(
        is_complete=is_complete, used_s=course.used_s, weights=course.crew.weights, verdict=course.verdict
    )
    return course.crew.cell, course.evidence, so_far


def _entries(before: Unfinished | None) -> list[tuple[Cell, Evidence, CellSoFar]]:
    if before is None:
        return []
    return [(cell.cell, cell.evidence, so_far) for cell, so_far in zip(before.result.cells, before.cells, strict=True)]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def data_sha256(loaded: Loaded) -> str | None:
    """Hash of the file of inputs; None where there is none, or it is no single file."""
    workload = loaded.workload
    file = workload.path.parent / workload.workload.data.path
    if workload.workload.data.path == SYNTHETIC or not file.is_file():
        return None
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


# ---- May a run go on?


def check_resume(before: Unfinished, loaded: Loaded) -> None:
    """Everything that a verdict rests on is what it was.

    Raises:
        UsageError: something is not, each thing named.
    """
    changed = "; ".join(_changes(before, loaded))
    if changed:
        raise UsageError(f"run {before.run_id} cannot go on, as {changed}: put it back, or validate afresh")


def _changes(before: Unfinished, loaded: Loaded) -> Iterator[str]:
    stored, workload = before.result, loaded.workload
    if (stored.method, before.sources) != (METHOD, identity_of([])):
        yield "e2e itself has changed"
    pairs: list[tuple[str, object, object]] = [
        (f"workload {workload.path.name}", stored.environment.get("workload_sha256"), workload.sha256),
        ("the task's file", stored.environment.get("task_sha256"), workload.task_sha256),
        (f"data {workload.workload.data.path}", before.data, data_sha256(loaded)),
    ]
    for earlier, kernel in zip(stored.kernels, loaded.kernels, strict=True):
        pairs.append((f"kernel {kernel.spec}", earlier.sha256, kernel.sha256))
        pairs.append((f"op {kernel.manifest.op}", earlier.op_sha256, kernel.op_sha256))
    for what, then, now in pairs:
        if then != now:
            yield f"{what} has changed (sha256 {str(then)[:12]} then, {str(now)[:12]} now)"
    if stored.workload != workload.workload:
        yield "what the workload comes to has changed (a length of its data, or a default)"
    if stored.policy != loaded.policy:
        yield f"policy {loaded.policy.name} has changed"
    here = assembly.environment(loaded, None)
    for name in _SAME_PLACE:
        if (then := stored.environment.get(name)) != (now := here[name]):
            yield f"the environment has changed ({name}: {then} then, {now} now)"
