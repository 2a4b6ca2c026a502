"""The processes of one cell: a clean zygote, a candidate's zygote, and the workers forked from them."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from e2e.cache import cache_folder
from e2e.configuration import LoadedWorkload
from e2e.errors import E2EError, EnvironmentFault, UsageError
from e2e.exam import Exam
from e2e.integrity.isolation import WARM_COMPILER, free_memory_bytes, namespace_prefix, without_secrets
from e2e.measure.machine import has_vectors, thread_count
from e2e.processes import Worker, WorkerFault, Zygote
from e2e.protocols import Built
from e2e.schema.evidence import Fault, Where
from e2e.schema.kernel import Kernel
from e2e.schema.policy import Policy
from e2e.schema.words import ReasonCode, Stage, accusation
from e2e.schema.workload import Cell
from e2e.surroundings import packages
from e2e.units import Seconds

MANY_CORES = 8
"""From here on compiling in parallel pays; below, the processes only slow each other."""
_MODULES = ("transformers", "safetensors.torch", "numpy")
_COMPILER = ("torch._dynamo", "torch._inductor.compile_fx")
_KINDS = {
    "timed_out": ReasonCode.TIMED_OUT,
    "crashed": ReasonCode.CANDIDATE_CRASHED,
    "exited": ReasonCode.CANDIDATE_EXITED,
    "garbage": ReasonCode.TAMPERED,
    "raised": ReasonCode.CANDIDATE_RAISED,
}


class CandidateFault(E2EError):
    """The candidate ended a part of the run; carries what becomes a reason."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message, code=fault.code)
        self.fault = fault


