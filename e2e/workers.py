"""Zygotes, the workers forked from them, and who is to blame for what goes wrong in one."""

from __future__ import annotations

import hashlib
import itertools
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.cache import cache_folder
from e2e.errors import E2EError, EnvironmentFault, NoRoom, UsageError
from e2e.integrity.isolation import without_secrets
from e2e.integrity.quiescence import WINDOW_S, WINDOWS
from e2e.integrity.sandbox import Confinement, namespace, sandbox
from e2e.measure.machine import free_memory_bytes, thread_count
from e2e.processes import Worker, WorkerFault, Zygote
from e2e.protocols import Built
from e2e.schema.evidence import Fault, Where
from e2e.schema.kernel import Kernel
from e2e.schema.policy import Policy
from e2e.schema.words import ReasonCode, Stage, Trust, accusation
from e2e.units import Seconds

_KINDS = {
    "timed_out": ReasonCode.TIMED_OUT,
    "crashed": ReasonCode.CANDIDATE_CRASHED,
    "exited": ReasonCode.CANDIDATE_EXITED,
    "garbage": ReasonCode.TAMPERED,
    "raised": ReasonCode.CANDIDATE_RAISED,
}


_FOUND_AFTERWARDS = (ReasonCode.TAMPERED, ReasonCode.SETTINGS_CHANGED)
"""What a worker may find after any request: it looks at what the candidate did to its process, now or before."""
OVERLOAD = 8.0
"""Processes per core that want to run, beyond which a time limit says nothing of a kernel. Chosen, not measured."""


class CandidateFault(E2EError):
    """The candidate ended a part of the run; carries what becomes a reason."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message, code=fault.code)
        self.fault = fault


@dataclass
class Member:
    """One of the kernels that are validated together."""

    kernel: Kernel
    built: Built | None = None
    """Set when the compiler is done, which runs beside the zygotes' imports."""
    fqns: list[str] = field(default_factory=list)
    """Sites where it stands, as the survey found; no other kernel stands there."""
    fit: list[str] = field(default_factory=list)
    """Sites that compute its op, whether or not it takes them; those that another member has are left to that one."""

    @property
    def op(self) -> str:
        """Name of the op that the kernel replaces."""
        return self.kernel.manifest.op


