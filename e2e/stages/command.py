"""The stages of a `task: command`: a program of the user's own runs and times the step, in a fresh process each time.

What e2e owns is the order of the processes, their seeds, the comparison of what they hand back, and the statistics.
The clock and the outputs are the program's word, and every report says so.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from e2e import registry, wording
from e2e.arm_names import ArmName
from e2e.commands import FOLDER, Command, CommandFault, Ran, difference, is_finite, seconds_of
from e2e.errors import UsageError
from e2e.integrity.isolation import namespace_prefix
from e2e.measure.devices import cuda_devices
from e2e.measure.machine import thread_count
from e2e.protocols import OUT, Built
from e2e.schema.command import MUTANT, CommandRun
from e2e.schema.evidence import (
    Answer,
    ArmRecord,
    Audit,
    CleanTime,
    DeviceFacts,
    Fault,
    ModelCheck,
    MutantCheck,
    Segment,
    SiteRecord,
    Where,
    engagement_at,
)
from e2e.schema.words import Mode, ReasonCode, Role, Stage
from e2e.schema.workload import Cell
from e2e.signatures import signature_of
from e2e.stages.course import Course
from e2e.sweep import settled
from e2e.units import Ratio
from e2e.weighing import weigh
from e2e.workers import CandidateFault

BASELINE, CANDIDATE, SHAM = (str(ArmName(role, Mode.COMMAND)) for role in (Role.BASELINE, Role.CANDIDATE, Role.SHAM))
SITE = "command"
_SEEDS = 2**31
_CODES = {
    "crashed": ReasonCode.CANDIDATE_CRASHED,
    "exited": ReasonCode.CANDIDATE_EXITED,
    "timed_out": ReasonCode.TIMED_OUT,
    "implausible": ReasonCode.TAMPERED,
}
_UNSEEN = (
    "the step itself: a program outside e2e runs and times it, so that its times and outputs are its own word",
    "the op on this model's activations (`e2e check` looks at the op alone)",
    "the strongest PyTorch path, and the most that any kernel could win: the opponent is the command as it is",
)
_NO_SANDBOX = "what the kernel did to files and network: a program of the user's own runs outside of the sandbox"
_NO_SHAM = "the swap's own cost: identical code is the command as it is, once more (`command.sham: true` where it can)"
_NO_MUTANT = "whether its outputs depend on the kernel's"


def check(course: Course) -> None:
    """The command as it is, with the kernel, with zeros in the place of the kernel's outputs, and as it is again.

    Raises:
        UsageError: as it is it fails, hands over nothing that can be compared, or does not repeat itself.
        CandidateFault: with the kernel it fails.
    """
    course.progress.stage("check", "the command as it is, and with the kernel")
    _know(course)
    runs = _runs(course)
    seed = _seed(course)
    with course.spending("check"):
        first = runs.plain(BASELINE, seed)
        mine = runs.with_kernel(seed)
        zeroed = _zeroed(course, runs, seed)
        again = runs.plain(BASELINE, seed)
    own = _need_repeats(course, first, again)
    _engaged(course, mine, first, zeroed)
    _compare(course, mine, first, own)
    course.learn(arms=_arms(course, [first, again], [mine]), baseline=BASELINE, candidate=CANDIDATE)
    course.learn(command_runs=runs.records(base={seed: first}))
    course.finish(Stage.CHECK)


def screen(course: Course) -> None:
    """Nothing is known before a verdict but what the check took: no ceiling bounds what e2e does not see into."""
    walls = [run.wall_s for run in course.evidence.command_runs]
    processes = 2 * len(_ARMS) * course.policy.looks[0]
    course.progress.note(f"a first look takes {processes} processes, about {wording.span(processes * median(walls))}")
    course.finish(Stage.SCREEN)


def verdict(course: Course) -> None:
    """Group after group of processes, in mirrored order, until a look decides, or looks or time are used up."""
    runs, longest, groups = _runs(course), 0.0, _Groups()
    course.watch.begin()
    for first, look in pairwise((0, *course.policy.looks)):
        for place in range(first, look):
            if course.deadline.left_s <= longest:
                course.learn(budget_exhausted=True)
                break
            course.progress.stage("verdict", f"group {place + 1} of at least {course.policy.looks[0]}")
            start = time.monotonic()
            _one_group(course, runs, groups, place)
            longest = max(longest, time.monotonic() - start)
        if course.evidence.budget_exhausted or settled(course.evidence, course.policy, cells=course.cells):
            break
    course.finish(Stage.VERDICT)


STAGES = ((Stage.CHECK, check), (Stage.SCREEN, screen), (Stage.VERDICT, verdict))
_ARMS = (BASELINE, CANDIDATE, SHAM)


@dataclass(frozen=True)
class _Run:
    """A process, and what it was."""

    arm: str
    worker: int | None
    position: int
    seed: int
    ran: Ran


@dataclass
class _Runs:
    """Processes of the command, one after the other."""

    command: Command
    kernel: Mapping[str, Any]
    number: int
    shown: str
    """The kernel, for messages."""
    stage: Stage
    made: list[_Run] = field(default_factory=list)

    def plain(self, arm: str, seed: int, *, worker: int | None = None) -> Ran:
        """Without the kernel; as identical code with the original maths swapped in, where the command can.

        Raises:
            UsageError: it fails: then it is not the kernel's fault.
        """
        asked = "sham" if arm == SHAM and self.command.spec.sham else "baseline"
        try:
            ran = self._run(asked, arm, seed, worker, kernel=None)
        except CommandFault as fault:
            raise UsageError(f"command: {self._shown} with E2E_ARM={asked}: {fault.message}") from fault
        if ran.report.receipt is not None:
            raise UsageError(f"command: with E2E_ARM={asked} it hands back a receipt: the kernel has no place there")
        return ran

    def with_kernel(self, seed: int, *, worker: int | None = None) -> Ran:
        """With the kernel.

        Raises:
            CandidateFault: it fails, or there is no proof that the kernel ran.
        """
        try:
            ran = self._run("candidate", CANDIDATE, seed, worker, kernel=self.kernel)
        except CommandFault as fault:
            raise self._blamed(_CODES[fault.kind], f"{self._shown}: {fault.message}") from fault
        if not ran.has_receipt:
            said = ran.report.receipt
            why = "handed back no receipt" if said is None else f"its receipt ({said.calls} calls) does not fit"
            hint = "call the kernel that `e2e.external.kernel()` gives"
            raise self._blamed(ReasonCode.NEVER_CALLED, f"{self._shown} with E2E_ARM=candidate {why}: {hint}")
        return ran

    def zeroed(self, seed: int) -> Ran:
        """With zeros in the place of what the kernel gives.

        Raises:
            CommandFault: it cannot do that.
        """
        return self._run(MUTANT, MUTANT, seed, None, kernel=self.kernel)

    def _run(self, asked: str, arm: str, seed: int, worker: int | None, *, kernel: Mapping[str, Any] | None) -> Ran:
        self.number += 1
        ran = self.command.run(asked, seed=seed, number=self.number, kernel=kernel)
        position = sum(run.worker == worker for run in self.made)
        self.made.append(_Run(arm, worker, position, seed, ran))
        return ran

    @property
    def _shown(self) -> str:
        return wording.clean(shlex.join(self.command.spec.argv), 120)

    def _blamed(self, code: ReasonCode, message: str) -> CandidateFault:
        return CandidateFault(Fault(code=code, message=message, stage=self.stage, where=Where(file=self.shown)))

    def records(self, base: Mapping[int, Ran]) -> list[CommandRun]:
        """All of them; `base`: by seed the run whose outputs the others' are compared with."""
        found = []
        for run in self.made:
            report, first = run.ran.report, base[run.seed]
            found.append(
                CommandRun(
                    arm=run.arm,
                    worker=run.worker,
                    position=run.position,
                    seed=run.seed,
                    metric=report.metric,
                    steps=report.steps,
                    wall_s=run.ran.wall_s,
                    calls=report.receipt.calls if report.receipt is not None else None,
                    difference=None if first is run.ran else difference(run.ran.outputs, first.outputs)[0],
                )
            )
        return found