@dataclass
class Crew:
    """Starts workers that have the workload open; ends everything it started."""

    workload: LoadedWorkload
    cell: Cell
    op: str
    device: str
    seed: int
    """Of what is timed, and of what the op alone is checked on."""
    exam: Exam
    policy: Policy
    scratch: Path
    kernel: Kernel
    built: Built | None = None
    """Set when the compiler is done, which runs beside the zygotes' imports."""
    compiles: bool = True
    """Whether a stage that compiles may come."""
    confined: bool = False
    adopted: dict[str, Built] = field(default_factory=dict)
    """Kernels adopted earlier, which the policy names as opponents; by their arms' alternative."""
    fit: list[str] = field(default_factory=list)
    """Sites that compute the op, as the survey found, whether or not the candidate takes them."""
    starts_cold: dict[bool, bool] = field(default_factory=dict)
    """Whether no earlier run left compiled code in the caches: of clean workers, and of this kernel's."""
    bind_s: Seconds | None = None
    """Loading and binding the candidate in the first process that did, by the parent's clock."""
    _zygotes: dict[bool, Zygote] = field(default_factory=dict)
    _numbers: Any = field(default_factory=itertools.count)
    _weights: str | None = None
    """Checksum of the model, as the first process built it."""

    def start(self) -> None:
        """Begin both zygotes' imports, side by side; nothing waits for them yet."""
        prefix = namespace_prefix(cuda=self.device != "cpu")
        self.confined = bool(prefix)
        for clean in (True, False):
            caches = self._caches(clean=clean)
            self.starts_cold[clean] = not (caches.is_dir() and any(caches.iterdir()))
            self._zygotes[clean] = Zygote(
                [*(_COMPILER if self.compiles else ()), *_MODULES, *self._model_modules()],
                environment=self._environment(clean),
                prefix=prefix,
                log=self.scratch / f"zygote-{'clean' if clean else 'candidate'}.log",
            )

    def warm(self) -> None:
        """Let the zygotes warm the compiler for the workers that compile, beside those that only examine."""
        for clean, zygote in self._zygotes.items():
            if self._compiles(clean):
                zygote.warm()

    def worker(self, *, clean: bool) -> Worker:
        """A fresh process with the workload open.

        Raises:
            EnvironmentFault, UsageError: the workload cannot be opened here.
        """
        return self.opened(self.begin(clean=clean))

    def begin(self, *, clean: bool) -> Worker:
        """A fresh process that begins to open the workload; nothing waits for it yet."""
        number = next(self._numbers)
        private = self.scratch / f"tmp-{number}"
        private.mkdir()
        worker = self._zygotes[clean].spawn(
            {"clean": clean, "environment": {"TMPDIR": str(private)}},
            log=self.scratch / f"worker-{number}.log",
        )
        worker.clean = clean
        try:
            worker.send("open", **self._opening(clean))
        except WorkerFault as fault:
            worker.close()
            raise _ours(fault) from fault
        return worker

    def opened(self, worker: Worker) -> Worker:
        """The process that was begun, with the workload open.

        Raises:
            EnvironmentFault, UsageError: the workload cannot be opened here.
        """
        try:
            worker.facts = worker.answer("open", timeout_s=self.policy.budgets.import_s)
        except WorkerFault as fault:
            worker.close()
            raise _ours(fault) from fault
        self._weights = self._weights or worker.facts["weights"]
        if worker.facts["weights"] != self._weights:
            worker.close()
            raise UsageError(
                "two processes built two different models from this workload: some of its weights are drawn without a "
                "seed (missing from the checkpoint, or made by model.factory), so that outputs cannot be compared"
            )
        return worker

    def candidate_worker(self, fqns: list[str], *, stage: Stage, begun: Worker | None = None) -> Worker:
        """A fresh process, or the one begun for it, with the candidate bound at those sites, ready for arms.

        Raises:
            CandidateFault: the candidate could not be loaded.
        """
        worker = self.worker(clean=False) if begun is None else self.opened(begun)
        self.bind(worker, fqns, stage=stage)
        self.make_arena(worker, stage=stage)
        return worker

    def make_arena(self, worker: Worker, *, stage: Stage = Stage.CHECK) -> None:
        """Make the place where arms live; known sites come from the survey."""
        self.require(worker, "arena", stage=stage, fqns=self.fit)

    def bind(self, worker: Worker, fqns: list[str], *, stage: Stage) -> None:
        """Load the candidate into a worker, in the place of what it may hold already.

        Raises:
            CandidateFault: the candidate could not be loaded.
        """
        assert self.built is not None
        adopted = {name: built.model_dump(mode="json") for name, built in self.adopted.items()}
        start = time.monotonic()
        self.ask(worker, "bind", stage=stage, built=self.built.model_dump(mode="json"), fqns=fqns, adopted=adopted)
        self.bind_s = time.monotonic() - start if self.bind_s is None else self.bind_s

    def has_compiled(self, arms: Sequence[str]) -> bool:
        """Whether an earlier run's clean processes compiled these arms; what the cache has lost since costs time."""
        return self._compiled(arms).is_file()

    def know_compiled(self, arms: Sequence[str]) -> None:
        """This run's clean processes did, for later runs with another kernel."""
        with contextlib.suppress(OSError):
            self._compiled(arms).touch()

    def _compiled(self, arms: Sequence[str]) -> Path:
        opening = {name: value for name, value in self._opening(True).items() if name not in ("exam", "seed")}
        asked = [opening, sorted(arms), packages()]
        return self._caches(clean=True) / f"{hashlib.sha256(json.dumps(asked).encode()).hexdigest()}.done"

    def hand_over_compiled(self, *, is_earlier: bool = False) -> None:
        """Give this kernel's workers what clean ones compiled, over whatever an earlier run of it left there.

        If it is an earlier run's, no first step of this one is cold. The next kernel finds the model's own code
        compiled, and no kernel can slow down or spoil its opponents' for a later run.
        """
        source = self._caches(clean=True)
        if source.is_dir():
            shutil.copytree(source, self._caches(clean=False), dirs_exist_ok=True)
            self.starts_cold |= {False: False} if is_earlier else {}

    def ask(
        self, worker: Worker, do: str, *, stage: Stage, timeout_s: float | None = None, **fields: Any
    ) -> dict[str, Any]:
        """Ask for something that runs the candidate; its faults become reasons.

        Raises:
            CandidateFault: it raised, crashed, hung or exited.
        """
        try:
            return worker.call(do, timeout_s=timeout_s or self.policy.budgets.call_s, **fields)
        except WorkerFault as fault:
            raise self.blame(fault, stage=stage, worker=worker) from fault

    def blame(self, fault: WorkerFault, *, stage: Stage, worker: Worker) -> CandidateFault:
        """The fault as the candidate's."""
        code = accusation(fault.reason) or _KINDS[fault.kind]
        said = worker.output(600)
        message = fault.message + (f"; it printed: {said}" if said and fault.kind != "raised" else "")
        where = Where(file=self.kernel.shown, line=fault.line)
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
            if not worker.clean and fault.kind != "raised":
                raise self.blame(fault, stage=stage, worker=worker) from fault
            code = accusation(fault.reason)
            if worker.clean and code is not None and code is not ReasonCode.OUT_OF_MEMORY:
                where = Where(file=self.kernel.spec)
                found = Fault(code=code, message=fault.message, stage=stage, where=where)
                raise CandidateFault(found) from fault
            raise _ours(fault) from fault

    def remarks(self) -> list[str]:
        """What the report should say about the processes themselves."""
        extra = {name for zygote in self._zygotes.values() for name in zygote.threads[1:]}
        found = [f"single-threaded forks: imports started {', '.join(sorted(extra))}"] if extra else []
        return found if self.confined else [*found, "escaped processes: no PID namespace here"]

    def close(self) -> None:
        """End every process."""
        for zygote in self._zygotes.values():
            zygote.close()
        self._zygotes = {}

    def _opening(self, clean: bool) -> dict[str, Any]:
        extra = None
        if self.device == "cpu" and not clean:
            free = free_memory_bytes()
            extra = self.policy.budgets.host_bytes or (free // 2 if free else None)
        return {
            "workload": self.workload.workload.model_dump(mode="json"),
            "cell": self.cell.model_dump(mode="json"),
            "op": self.op,
            "root": str(self.workload.path.parent),
            "device": self.device,
            "seed": self.seed,
            "exam": {**asdict(self.exam), "folder": str(self.exam.folder) if self.exam.folder else None},
            "threads": thread_count(),
            # it examines while others compile: on few cores its threads would wait for each other, and hold the cores
            "exam_threads": 1 if clean and self.device == "cpu" and thread_count() < MANY_CORES else thread_count(),
            "extra_bytes": extra,
        }

    def _environment(self, clean: bool) -> dict[str, str]:
        caches = self._caches(clean=clean)
        return {
            **(without_secrets(os.environ)),
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
            "TRITON_CACHE_DIR": str(caches / "triton"),
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": str(thread_count()),
            "TOKENIZERS_PARALLELISM": "false",
            "KINETO_LOG_LEVEL": "99",
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",  # more would start a pool, hence threads, in the zygote
            # the first compilation of a process imports for seconds: once, before the forks of those that compile
            **({WARM_COMPILER: "compile" if self.device == "cpu" else "import"} if self._compiles(clean) else {}),
            # Inductor compiles a probe per vector extension, 5 s of a cold start; the flags are there to read
            **({"TORCHINDUCTOR_VEC_ISA_OK": "1"} if has_vectors() else {}),
        }

    def _compiles(self, clean: bool) -> bool:
        is_asked = self.compiles and any(mode.is_compiled for mode in self.policy.modes)
        return is_asked and (not clean or thread_count() >= MANY_CORES)

    def _caches(self, *, clean: bool) -> Path:
        """Of compiled code: a candidate could poison what it can write, so each kernel has its own copy."""
        owner = f"clean-{self.workload.sha256[:16]}" if clean else self.kernel.sha256[:16]
        return cache_folder() / "compiled" / owner

    def _model_modules(self) -> list[str]:
        spec = self.workload.workload.model
        model_type = spec.config.get("model_type")
        config = self.workload.path.parent / str(spec.id) / "config.json"
        if model_type is None and config.is_file():
            with contextlib.suppress(ValueError, OSError, AttributeError, RecursionError):  # its reader says it better
                model_type = json.loads(config.read_bytes()).get("model_type")
        known = isinstance(model_type, str) and model_type.isidentifier()
        return [f"transformers.models.{model_type}.modeling_{model_type}"] if known else []


def _ours(fault: WorkerFault) -> E2EError:
    if fault.reason == "usage":
        return UsageError(fault.message)
    if fault.reason in ("environment", "out_of_memory"):
        return EnvironmentFault(fault.message)
    return E2EError(f"a process without the candidate failed: {fault.message}")


class Deadline:
    """What is left of the cell's time."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._end - time.monotonic())
