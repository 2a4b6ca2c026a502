"""PARENT: the way through one cell, before anything is started."""

from __future__ import annotations

import random
from pathlib import Path

from e2e import guard, store
from e2e.cache import cache_folder
from e2e.crew import Crew, Deadline
from e2e.exam import SEED_SPACE, Exam, draw, identity_of
from e2e.measure.machine import Watch, thread_count
from e2e.measure.schedule import SeedSource
from e2e.protocols import Progress
from e2e.request import Loaded
from e2e.schema.evidence import Evidence, ExamRecord
from e2e.schema.words import Stage
from e2e.schema.workload import Cell, cells_of
from e2e.stages.course import Course
from e2e.workers import Member

RESERVE_RATIO = 0.08
"""Share of a cell's time kept for traces, memory and the report."""


SITTING_SEEDS = 2**25
"""Of inputs, for each process that a run goes on in: what one that was killed timed last is never timed again."""


def course_of(
    loaded: Loaded,
    cell: Cell,
    run: store.Run,
    progress: Progress,
    scratch: Path,
) -> Course:
    """The way through one cell, nothing started yet."""
    exam = exam_of(loaded, cell)
    crew = Crew(
        workload=loaded.workload,
        cell=cell,
        device=loaded.device.name,
        seed=loaded.seed,
        exam=exam,
        policy=loaded.policy,
        scratch=scratch,
        members=[Member(kernel) for kernel in loaded.kernels],
        compiles=loaded.request.until.rank > Stage.CHECK.rank,
    )
    budget = loaded.policy.budgets.cell_s
    return Course(
        crew=crew,
        policy=loaded.policy,
        progress=progress,
        deadline=Deadline(budget),
        folder=run.folder,
        evidence=Evidence(
            origin=loaded.origin,
            stage_asked=loaded.request.until,
            stage_finished=None,
            exam=ExamRecord(seed=exam.seed, run=exam.run),
            guard=[found for kernel in loaded.kernels for found in guard.findings(kernel)],
            kernels=[kernel.spec for kernel in loaded.kernels] if len(loaded.kernels) > 1 else [],
        ),
        traces=loaded.request.traces and loaded.policy.traces,
        rng=random.Random(loaded.seed),
        seeds=SeedSource((loaded.seed + 1) * SEED_SPACE + loaded.sitting * SITTING_SEEDS),
        reserve_s=RESERVE_RATIO * budget,
        watch=Watch(loaded.device.name),
        cells=len(cells_of(loaded.workload.workload)),
    )


def exam_of(loaded: Loaded, cell: Cell) -> Exam:
    """Inputs of the model-level check: of the caller's seed, else of the one in use here; fresh where that is asked."""
    policy, workload = loaded.policy, loaded.workload
    if (
        workload.workload.is_command
        or not policy.numerics.reuse
        or policy.pins.fresh_seed
        or loaded.request.until is Stage.BUILD
    ):
        return Exam(loaded.seed)
    asked = [
        workload.workload.model_dump(mode="json"),
        workload.task_sha256,
        str(workload.path.parent),
        cell.model_dump(mode="json", exclude={"weight"}),
        [kernel.manifest.op for kernel in loaded.kernels],
        loaded.device.name,
        loaded.device.arch,
        thread_count(),
    ]
    folder = cache_folder() / "references"
    if (known := loaded.exam_before(cell)) is not None:
        return Exam(known.seed, folder, identity_of(asked), known.run)
    if loaded.request.seed is not None:
        return Exam(loaded.seed, folder, identity_of(asked))
    return draw(folder, asked)
