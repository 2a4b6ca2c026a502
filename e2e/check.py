"""PARENT: `e2e check`: whether a kernel computes its op, on the op's own inputs, without a workload."""

from __future__ import annotations

import platform
import secrets
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

from e2e import guard
from e2e.assembly import near
from e2e.building import compiled
from e2e.cache import cache_folder
from e2e.capture_files import Captures, find_captures
from e2e.configuration import load_policy
from e2e.errors import UsageError
from e2e.exam import SEED_SPACE
from e2e.judge import judge
from e2e.measure.devices import Device, find_device, reserved
from e2e.measure.machine import thread_count
from e2e.processes import Worker
from e2e.protocols import Progress
from e2e.reading import read_kernel
from e2e.sanitizers import SLOWER, Sanitizers, Surroundings, faults_of
from e2e.schema.answers import REACHED
from e2e.schema.check import CheckReport, DtypeCheck, TorchCheck
from e2e.schema.evidence import DeviceFacts, Evidence, Fault, MutantCheck, SanitizerRun, TrainingCheck
from e2e.schema.kernel import Kernel
from e2e.schema.policy import Policy
from e2e.schema.result import METHOD
from e2e.schema.verdict import Reason, Verdict
from e2e.schema.words import Outcome, ReasonCode, Stage
from e2e.schema.workload import DType
from e2e.scratch import scratch_folder
from e2e.signatures import signature_of
from e2e.stages.correctness import op_checks
from e2e.surroundings import packages
from e2e.workers import CandidateFault, Member, Workers, shared
from e2e.yaml_lines import printable

STAGE = Stage.CHECK
CALL_S = 60.0
"""Seconds that a kernel has for all inputs of one dtype: they are small, and its first call may compile."""
_WORST_FIRST = (Outcome.INCORRECT, Outcome.FAILED, Outcome.INCONCLUSIVE)
_TORCH_CODES = {"called": ReasonCode.INPUTS_CHANGED, "faked": ReasonCode.WRONG_OUTPUT_LAYOUT}


@dataclass(frozen=True)
class CheckRequest:
    """One call of `e2e check`."""

    kernel: str
    op: str | None = None
    dtypes: tuple[str, ...] = ()
    captures: str | None = None
    """A file of captured inputs, or a run that holds some; None for the op's own examples."""
    device: str = "auto"
    seed: int | None = None
    sanitize: bool = False
    command: tuple[str, ...] = ()


def check(request: CheckRequest, progress: Progress) -> CheckReport:
    """Build the kernel, and hold it against the op's reference in every dtype that it declares.

    Raises:
        UsageError: the caller's mistake, or an op whose calls only a model can give.
        EnvironmentFault: this machine cannot run it.
    """
    started = time.monotonic()
    kernel = read_kernel(request.kernel, op=request.op)
    dtypes = _dtypes(request, kernel)
    captured = None
    if request.captures is not None:
        captured = find_captures(request.captures, op=kernel.manifest.op)
        dtypes = [_captured_dtype(captured, dtypes, kernel)]
    device = find_device(request.device, kernel_device=kernel.manifest.device)
    sanitizers = Sanitizers(kernel, device=device.name) if request.sanitize else None
    seed = secrets.randbelow(SEED_SPACE) if request.seed is None else request.seed
    policy = _policy()
    with scratch_folder() as scratch:
        workers = OpWorkers(device=device.name, seed=seed, policy=policy, scratch=scratch, members=[Member(kernel)])
        try:
            with reserved(device, cache_folder() / "locks", progress.note):
                checks, verdict, facts = _checks(workers, device, dtypes, captured, progress, sanitizers)
                unseen = workers.remarks() if checks else []
        finally:
            workers.close()
    worst = min((item for item in checks if item.outcome is not None), key=_badness, default=None)
    return CheckReport(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=time.monotonic() - started,
        command=list(request.command),
        again=_again(request, seed, worst),
        captures=near(str(captured.path)) if captured else None,
        outcome=worst.outcome if worst else verdict.outcome if verdict else None,
        reasons=worst.reasons if worst else verdict.reasons if verdict else _advice(checks),
        kernel=kernel.model_copy(update={"path": near(kernel.path)}),
        device=facts,
        seed=seed,
        error_ratio=policy.numerics.error_ratio,
        dtypes=checks,
        method=METHOD,
        environment={
            "platform": platform.platform(),
            "python": platform.python_version(),
            "packages": packages(),
            "arch": device.arch,
        },
        unseen=unseen,
    )


