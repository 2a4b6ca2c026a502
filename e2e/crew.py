"""The processes of one cell: workers that have the workload open."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from e2e.configuration import LoadedWorkload
from e2e.errors import UsageError
from e2e.exam import Exam
from e2e.integrity.isolation import WARM_COMPILER
from e2e.measure.machine import has_vectors, thread_count
from e2e.model_files import is_needed, place_of
from e2e.processes import Worker
from e2e.schema.words import Stage
from e2e.schema.workload import Cell
from e2e.surroundings import packages
from e2e.workers import Workers

MANY_CORES = 8
"""From here on compiling in parallel pays; below, the processes only slow each other."""
_COMPILER = ("torch._dynamo", "torch._inductor.compile_fx")


@dataclass(kw_only=True)
class Crew(Workers):
    """Starts workers that have the workload open."""

    workload: LoadedWorkload
    cell: Cell
    exam: Exam
    compiles: bool = True
    """Whether a stage that compiles may come."""
    weights: str | None = None
    """Checksum of the model, as the first process built it."""

    @property
    def ops(self) -> list[str]:
        """Names of the ops that the kernels replace."""
        return [member.op for member in self.members]

    def warm(self) -> None:
        """Let the zygotes warm the compiler for the workers that compile, beside those that only examine."""
        for clean, zygote in self._zygotes.items():
            if self._compiles(clean):
                zygote.warm()

    @property
    def has_to_fetch(self) -> bool:
        """Whether opening the workload may write files or ask the network, which a sandbox allows nobody.

        Then the clean process opens it first: later ones find what it fetched.
        """
        spec = self.workload.workload.model
        if not self.sandboxed:
            return False
        if spec.trust_remote_code:
            return True
        place = place_of(spec, self.workload.path.parent) if is_needed(spec) else None
        return place is not None and (place.hub is not None or place.is_gguf)

    def worker(self, *, clean: bool) -> Worker:
        """A fresh process with the workload open.

        Raises:
            EnvironmentFault, UsageError: the workload cannot be opened here.
        """
        return self.opened(self.begin(clean=clean))

    def begin(self, *, clean: bool) -> Worker:
        """A fresh process that begins to open the workload; nothing waits for it yet."""
        return self.begun("open", clean=clean, **self._opening(clean))

    def opened(self, worker: Worker) -> Worker:
        """The process that was begun, with the workload open.

        Raises:
            EnvironmentFault, UsageError: the workload cannot be opened here.
        """
        self.answered(worker, "open")
        self.weights = self.weights or worker.facts["weights"]
        if worker.facts["weights"] != self.weights:
            worker.close()
            raise UsageError(
                "two processes built two different models from this workload: some of its weights are drawn without a "
                "seed (missing from the checkpoint, or made by model.factory), so that outputs cannot be compared"
            )
        return worker

    def candidate_worker(self, fqns: list[str], *, stage: Stage, begun: Worker | None = None) -> Worker:
        """A fresh process, or the one begun for it, ready for arms, with the kernels bound that stand at those sites.

        Raises:
            CandidateFault: the candidate could not be loaded.
        """
        worker = self.worker(clean=False) if begun is None else self.opened(begun)
        self.bind(worker, fqns, stage=stage)
        self.make_arena(worker, stage=stage)
        return worker

    def make_arena(self, worker: Worker, *, stage: Stage = Stage.CHECK) -> None:
        """Make the place where arms live; known sites come from the survey."""
        self.require(worker, "arena", stage=stage, fqns=[member.fit for member in self.members])

    def has_compiled(self, arms: Sequence[str]) -> bool:
        """Whether an earlier run's clean processes compiled these arms; what the cache has lost since costs time."""
        return self._compiled(arms).is_file()

    def know_compiled(self, arms: Sequence[str]) -> None:
        """This run's clean processes did, for later runs with another kernel."""
        with contextlib.suppress(OSError):
            self._compiled(arms).touch()

    def _compiled(self, arms: Sequence[str]) -> Path:
        opening = {name: value for name, value in self._opening(True).items() if name != "exam"}
        asked = [opening, self.ops, self.device, sorted(arms), packages()]
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

    def _opening(self, clean: bool) -> dict[str, Any]:
        return {
            "workload": self.workload.workload.model_dump(mode="json"),
            "task_sha256": self.workload.task_sha256,
            "cell": self.cell.model_dump(mode="json", exclude={"weight"}),
            "root": str(self.workload.path.parent),
            "exam": {**asdict(self.exam), "folder": str(self.exam.folder) if self.exam.folder else None},
            "threads": thread_count(),
            # it examines while others compile: on few cores its threads would wait for each other, and hold the cores
            "exam_threads": 1 if clean and self.device == "cpu" and thread_count() < MANY_CORES else thread_count(),
        }

    def _environment(self, clean: bool) -> dict[str, str]:
        return {
            **super()._environment(clean),
            # the first compilation of a process imports for seconds: once, before the forks of those that compile
            **({WARM_COMPILER: "compile" if self.device == "cpu" else "import"} if self._compiles(clean) else {}),
            # Inductor compiles a probe per vector extension, 5 s of a cold start; the flags are there to read
            **({"TORCHINDUCTOR_VEC_ISA_OK": "1"} if has_vectors() else {}),
        }

    def _compiles(self, clean: bool) -> bool:
        is_asked = self.compiles and any(mode.is_compiled for mode in self.policy.modes)
        return is_asked and (not clean or thread_count() >= MANY_CORES)

    def _clean_owner(self) -> str:
        return self.workload.sha256[:16]

    def _modules(self) -> list[str]:
        return [*(_COMPILER if self.compiles else ()), *super()._modules(), "transformers", *self._model_modules()]

    def _model_modules(self) -> list[str]:
        spec = self.workload.workload.model
        model_type = spec.config.get("model_type")
        config = self.workload.path.parent / str(spec.id) / "config.json"
        if model_type is None and config.is_file():
            with contextlib.suppress(ValueError, OSError, AttributeError, RecursionError):  # its reader says it better
                model_type = json.loads(config.read_bytes()).get("model_type")
        known = isinstance(model_type, str) and model_type.isidentifier()
        return [f"transformers.models.{model_type}.modeling_{model_type}"] if known else []


class Deadline:
    """What is left of the cell's time."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._end - time.monotonic())