def _runs(course: Course) -> _Runs:
    crew, (member,) = course.crew, course.crew.members
    assert member.built is not None
    prefix = namespace_prefix(cuda=crew.device != "cpu")
    crew.confined = bool(prefix)
    budgets = course.policy.budgets
    command = Command(
        spec=crew.workload.workload.command,
        cell=crew.cell,
        root=crew.workload.path.parent,
        device=crew.device,
        scratch=crew.scratch,
        logs=course.folder / "command" / (_folder_of(crew.cell) if course.cells > 1 else ""),
        prefix=prefix,
        timeout_s=budgets.import_s + budgets.call_s,
    )
    stage = Stage.CHECK if course.evidence.stage_finished is Stage.BUILD else Stage.VERDICT
    number = len(list(crew.scratch.glob(f"{FOLDER}*")))  # also of those that failed
    return _Runs(command, _kernel(member.built, crew.cell.dtype), number, member.kernel.shown, stage)


def _folder_of(cell: Cell) -> str:
    return f"{cell.step}-{cell.batch}x{cell.sequence}-{cell.dtype}"


def _seed(course: Course) -> int:
    """One that generators of any language take."""
    return course.seeds.take(1) % _SEEDS


def _kernel(built: Built, dtype: str) -> dict[str, Any]:
    """What the loader has to know.

    Raises:
        CandidateFault: the kernel has no entry for the dtype.
    """
    manifest = built.kernel.manifest
    stated = manifest.entry
    entry = stated if isinstance(stated, str) else next((stated[name] for name in stated if name == dtype), None)
    if entry is None:
        message = f"{built.kernel.shown} has no entry for {dtype}"
        raise CandidateFault(Fault(code=ReasonCode.DTYPE_NOT_SUPPORTED, message=message, stage=Stage.CHECK))
    named = getattr(registry.load("builders", built.builder), "module_name", None)
    return {
        "op": manifest.op,
        "binding": built.builder,
        "artifact": built.artifact,
        "entry": entry,
        "module": None if named is None else named(built.kernel),
        "outputs": _output_places(built),
    }