def _dtypes(request: CheckRequest, kernel: Kernel) -> Sequence[DType]:
    """Those asked for, else those that the kernel declares.

    Raises:
        UsageError: one is asked for that the kernel does not declare.
    """
    declared = kernel.manifest.dtypes
    for dtype in request.dtypes:
        if dtype not in get_args(DType):
            raise UsageError(f"--dtype {printable(dtype)}: expected one of {', '.join(get_args(DType))}")
        if dtype not in declared:
            raise UsageError(f"--dtype {dtype}: {kernel.spec} declares {', '.join(declared)}")
    return [dtype for dtype in declared if not request.dtypes or dtype in request.dtypes]


def _captured_dtype(captured: Captures, dtypes: Sequence[DType], kernel: Kernel) -> DType:
    """That of the captured inputs.

    Raises:
        UsageError: it is not one that the kernel declares, or none that was asked for.
    """
    for dtype in dtypes:
        if dtype == captured.dtype:
            return dtype
    named = f"{kernel.spec} is checked in {', '.join(dtypes)}"
    raise UsageError(f"--captures {captured.path}: inputs in {captured.dtype}, and {named}")


def _checks(
    workers: Workers,
    device: Device,
    dtypes: Sequence[DType],
    captured: Captures | None,
    progress: Progress,
    sanitizers: Sanitizers | None,
) -> tuple[list[DtypeCheck], Verdict | None, DeviceFacts | None]:
    """One check per dtype; or, where the kernel does not build, what that means."""
    workers.start()  # before the compiler, whose time the imports then share
    (member,) = workers.members
    progress.stage("build", member.kernel.spec)
    built = compiled(member.kernel, device, timeout_s=workers.policy.budgets.build_s)
    if isinstance(built, Fault):
        return [], judge(_evidence(faults=[built]), workers.policy), None
    member.built = built
    look = _Look(sanitizers, workers, device) if sanitizers else None
    guarded = guard.findings(member.kernel)
    checks: list[DtypeCheck] = []
    for dtype in dtypes:
        progress.stage("check", f"{member.op} in {dtype}, against float64")
        with workers.fresh("open_op", clean=True, dtype=dtype) as clean:
            checks.append(_DtypeRun(workers, clean, dtype, captured, look, guarded).check())
            name, memory = clean.facts["device"], clean.facts["memory"]
    kind = "cpu" if device.name == "cpu" else "cuda"
    facts = DeviceFacts(kind=kind, name=name, count_threads=thread_count(), total_memory_bytes=memory)
    return checks, None, facts


class OpWorkers(Workers):
    """Workers that have the op open, and no model."""

    def _modules(self) -> list[str]:
        # of torch's opcheck: 2 s to import, which each worker would spend again
        return [*super()._modules(), "torch.testing._internal.optests"]


def _policy() -> Policy:
    """The built-in thresholds, with a time limit that suits single calls."""
    policy = load_policy(None)
    return policy.model_copy(update={"budgets": policy.budgets.model_copy(update={"call_s": CALL_S})})


class _Look:
    """Sanitizers over the calls of a check, with a build of its own."""

    def __init__(self, sanitizers: Sanitizers, workers: Workers, device: Device) -> None:
        self._sanitizers, self._workers = sanitizers, workers
        kernel, timeout_s = workers.members[0].kernel, workers.policy.budgets.build_s
        self._built = compiled(kernel, device, timeout_s=timeout_s, sanitize=True)

    def over(self, calls: str, dtype: DType) -> Iterator[SanitizerRun | Fault]:
        """What each tool saw."""
        if isinstance(self._built, Fault):
            yield self._built
            return
        around = Surroundings(*self._workers.apart(), timeout_s=SLOWER * self._workers.policy.budgets.call_s)
        yield from self._sanitizers.look(self._built, dtype=dtype, calls=Path(calls), around=around)


