"""PARENT: `e2e selftest`: what this machine can tell apart, and whether wrong kernels are caught on it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from e2e import assembly, registry, store, trials
from e2e.arm_names import AS_SHIPPED
from e2e.cache import cache_folder
from e2e.errors import INTERNAL_FAULT, INTERRUPTED, UsageError
from e2e.formats._names import check_op
from e2e.loading import load_without_kernel
from e2e.measure.devices import reserved
from e2e.measure.machine import Watch
from e2e.outset import course_of
from e2e.protocols import Progress
from e2e.request import Loaded, Request
from e2e.schema.evidence import Telemetry
from e2e.schema.kernel import OF_MODELS
from e2e.schema.result import METHOD
from e2e.schema.selftest import Catch, SelftestReport, Trial
from e2e.schema.words import Outcome
from e2e.schema.workload import Cell, cells_of
from e2e.scratch import scratch_folder
from e2e.selftest_store import keep
from e2e.stages.course import Course
from e2e.stages.planted import Clock, catches, clock_for, for_op, late_catches, look, pilot, time_run
from e2e.stages.verdict import STAGE
from e2e.units import Ratio

POLICY = "selftest"
ANY_MODULE = "module"
"""The op that stands for any class of modules; here for the class that the first op was found in."""
TOO_NOISY = 11


FIRST = "rms_norm"
"""Planted before all others where it occurs: its sites are modules of one tensor, as `module:` wants them."""
KERNELS_SHARE = 0.4
"""Of the budget, what planted kernels may take; the rest is for planted times."""


@dataclass
class Findings:
    """What is known so far; Ctrl-C keeps it."""

    base: Course | None = None
    """The course of the first op that occurs, its honest kernel checked."""
    clock: Clock | None = None
    runs: list[trials.Timed] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    catches: list[Catch] = field(default_factory=list)
    absent_ops: list[str] = field(default_factory=list)
    telemetry: list[Telemetry] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)


def selftest(
    request: Request, *, runs: int, progress: Progress, ops: tuple[str, ...] = (), sizes: Sequence[Ratio] = trials.SIZES
) -> SelftestReport:
    """Planted kernels, then runs of planted times until there are `runs` of them or the time is over; stores it.

    Kernels are planted for `ops`, or where none is named for every op that occurs in the workload; times are gains and
    losses of `sizes`, shares of the step, beside identical code.

    Raises:
        UsageError: the caller's mistake.
        EnvironmentFault: this machine cannot run it.
    """
    started = time.monotonic()
    for name in ops:
        check_op(name)
    loaded = load_without_kernel(request, policy=POLICY, command="selftest")
    if loaded.workload.workload.trains:
        raise UsageError("`e2e selftest` takes no training steps yet: give it an inference workload")
    cell = cells_of(loaded.workload.workload)[0]
    findings, interrupted = Findings(), False
    with scratch_folder() as scratch:
        course = course_of(loaded, cell, store.Run(scratch), progress, scratch)
        try:
            with reserved(loaded.device, cache_folder() / "locks", progress.note):
                course.crew.start()
                _collect(course, findings, runs, ops, sizes)
        except KeyboardInterrupt:
            interrupted = True
            if findings.base is None:  # nothing is known, not even the device
                raise
        finally:
            course.crew.close()
    report = _report(loaded, cell, findings, runs=runs, seconds=time.monotonic() - started, interrupted=interrupted)
    progress.note(f"stored in {keep(report, request.out)}")
    return report


def exit_code(report: SelftestReport) -> int:
    """0 when all that was planted was found as it should be."""
    if report.is_interrupted:
        return INTERRUPTED
    return INTERNAL_FAULT if report.faults else TOO_NOISY if report.doubts else 0


def _collect(course: Course, findings: Findings, runs: int, ops: tuple[str, ...], sizes: Sequence[Ratio]) -> None:
    budget_s = course.policy.budgets.cell_s
    known = sorted(registry.names("ops"), key=lambda name: (name != FIRST, name))
    for op in ops or [name for name in known if name not in OF_MODELS]:
        if not ops and findings.base is not None and course.deadline.left_s < (1 - KERNELS_SHARE) * budget_s:
            course.progress.note(f"no time for the planted kernels of {op}: `--op {op}`, or a larger --budget")
            continue
        _try_op(course, findings, op)
    base = findings.base
    if base is None or base.evidence.engagement is None:
        wanted = ", ".join(ops) or "no op of `e2e list ops`"
        problem = "does not occur" if ops else "occurs"
        raise UsageError(f"{wanted} {problem} in {course.crew.workload.path.name}: choose another workload")
    if not ops:
        _try_op(course, findings, f"{ANY_MODULE}:{base.evidence.engagement.sites[0].owner}")
    course.progress.stage("selftest", "kernels that turn wrong while they are timed")
    findings.catches += late_catches(base)
    course.progress.stage("selftest", "the step alone")
    step_s = pilot(base)
    findings.clock = clock_for(base, step_s, trials.pauses_for(step_s, sizes))
    base.learn(stage_asked=STAGE, stage_finished=STAGE)
    for number in range(runs):
        course.progress.stage("selftest", f"planted times, run {number + 1} of {runs}")
        if not _one_run(base, findings, number):
            course.progress.note(f"the time is used up after {number} of {runs} runs")
            break


def _try_op(course: Course, findings: Findings, op: str) -> None:
    """The op's planted kernels; the clean process of the first op that occurs stays, for the audits."""
    course.progress.stage("selftest", f"planted kernels of {op}")
    own = for_op(course, op)
    if not look(own):
        findings.absent_ops.append(op)
        return
    if findings.base is None:
        findings.base = own
    findings.catches += catches(own)
    assert own.clean is not None
    if findings.base is own:
        own.crew.make_arena(own.clean)
        own.crew.require(own.clean, "prepare", arm=AS_SHIPPED)
    else:
        own.clean.close()


