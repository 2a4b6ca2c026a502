"""What every worker is asked first: open a workload, or an op alone."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.errors import UsageError
from e2e.integrity.channel import Channel
from e2e.integrity.isolation import limit_address_space


@dataclass
class Part:
    """One op of the run, and in a candidate's process the kernel for it."""

    op: Any
    sites: list[Any]
    examiner: Any = None
    """Of a clean worker: an Examiner, or for the op alone an OpExaminer."""
    bound: Any = None
    """None until `bind`, and where a run of several leaves this one out."""
    manifest: Any = None
    patched: list[Any] = field(default_factory=list)
    adopted: dict[str, Any] = field(default_factory=dict)
    """Kernels for the same op that the candidate must beat."""

    @property
    def standing(self) -> Any:
        """The kernel where it stands."""
        from e2e.patch import Standing

        return Standing(self.op, self.patched, self.bound.call, self.manifest.constraints)


class Opened:
    """What a worker has open: a session, and the ops of the run."""

    session: Any
    device: str
    seed: int

    def __init__(self, channel: Channel, *, clean: bool) -> None:
        self._channel = channel
        self.is_clean = clean
        """Whether it never loads a candidate."""
        self.parts: list[Part] = []
        """In the order of the run's kernels; requests number them from 0."""
        self.asked = ""
        """Number of the request being answered."""
        self._ledger: Any = None
        """Of a worker that holds a candidate: its process as it was before the candidate was imported."""

    def do_open(
        self,
        *,
        workload: dict[str, Any],
        task_sha256: str | None,
        cell: dict[str, Any],
        ops: list[tuple[str, str | None]],
        root: str,
        device: str,
        seed: int,
        exam: dict[str, Any],
        threads: int,
        exam_threads: int,
        extra_bytes: int | None,
    ) -> dict[str, Any]:
        """Build the session and find the sites of every op; `ops`: names, and hashes of files from outside."""
        import torch
        import torch._inductor.config

        from e2e import registry
        from e2e.arm_names import alternatives_of
        from e2e.patch import sites_of
        from e2e.schema.workload import Cell, Workload

        torch.set_num_threads(exam_threads)
        self.threads = threads
        torch._inductor.config.compile_threads = min(4, threads)
        if device != "cpu":
            _wake_cuda(device)
        loaded = Workload.model_validate(workload)
        task = registry.load_task(loaded.task, Path(root), task_sha256)
        self.device, self.seed, self.include, self.data = device, seed, loaded.include, loaded.data
        self.exam_seed: int = exam["seed"]
        self.session = task.open(loaded, Cell.model_validate(cell), root=Path(root), device=device, seed=self.exam_seed)
        if "data" in loaded.include and not hasattr(self.session, "made"):
            raise UsageError(f"include: data: {loaded.task} makes no batches from raw data (a session's `made`)")
        self.session.prepare(self.exam_seed)
        self.dtype = self.session.cell.dtype
        self.globs = loaded.sites
        for name, sha256 in ops:
            op = registry.load_op(name, sha256)
            self.parts.append(Part(op, sites_of(op, self.session.model, self.globs)))
        if extra_bytes is not None:
            limit_address_space(extra_bytes)
        facts, weights = _device_facts(device), _weights(self.session.model)
        asked = [exam["identity"], self.exam_seed, ops, weights, facts["device"], exam_threads]
        self._answers_kept = (exam["folder"], asked)
        return {
            "facts": self.session.facts.model_dump(),
            "answer": self.session.answer.model_dump(),
            "weights": weights,
            **facts,
            "alternatives": alternatives_of([part.op.alternatives for part in self.parts]),
            "alternatives_of": [list(part.op.alternatives) for part in self.parts],
            "versions": _versions(),
        }

    def do_open_op(
        self, *, ops: list[tuple[str, str | None]], dtype: str, device: str, seed: int, extra_bytes: int | None
    ) -> dict[str, Any]:
        """Load the op alone, without a model."""
        import torch

        from e2e import registry
        from e2e.measure.machine import thread_count

        torch.set_num_threads(thread_count())
        if device != "cpu":
            _wake_cuda(device)
        self.parts = [Part(registry.load_op(name, sha256), []) for name, sha256 in ops]
        self.dtype, self.device, self.seed = dtype, device, seed
        if extra_bytes is not None:
            limit_address_space(extra_bytes)
        return _device_facts(device)


def _wake_cuda(device: str) -> None:
    """Take the device, and count devices by the runtime.

    The zygote had to ask NVML, which touches no device; inside a namespace NVML may see none, and then torch
    believes that CUDA is unavailable although its tensors live there.
    """
    import torch

    os.environ.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)
    torch.cuda._cached_device_count = torch._C._cuda_getDeviceCount()
    torch.cuda.set_device(torch.device(device))


def _device_facts(device: str) -> dict[str, Any]:
    """Its name, and its memory in bytes."""
    import torch

    if device == "cpu":
        return {"device": "CPU", "memory": None}
    memory = torch.cuda.get_device_properties(device).total_memory
    return {"device": torch.cuda.get_device_name(device), "memory": memory}


def _weights(model: Any) -> str:
    """Checksum of all parameters and buffers: every process of a run must have built the same model."""
    from e2e.measure.fingerprint import checksum

    tensors = [*model.named_parameters(), *model.named_buffers()]
    sums = [(name, int(checksum(tensor))) for name, tensor in sorted(tensors, key=lambda item: item[0])]
    return hashlib.sha256(repr(sums).encode()).hexdigest()


def _versions() -> dict[str, Any]:
    import torch
    import transformers

    return {"torch": torch.__version__, "transformers": transformers.__version__, "cuda": torch.version.cuda}