class _DtypeRun:
    """One dtype's way through the check: what was found before a fault stays."""

    def __init__(
        self,
        workers: Workers,
        clean: Worker,
        dtype: DType,
        captured: Captures | None,
        look: _Look | None,
        guarded: list[str],
    ) -> None:
        self._look, self._guard = look, guarded
        self._captured = str(captured.path.resolve()) if captured else None
        self._workers, self._clean, self._dtype = workers, clean, dtype
        self._ratio = workers.policy.numerics.error_ratio
        self._calls = str(workers.scratch / f"{dtype}.calls")
        self._outputs, self._gradients = (
            str(shared(workers.scratch) / f"{dtype}.{name}") for name in ("outputs", "gradients")
        )
        self._found: dict[str, Any] = {"inputs": [], "mutants": [], "gradients": None, "torch": None, "sanitizers": []}

    def check(self) -> DtypeCheck:
        """Everything, or as much as the kernel lets happen."""
        faults = []
        self._workers.require(self._clean, "draw", path=self._calls, captured=self._captured)
        try:
            with self._workers.fresh("open_op", clean=False, dtype=self._dtype) as worker:
                self._workers.bind(worker, [], stage=STAGE)
                faults += list(self._run(worker))
        except CandidateFault as caught:
            faults.append(self._located(caught.fault))
        for seen in self._look.over(self._calls, self._dtype) if self._look else ():
            faults += [seen] if isinstance(seen, Fault) else faults_of(seen, stage=STAGE)
            self._found["sanitizers"] += [] if isinstance(seen, Fault) else [seen]
        evidence = _evidence(
            guard=self._guard,
            op_checks=self._found["inputs"],
            mutants=self._found["mutants"],
            training=self._found["gradients"],
            faults=faults,
        )
        verdict = judge(evidence, self._workers.policy)
        return DtypeCheck(dtype=self._dtype, outcome=verdict.outcome, reasons=verdict.reasons, **self._found)

    def _run(self, worker: Worker) -> Iterator[Fault]:
        ask, require = self._workers.ask, self._workers.require
        remarks = ask(worker, "run_ops", stage=STAGE, inputs=self._calls, outputs=self._outputs)["remarks"]
        rows = require(self._clean, "compare_ops", outputs=self._outputs, ratio=self._ratio)["checks"]
        is_lossy = self._workers.members[0].kernel.manifest.lossy_in(self._dtype) is not None
        inputs = op_checks(rows, remarks, is_lossy=is_lossy)
        mutants = require(self._clean, "mutants", ratio=self._ratio)["mutants"]
        self._found |= {"inputs": inputs, "mutants": [MutantCheck.model_validate(row) for row in mutants]}
        if inputs[0].status not in ("passed", "lossy"):
            return
        signature = signature_of(self._workers.members[0].kernel.manifest.op)
        if signature is None or signature.outputs:  # what works in place is never registered
            said = TorchCheck.model_validate(ask(worker, "opcheck", stage=STAGE, inputs=self._calls))
            self._found["torch"] = said
            for name, code in _TORCH_CODES.items():
                if (text := getattr(said, name)) is not None:
                    yield Fault(code=code, message=f"torch's opcheck: {text}", stage=STAGE)
        if self._workers.members[0].kernel.manifest.backward is not None:
            ask(worker, "op_gradients", stage=STAGE, inputs=self._calls, path=self._gradients)
            row = require(self._clean, "compare_op_gradients", path=self._gradients, ratio=self._ratio)
            self._found["gradients"] = TrainingCheck.model_validate(row)

    def _located(self, fault: Fault) -> Fault:
        """The fault with the input that the kernel was given last, if its process got that far."""
        reached = Path(self._outputs).with_suffix(REACHED)
        if self._found["inputs"] or not reached.is_file():
            return fault
        position = printable(reached.read_text(errors="replace"))
        return fault.model_copy(update={"where": fault.where.model_copy(update={"position": position})})


def _evidence(**found: Any) -> Evidence:
    """What was found, as a run of `e2e validate --until check` would have it."""
    return Evidence(stage_asked=STAGE, stage_finished=STAGE, **found)


def _advice(checks: Sequence[DtypeCheck]) -> list[Reason]:
    """Of a check that passed: what its dtypes have to say all the same, once."""
    return list({reason.code: reason for item in checks for reason in item.reasons}.values())


def _badness(item: DtypeCheck) -> int:
    return _WORST_FIRST.index(item.outcome) if item.outcome in _WORST_FIRST else len(_WORST_FIRST)


def _again(request: CheckRequest, seed: int, worst: DtypeCheck | None) -> str:
    words = ["e2e", "check", request.kernel]
    words += ["--op", request.op] if request.op else []
    dtypes = (worst.dtype,) if worst else request.dtypes
    words += [word for dtype in dtypes for word in ("--dtype", dtype)]
    words += ["--captures", request.captures] if request.captures else []
    words += ["--device", request.device] if request.device != "auto" else []
    words += ["--sanitize"] if request.sanitize else []
    return shlex.join([*words, "--seed", str(seed)])
