"""Several kernels that fail together: which of them do by themselves. Asked by nobody; nothing here is timed."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from e2e.judge import judge
from e2e.processes import Worker
from e2e.schema.evidence import Evidence, SubsetCheck, Where
from e2e.schema.policy import Policy
from e2e.schema.verdict import Reason
from e2e.schema.words import ReasonKind, Stage, kind_of
from e2e.stages.course import Course
from e2e.workers import CandidateFault

Probe = Callable[[Course, Worker], None]
"""Checks the kernels that a worker holds, which stand at the course's sites; adds to its evidence, or raises."""
SINGLES_AND_PAIRS = (1, 2)
_UNCHECKED: dict[str, Any] = {"op_checks": [], "model_check": None, "training": None, "faults": []}


@contextlib.contextmanager
def tried_apart(course: Course, probe: Probe, *, stage: Stage) -> Iterator[None]:
    """Where what runs inside finds several kernels wrong, the same is asked of fewer of them, in fresh processes.

    Raises:
        CandidateFault: as inside; with the file, if one kernel is to blame.
    """
    if len(course.crew.members) == 1:
        yield
        return
    before, fault = _wrong(course.evidence, course.policy), None
    try:
        yield
    except CandidateFault as caught:
        fault = caught
    if fault is not None or (before is None and _wrong(course.evidence, course.policy) is not None):
        course.progress.stage(stage, "the kernels fail together: which of them fail without the others?")
        _search(course, probe, stage)
    if fault is not None:
        raise CandidateFault(fault.fault.model_copy(update={"where": _where(course, fault)})) from fault


def _search(course: Course, probe: Probe, stage: Stage) -> None:
    """Each alone, then in pairs; then all of them, without one after the other as long as the rest fails."""
    everything = range(len(course.crew.members))
    for size in SINGLES_AND_PAIRS:
        subsets = itertools.combinations(everything, size) if size < len(everything) else ()
        failing = [subset for subset in subsets if _fails(course, probe, subset, stage)]
        if failing:
            return
    left = list(everything)
    for place in everything:
        fewer = [other for other in left if other != place]
        if len(fewer) > max(SINGLES_AND_PAIRS) and _fails(course, probe, fewer, stage):
            left = fewer


def _fails(course: Course, probe: Probe, places: Sequence[int], stage: Stage) -> bool:
    """Whether those kernels fail without the others; nothing is known once the time is over."""
    if course.deadline.left_s <= 0:
        return False
    members = [course.crew.members[place] for place in places]
    unchecked = course.evidence.model_copy(update=_UNCHECKED)
    own = replace(course, evidence=unchecked, fqns=[fqn for member in members for fqn in member.fqns])
    try:
        with course.crew.candidate_worker(own.fqns, stage=stage) as worker:
            probe(own, worker)
    except CandidateFault as caught:
        own.fail(caught.fault)
    found = own.evidence.faults[0] if own.evidence.faults else _wrong(own.evidence, course.policy)
    tried = SubsetCheck(
        kernels=[member.kernel.spec for member in members],
        code=found.code if found is not None else None,
        message=found.message if found is not None else "",
    )
    course.learn(subsets=[*course.evidence.subsets, tried])
    return found is not None


def _wrong(evidence: Evidence, policy: Policy) -> Reason | None:
    reasons = judge(evidence, policy).reasons
    return next((reason for reason in reasons if kind_of(reason.code) is ReasonKind.INCORRECT), None)


def _where(course: Course, fault: CandidateFault) -> Where:
    """The fault's own place, or the file of the one kernel that fails alone."""
    alone = [item.kernels[0] for item in course.evidence.subsets if item.code is not None and len(item.kernels) == 1]
    own = fault.fault.where
    return own if own.file is not None or len(alone) != 1 else own.model_copy(update={"file": alone[0]})