def _one_run(base: Course, findings: Findings, number: int) -> bool:
    """Whether the run was finished in time; then its trials are known."""
    assert findings.clock is not None
    base.watch = Watch(base.crew.device)
    base.watch.begin()
    timed = time_run(base, findings.clock, number=number)
    telemetry, unseen = base.watch.end()
    if timed is None:
        return False
    findings.unseen = unseen
    findings.runs.append(timed)
    findings.telemetry.append(telemetry)
    seen = base.evidence.model_copy(update={"telemetry": telemetry})
    found = trials.trials_of(timed, seen, base.policy, dtype=base.crew.cell.dtype)
    findings.trials += found
    confirmed = sum(trial.outcome is Outcome.CONFIRMED for trial in found if trial.planted > 0)
    gains = sum(trial.planted > 0 for trial in found)
    base.progress.note(f"run {number + 1}: identical code {found[0].outcome}, {confirmed} of {gains} gains confirmed")
    return True


def _report(
    loaded: Loaded, cell: Cell, findings: Findings, *, runs: int, seconds: float, interrupted: bool
) -> SelftestReport:
    assert findings.base is not None and findings.base.evidence.device is not None
    policy, clock = loaded.policy, findings.clock
    effects = trials.effects_of(findings.trials)
    noise = None
    if clock is not None:
        noise = trials.noise_of(findings.runs, policy, opening_s=clock.opening_s, timed_s=clock.timed_s)
    return SelftestReport(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=seconds,
        command=list(loaded.request.command),
        workload=loaded.workload.workload.name,
        cell=cell.title,
        policy=policy,
        overrides=loaded.workload.overrides,
        method=METHOD,
        seed=loaded.seed,
        device=findings.base.evidence.device,
        environment=assembly.environment(loaded, findings.base.evidence),
        step_s=clock.step_s if clock else None,
        runs_asked=runs,
        runs_done=len(findings.runs),
        is_interrupted=interrupted,
        identical=next((effect for effect in effects if effect.planted == 0), None),
        effects=[effect for effect in effects if effect.planted != 0],
        trials=findings.trials,
        alarms=trials.alarms_of(findings.trials),
        noise=noise,
        resolvable=trials.resolvable(noise, policy) if noise else [],
        catches=findings.catches,
        absent_ops=findings.absent_ops,
        telemetry=findings.telemetry,
        unseen=findings.unseen,
        faults=trials.faults_of(effects, findings.catches),
        doubts=trials.doubts_of(effects, interrupted=interrupted),
    )
