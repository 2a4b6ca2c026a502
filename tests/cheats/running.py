"""Fixtures through the stages of `e2e validate`, on a tiny model; two zygotes serve them all."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from e2e import pipeline, store
from e2e.building import build_all
from e2e.judge import judge
from e2e.loading import load
from e2e.outset import course_of
from e2e.progress import PlainProgress
from e2e.request import Request
from e2e.schema.evidence import Evidence
from e2e.schema.words import ReasonCode
from e2e.schema.workload import cells_of
from e2e.stages.course import Course
from tests import tiny
from tests.cheats.fixtures import Fixture, Seen

_QUICK = "warm_steps: 3\nsandbox: false\n"
"""Zygotes that serve many runs write where a sandbox made for the first lets nobody; and what is caught has to be
caught where there is none."""


class Range:
    """Where fixtures are tried, one after the other: `pipeline.collect`, but for the zygotes, which stay."""

    def __init__(self, device: str, *, call_s: float = 20) -> None:
        self._device = device
        self._cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(self._cores)})  # threads that wait for each other take a hundred times as long
        self._folder = Path(tempfile.mkdtemp(prefix="e2e-cheats-"))
        self._workload = tiny.write_workload(self._folder)
        self._policy = tiny.write_policy(self._folder / "policy.yaml", call_s=call_s, cell_s=120)
        text = self._policy.read_text().replace("ceiling_s: 1\n", "ceiling_s: 0.2\n")
        self._policy.write_text(text + _QUICK)
        self._silent = PlainProgress(io.StringIO())
        self._count = 0
        self._crew: Course | None = None
        """The course whose zygotes serve the next one as well."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._end_zygotes()
        os.sched_setaffinity(0, self._cores)
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(self, fixture: Fixture) -> Seen:
        """The whole way of that kernel, as far as it says."""
        started = time.monotonic()
        evidence, course = self._evidence(fixture)
        verdict = judge(evidence, course.policy)
        codes = tuple(reason.code for reason in verdict.reasons)
        if ReasonCode.WORK_OUTSIDE_STEP in codes:
            self._end_zygotes()  # whatever it left must not be held against the next one
        said = f"{verdict.reasons[0].code}: {verdict.reasons[0].message}" if verdict.reasons else ""
        return Seen(verdict.outcome, codes, said, time.monotonic() - started)

    def _evidence(self, fixture: Fixture) -> tuple[Evidence, Course]:
        expected = fixture.expected
        request = Request(
            workload=str(self._workload),
            kernels=(str(fixture.path),),
            until=expected.until,
            overrides=tuple(expected.set),
            policy=str(self._policy),
            device=self._device,
            traces=False,
        )
        loaded = load(request)
        scratch = self._folder / f"run-{self._count}"
        scratch.mkdir()
        self._count += 1
        run = store.Run(scratch)
        course = course_of(loaded, cells_of(loaded.workload.workload)[0], run, self._silent, scratch)
        course.crew.compiles = True  # the zygotes serve runs that compile, too
        self._lend_zygotes(course)
        try:
            build_all(course, loaded, run)
            if not course.evidence.faults:
                pipeline._stages(course, pipeline.STAGES)
        finally:
            for worker in (course.clean, course.pilot, *(worker for worker, _ in course.warmers)):
                if worker is not None:
                    worker.close()
        return course.evidence, course

    def _lend_zygotes(self, course: Course) -> None:
        if self._crew is None:
            course.crew.start()
        else:
            lender = self._crew.crew
            course.crew._zygotes, course.crew.confined = lender._zygotes, lender.confined
            course.crew.starts_cold = dict(lender.starts_cold)
        self._crew = course

    def _end_zygotes(self) -> None:
        if self._crew is not None:
            self._crew.crew.close()
        self._crew = None