@dataclass(kw_only=True)
class Workers:
    """A clean zygote, a candidate's zygote, and fresh processes of either; ends everything it started.

    A subclass says what a worker opens before anything is asked of it.
    """

    device: str
    seed: int
    policy: Policy
    scratch: Path
    members: list[Member]
    adopted: dict[str, Built] = field(default_factory=dict)
    """Kernels adopted earlier, which the policy names as opponents; by their arms' alternative."""
    confined: bool = False
    """Whether nothing can outlive the zygotes."""
    sandboxed: bool = False
    """Whether the candidate's processes have no network and read-only files."""
    starts_cold: dict[bool, bool] = field(default_factory=dict)
    """Whether no earlier run left compiled code in the caches: of clean workers, and of these kernels'."""
    bind_s: Seconds | None = None
    """Loading and binding the kernels in the first process that did, by the parent's clock."""
    _zygotes: dict[bool, Zygote] = field(default_factory=dict)
    _has_opened: bool = False
    """Whether a process in the sandbox has opened the workload."""
    _no_sandbox: str = "no sandbox works here"
    """Why there is none."""
    _candidates_prefix: Sequence[str] = ()
    """Command prefix of its confinement."""
    _numbers: Any = field(default_factory=itertools.count)

    def start(self, *, sides: Sequence[bool] = (True, False)) -> None:
        """Begin the zygotes' imports, side by side; nothing waits for them yet. `sides`: is it the clean one?"""
        usual = namespace(cuda=self.device != "cpu")
        self.confined = usual.has_namespace
        for clean in sides:
            caches = self._caches(clean=clean)
            self.starts_cold[clean] = not (caches.is_dir() and any(caches.iterdir()))
            own = None if clean else self._sandbox(caches)
            self._start(clean, own or usual)

    def _sandbox(self, caches: Path) -> Confinement | None:
        if not self.policy.sandbox:
            self._no_sandbox = "the policy has `sandbox: false`"
            return None
        caches.mkdir(parents=True, exist_ok=True)
        return sandbox([shared(self.scratch), caches], cuda=self.device != "cpu")

    def _start(self, clean: bool, confinement: Confinement) -> None:
        if not clean:
            self.sandboxed, self._candidates_prefix = confinement.is_sandbox, confinement.prefix
        self._zygotes[clean] = Zygote(
            self._modules(),
            environment=self._environment(clean),
            prefix=confinement.prefix,
            log=self.scratch / f"zygote-{'clean' if clean else 'candidate'}.log",
        )

    def _leave_sandbox(self, why: str) -> bool:
        """Go on without it where it is in the way of what runs no candidate; False where it cannot be blamed.

        Once a process in it has opened the workload, it works: a candidate must not get rid of it.
        """
        if not self.sandboxed or self._has_opened:
            return False
        self._no_sandbox = f"in the sandbox the workload does not open ({why.splitlines()[0]})"
        self._zygotes[False].close()
        self._start(False, namespace(cuda=self.device != "cpu"))
        return True

    def apart(self) -> tuple[Sequence[str], dict[str, str], Path]:
        """Of a further process for the candidate: command prefix, environment, and a folder that it can write to."""
        return self._candidates_prefix, self._environment(clean=False), shared(self.scratch)

    def fresh(self, do: str, *, clean: bool, **fields: Any) -> Worker:
        """A fresh process that has answered that first request; its answer is in the worker's `facts`.

        Raises:
            EnvironmentFault, UsageError: it cannot be done here.
        """
        return self.answered(self.begun(do, clean=clean, **fields), do)

    def begun(self, do: str, *, clean: bool, **fields: Any) -> Worker:
        """A fresh process with its first request sent; nothing waits for it yet."""
        number = next(self._numbers)
        private = (self.scratch if clean else shared(self.scratch)) / f"tmp-{number}"
        private.mkdir(parents=True)
        worker = self._spawned(clean, private, log=self.scratch / f"worker-{number}.log")
        worker.clean, worker.opening = clean, fields
        try:
            worker.send(
                do,
                ops=[(member.op, member.kernel.op_sha256) for member in self.members],
                device=self.device,
                seed=self.seed,
                extra_bytes=self._extra_bytes(clean),
                **fields,
            )
        except WorkerFault as fault:
            worker.close()
            raise _ours(fault) from fault
        return worker

    def _spawned(self, clean: bool, private: Path, log: Path) -> Worker:
        request = {"clean": clean, "environment": {"TMPDIR": str(private)}}
        try:
            return self._zygotes[clean].spawn(request, log=log)
        except EnvironmentFault as error:
            if clean or not self._leave_sandbox(error.message):
                raise
            return self._zygotes[clean].spawn(request, log=log)

    def answered(self, worker: Worker, do: str) -> Worker:
        """The process that was begun, with its first answer.

        Raises:
            EnvironmentFault, UsageError: it cannot be done here.
        """
        try:
            worker.facts = worker.answer(do, timeout_s=self.policy.budgets.import_s)
        except WorkerFault as fault:
            worker.close()
            if not worker.clean and self._leave_sandbox(fault.message):
                return self.fresh(do, clean=False, **worker.opening)
            raise _ours(fault) from fault
        self._has_opened |= not worker.clean
        return worker

    def bind(self, worker: Worker, fqns: list[str], *, stage: Stage) -> None:
        """Load the kernels that stand at any of those sites into a worker, in the place of what it may hold already.

        Kernels adopted earlier go with the first kernel of their op.

        Raises:
            CandidateFault: a kernel could not be loaded.
        """
        start = time.monotonic()
        for part, member in enumerate(self.members):
            own = [fqn for fqn in fqns if fqn in member.fqns]
            if member.fqns and not own:
                continue
            is_first = member.op not in [other.op for other in self.members[:part]]
            adopted = {
                name: built.model_dump(mode="json")
                for name, built in self.adopted.items()
                if is_first and built.kernel.manifest.op == member.op
            }
            assert member.built is not None
            built = member.built.model_dump(mode="json")
            self.ask(worker, "bind", stage=stage, member=member, part=part, built=built, fqns=own, adopted=adopted)
        self.bind_s = time.monotonic() - start if self.bind_s is None else self.bind_s

    def ask(
        self,
        worker: Worker,
        do: str,
        *,
        stage: Stage,
        timeout_s: float | None = None,
        member: Member | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """Ask for something that runs the candidate; its faults become reasons. `member`: of which kernel alone.

        Raises:
            CandidateFault: it raised, crashed, hung or exited.
        """
        self.send(worker, do, stage=stage, member=member, **fields)
        return self.hear(worker, do, stage=stage, timeout_s=timeout_s, member=member)

    def send(self, worker: Worker, do: str, *, stage: Stage, member: Member | None = None, **fields: Any) -> None:
        """The first half of `ask`: nothing waits for the answer yet."""
        try:
            worker.send(do, **fields)
        except WorkerFault as fault:
            raise self.blame(fault, stage=stage, worker=worker, member=member) from fault

    def hear(
        self, worker: Worker, do: str, *, stage: Stage, timeout_s: float | None = None, member: Member | None = None
    ) -> dict[str, Any]:
        """The second half of `ask`."""
        try:
            return worker.answer(do, timeout_s=timeout_s or self.policy.budgets.call_s)
        except WorkerFault as fault:
            raise self.blame(fault, stage=stage, worker=worker, member=member) from fault

    def blame(self, fault: WorkerFault, *, stage: Stage, worker: Worker, member: Member | None = None) -> E2EError:
        """The fault as the candidate's; as the machine's, where time ran out and far too many processes want it."""
        if fault.kind == "timed_out" and os.getloadavg()[0] > OVERLOAD * (os.cpu_count() or 1):
            worker.close()
            return EnvironmentFault(
                f"{fault.message}, but this machine is overloaded ({os.getloadavg()[0]:.0f} processes want its "
                f"{os.cpu_count()} cores): nothing can be said of the kernel; run again when it is quiet"
            )
        code = accusation(fault.reason) or _KINDS[fault.kind]
        said = worker.output(600)
        message = fault.message + (f"; it printed: {said}" if said and fault.kind != "raised" else "")
        where = self._where(member, fault.line)
        worker.close()
        return CandidateFault(Fault(code=code, message=message, stage=stage, where=where))

    def require(
        self,
        worker: Worker,
        do: str,
        *,
        stage: Stage = Stage.CHECK,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """Ask for something that runs no candidate; a fault there is the environment's or ours.

        Raises:
            CandidateFault: the candidate ended the process it shares, or a clean worker accuses it.
        """
        try:
            return worker.call(do, timeout_s=timeout_s or self.policy.budgets.call_s, **fields)
        except WorkerFault as fault:
            if not worker.clean and (fault.kind != "raised" or fault.reason in _FOUND_AFTERWARDS):
                raise self.blame(fault, stage=stage, worker=worker) from fault
            if self._is_robbed():
                message = f"files of the run that no kernel has business with were deleted; then {fault.message}"
                found = Fault(code=ReasonCode.TAMPERED, message=message, stage=stage, where=self._where(None))
                raise CandidateFault(found) from fault
            code = accusation(fault.reason)
            if worker.clean and code is not None and code is not ReasonCode.OUT_OF_MEMORY:
                found = Fault(code=code, message=fault.message, stage=stage, where=self._where(None))
                raise CandidateFault(found) from fault
            raise _ours(fault) from fault

    def _is_robbed(self) -> bool:
        """Whether the scratch folder is not what it was: without a sandbox a candidate can delete it."""
        return not all(zygote.log.exists() for zygote in self._zygotes.values())

    def _where(self, member: Member | None, line: int | None = None) -> Where:
        """The file to look at; of several kernels no one knows which, until they are tried apart."""
        known = self.members[0] if len(self.members) == 1 else member
        return Where(file=known.kernel.shown, line=line) if known is not None else Where()

    def see_rest(self, worker: Worker, *, stage: Stage) -> None:
        """Between two requests a worker has nothing to do, nor has anything that it started.

        Raises:
            CandidateFault: `work_outside_step`.
        """
        used = worker.restless_s()
        if used is not None:
            share = round(100 * used / WINDOW_S)
            message = f"asked for nothing, its processes used at least {share} % of a core in each of {WINDOWS} looks"
            worker.close()
            fault = Fault(code=ReasonCode.WORK_OUTSIDE_STEP, message=message, stage=stage, where=self._where(None))
            raise CandidateFault(fault)

    def remarks(self) -> list[str]:
        """What the report should say about the processes themselves."""
        extra = {name for zygote in self._zygotes.values() for name in zygote.threads[1:]}
        found = [f"single-threaded forks: imports started {', '.join(sorted(extra))}"] if extra else []
        if self._zygotes and self.trust is Trust.SAME_USER:
            found.append(f"what the kernel did to files and network: {self._no_sandbox}")
        return found if self.confined else [*found, "escaped processes: no PID namespace here"]

    @property
    def trust(self) -> Trust:
        """What host code the kernels bring, and what it can reach."""
        kernels = [*(member.kernel for member in self.members), *(built.kernel for built in self.adopted.values())]
        if all(kernel.manifest.binding == "raw" for kernel in kernels):
            return Trust.RAW
        return Trust.SANDBOXED if self.sandboxed else Trust.SAME_USER

    def close(self) -> None:
        """End every process."""
        for zygote in self._zygotes.values():
            zygote.close()
        self._zygotes = {}

    def _modules(self) -> list[str]:
        """What every worker needs, imported once."""
        return ["torch", "safetensors.torch", "numpy"]

    def _extra_bytes(self, clean: bool) -> int | None:
        """Most host memory beyond its start that a candidate's process may take; None for no limit."""
        if self.device != "cpu" or clean:
            return None
        free = free_memory_bytes()
        return self.policy.budgets.host_bytes or (free // 2 if free else None)

    def _environment(self, clean: bool) -> dict[str, str]:
        caches = self._caches(clean=clean)
        return {
            **(without_secrets(os.environ)),
            "TMPDIR": str(self.scratch if clean else shared(self.scratch)),
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
            "TRITON_CACHE_DIR": str(caches / "triton"),
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": str(thread_count()),
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",  # nor one that a login left on disk: `fetching` has used it
            "KINETO_LOG_LEVEL": "99",
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",  # more would start a pool, hence threads, in the zygote
            **(_homes(caches) if self.sandboxed and not clean else {}),
        }

    def _caches(self, *, clean: bool) -> Path:
        """Of compiled code: a candidate could poison what it can write, so each one has its own copy."""
        owner = f"clean-{self._clean_owner()}" if clean else self._candidate_owner()[:16]
        return cache_folder() / "compiled" / owner

    def _candidate_owner(self) -> str:
        """Hash of the kernels; of one, its own."""
        first, *more = [member.kernel.sha256 for member in self.members]
        return hashlib.sha256("".join([first, *more]).encode()).hexdigest() if more else first

    def _clean_owner(self) -> str:
        """Whose clean workers' compiled code it is."""
        return "op"


def shared(scratch: Path) -> Path:
    """The part of the scratch folder that processes with the candidate write to; what others rely on lies beside it."""
    folder = scratch / "shared"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _homes(caches: Path) -> dict[str, str]:
    """In a sandbox: folders of a candidate's own for what libraries keep, and those that they read where they are."""
    usual = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    read = {"HF_HOME": usual / "huggingface", "TORCH_HOME": usual / "torch", "E2E_CACHE_DIR": cache_folder()}
    own = {name: caches / name.lower() for name in ("XDG_CACHE_HOME", "TORCH_EXTENSIONS_DIR", "CUDA_CACHE_PATH")}
    left = {name: path for name, path in read.items() if name not in os.environ}
    return {**{name: str(path) for name, path in {**left, **own}.items()}, "HF_HUB_OFFLINE": "1"}


def _ours(fault: WorkerFault) -> E2EError:
    if fault.reason == "usage":
        return UsageError(fault.message)
    if fault.reason == "out_of_memory":
        return NoRoom(fault.message)
    if fault.reason == "environment":
        return EnvironmentFault(fault.message)
    return E2EError(f"a process without the candidate failed: {fault.message}")