def _output_places(built: Built) -> list[int] | None:
    """Which arguments of a call are outputs, none where they are returned; None: it is not known."""
    manifest = built.kernel.manifest
    signature = signature_of(manifest.op) if manifest.kind == "op" else None
    if signature is None or not signature.outputs:
        return None
    if not manifest.takes_outputs:
        return []
    if manifest.args is not None:
        return [place for place, name in enumerate(manifest.args) if name.startswith(OUT)]
    last = -len(manifest.saves) - len(manifest.workspace)
    return list(range(last - signature.outputs, last))


def _know(course: Course) -> None:
    """Where it runs, and what nobody sees."""
    kind = course.crew.device.partition(":")[0]
    found = next((item for item in cuda_devices() if item.name == course.crew.device), None) if kind == "cuda" else None
    name = "CPU" if kind == "cpu" else (found.model if found and found.model else course.crew.device)
    sham = [] if course.crew.workload.workload.command.sham else [_NO_SHAM]
    course.learn(
        device=DeviceFacts(kind="cpu" if kind == "cpu" else "cuda", name=name, count_threads=thread_count()),
        unseen=[*course.evidence.unseen, *_UNSEEN, *sham, _NO_SANDBOX],
    )


def _need_repeats(course: Course, first: Ran, again: Ran) -> Ratio:
    """How far two runs of the command as it is are apart.

    Raises:
        UsageError: so far that a comparison says nothing; or there is nothing to compare.
    """
    if not first.outputs:
        raise UsageError("command: it hands over no outputs, so that nothing can be compared: `report(..., outputs)`")
    if not is_finite(first.outputs):
        raise UsageError("command: with E2E_ARM=baseline its outputs are not finite")
    apart, problem = difference(again.outputs, first.outputs)
    if apart is None or problem is not None or apart > _allowed(course):
        how = "in their form" if apart is None else f"by {apart:.1e}, and {_allowed(course):.1e} are allowed"
        raise UsageError(
            f"command: two runs with E2E_ARM=baseline and one E2E_SEED hand over outputs that differ {how}: draw "
            "everything from that seed (or state `numerics.command_error` in a policy)"
        )
    return apart


