"""Sanitizers over the kernels' captured and edge inputs, in processes of their own; where a run was asked for them."""

from __future__ import annotations

from e2e.sanitizers import SLOWER, Surroundings, faults_of
from e2e.schema.evidence import Fault
from e2e.schema.words import Stage
from e2e.stages.course import Course

STAGE = Stage.CHECK


def sanitize(course: Course) -> None:
    """Each kernel under each of its tools; what they see ends the run with this stage, and stops no other tool."""
    for member, sanitizers, built in course.sanitizing:
        course.progress.stage("check", f"{member.kernel.spec} under sanitizers")
        around = Surroundings(*course.crew.apart(), timeout_s=SLOWER * course.policy.budgets.call_s)
        calls, dtype = course.calls_path(member), course.crew.cell.dtype
        for seen in sanitizers.look(built, dtype=dtype, calls=calls, around=around):
            if isinstance(seen, Fault):
                course.fail(seen)
                continue
            ran = seen.model_copy(update={"kernel": course.said(member)})
            course.learn(sanitizers=[*course.evidence.sanitizers, ran])
            for fault in faults_of(ran, stage=STAGE):
                course.fail(fault)