def _allowed(course: Course) -> Ratio:
    return course.policy.numerics.command_error_of(course.crew.cell.dtype)


def _zeroed(course: Course, runs: _Runs, seed: int) -> Ran | None:
    """None where the command cannot do it, which then is among what is not seen."""
    why = "its op has no outputs that could be replaced" if runs.kernel["outputs"] is None else None
    ran = None
    if why is None:
        try:
            ran = runs.zeroed(seed)
            why = None if ran.report.zeroed else "the command does not load the kernel by `e2e.external.kernel()`"
        except CommandFault as fault:
            why = f"with E2E_ARM={MUTANT} {fault.message}"
    if why is not None:
        course.learn(unseen=[*course.evidence.unseen, wording.clean(f"{_NO_MUTANT}: {why}", 300)])
    return ran if why is None else None


def _engaged(course: Course, mine: Ran, base: Ran, zeroed: Ran | None) -> None:
    """The receipt, and whether the outputs depend on what the kernel gives."""
    assert mine.report.receipt is not None
    calls, steps = mine.report.receipt.calls, mine.report.steps or 1
    proof = f"the command's receipt: {wording.count(calls, 'call')} in a run, with the built kernel's token"
    moved = None
    if zeroed is not None:
        apart, problem = difference(zeroed.outputs, base.outputs)
        moved = problem is not None or apart != 0
        caught = problem is not None or apart is None or apart > _allowed(course)
        course.learn(mutants=[MutantCheck(name="zeros", caught=caught)])
        proof += "; zeros in the place of what it gives moved the outputs" if moved else ""
    argv = wording.clean(shlex.join(course.crew.workload.workload.command.argv), 80)
    site = SiteRecord(
        fqn=SITE,
        owner=argv,
        status="patched",
        unchecked="e2e does not see into it",
        calls=max(1, round(calls / steps)),
    )
    course.learn(engagement=engagement_at([site], proof=proof, moved=moved))


def _compare(course: Course, mine: Ran, base: Ran, own: Ratio) -> None:
    apart, problem = difference(mine.outputs, base.outputs)
    allowed = _allowed(course)
    is_wrong = problem is not None or apart is None or apart > allowed
    course.learn(
        model_check=ModelCheck(
            reference="the command as it is",
            answer=Answer(what="outputs", per="number", is_distribution=False, has_labels=False),
            tokens=sum(1 if isinstance(value, str) else len(value) for value in base.outputs.values()),
            error_candidate=apart,
            error_baseline=own,
            allowed=allowed,
            kl_candidate=None,
            kl_baseline=None,
            top1_candidate=None,
            top1_baseline=None,
            status="wrong" if is_wrong else "passed",
            code=problem,
            kernel_calls=mine.report.receipt.calls if mine.report.receipt else None,
        )
    )


def _arms(course: Course, plain: Sequence[Ran], mine: Sequence[Ran]) -> list[ArmRecord]:
    def record(role: Role, runs: Sequence[Ran]) -> ArmRecord:
        times = [seconds_of(run.report, course.crew.workload.workload.command) for run in runs]
        calls = [run.report.receipt.calls for run in runs if run.report.receipt is not None]
        return ArmRecord(
            name=str(ArmName(role, Mode.COMMAND)),
            role=role,
            mode=Mode.COMMAND,
            status="ok",
            step_s=median(times) if times else None,
            kernel_calls=min(calls) if calls else None,
        )

    return [record(Role.BASELINE, plain), record(Role.CANDIDATE, mine), record(Role.SHAM, [])]


@dataclass
class _Groups:
    """What all groups so far come to."""

    runs: int = 0
    replayed: int = 0
    mismatches: dict[str, int] = field(default_factory=dict)
    pairs: int = 0
    compared: int = 0
    disagreeing: int = 0
    repeats: bool = True


def _one_group(course: Course, runs: _Runs, groups: _Groups, place: int) -> None:
    """All arms in random order, then the mirror of it, on one seed: the second run of an arm is a replay of its first.

    Raises:
        UsageError, CandidateFault: a process failed.
    """
    order = course.rng.sample(_ARMS, len(_ARMS))
    seed, spec = _seed(course), course.crew.workload.workload.command
    found: dict[str, list[Ran]] = {arm: [] for arm in order}
    segments = []
    for position, arm in enumerate([*order, *reversed(order)]):
        with course.spending("timed"):
            is_mine = arm == CANDIDATE
            ran = runs.with_kernel(seed, worker=place) if is_mine else runs.plain(arm, seed, worker=place)
        found[arm].append(ran)
        steps = ran.report.steps or 1
        seconds = steps * seconds_of(ran.report, spec)
        segments.append(
            Segment(
                phase="verdict",
                worker=place,
                block=0,
                position=position,
                arm=arm,
                steps=steps,
                seconds=seconds,
                seed=seed,
            )
        )
        course.progress.advance(position + 1, 2 * len(order), f"group {place + 1}", course.deadline.left_s)
    _audited(course, groups, found)
    step_s = median(seconds_of(ran.report, spec) for ran in found[BASELINE])
    course.learn(
        segments=[*course.evidence.segments, *segments],
        clean_times=[*course.evidence.clean_times, CleanTime(arm=BASELINE, step_s=step_s, worker=place)],
        workers_finished=course.evidence.workers_finished + 1,
        command_runs=[*course.evidence.command_runs, *runs.records(base={seed: found[BASELINE][0]})],
    )
    runs.made.clear()
    row = weigh(course.evidence, course.policy).deciding
    if row is not None:
        course.progress.note(f"so far, from {place + 1} groups: {wording.estimate(row.speedup)}, provisional")


def _audited(course: Course, groups: _Groups, found: Mapping[str, Sequence[Ran]]) -> None:
    """Every run is compared: the second of an arm with its first, and each with the command as it is."""
    allowed, base = _allowed(course), found[BASELINE][0]

    def differs(run: Ran, other: Ran) -> bool:
        apart, problem = difference(run.outputs, other.outputs)
        return problem is not None or apart is None or apart > allowed

    groups.pairs += 1
    for arm, (first, second) in found.items():
        groups.runs += 2
        groups.replayed += 1
        groups.mismatches[arm] = groups.mismatches.get(arm, 0) + differs(second, first)
    groups.compared += 2
    groups.disagreeing += sum(differs(run, base) for run in found[CANDIDATE])
    groups.repeats = groups.repeats and difference(found[BASELINE][1].outputs, base.outputs) == (0.0, None)
    course.learn(
        audit=Audit(
            steps_timed=groups.runs,
            steps_committed=groups.runs,
            steps_audited=groups.replayed,
            mismatches=[f"{arm}: {number} of {groups.pairs}" for arm, number in groups.mismatches.items() if number],
            steps_compared=groups.compared,
            disagreements=[f"{CANDIDATE}: {groups.disagreeing} of {groups.compared}"] if groups.disagreeing else [],
            baseline_repeats=groups.repeats,
        )
    )
