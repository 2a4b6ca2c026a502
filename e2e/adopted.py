"""In the process that serves: an adopted kernel at the sites where it was measured, for the calls it was measured on.

Everything else keeps the model's own code: other shapes and dtypes, gradients, and every other device.
"""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import nn

from e2e import registry
from e2e.binding import registered, sparing
from e2e.bound import bound_to
from e2e.cache import cache_folder
from e2e.configuration import load_workload
from e2e.errors import StoredRunError, UsageError
from e2e.measure.devices import cuda_devices
from e2e.patch import Patch, sites_of, split
from e2e.protocols import BuildTarget, Op, Site
from e2e.schema.adoption import FILE, Adoption
from e2e.schema.kernel import Kernel
from e2e.sources import digest
from e2e.surroundings import compare, surroundings

_ANY_CPU = "CPU"
_BUILD_S = 600.0
_TRIAL_SEED = 1
_OPAQUE: dict[str, Any] = {}
"""Kernels as torch.compile needs them, by hash: an op's name can be defined once in a process."""


@dataclass(frozen=True)
class Applied:
    """A model in which it stands."""

    sites: tuple[str, ...]
    """Empty on a device on which nothing was measured."""
    patch: Patch | None

    def undo(self) -> None:
        """The model's own code everywhere, exactly as before."""
        if self.patch is not None:
            self.patch.undo()


class Adopted:
    """What `e2e adopt` wrote into a folder."""

    def __init__(self, folder: Path) -> None:
        """Read the record.

        Raises:
            StoredRunError: it is damaged, or the kernel's source beside it is not the one that was measured.
        """
        self.folder = folder
        try:
            self.record = Adoption.model_validate_json((folder / FILE).read_bytes())
            kernel = self.record.kernel
            if kernel is not None and digest(folder / str(kernel.path), self._others(kernel)) != kernel.sha256:
                raise StoredRunError(
                    f"{folder / str(kernel.path)} is not what was measured: adopt a run of it as it is"
                )
        except (OSError, ValidationError) as error:
            raise StoredRunError(f"{folder / FILE} cannot be read: {error}") from error

    @property
    def another_batch(self) -> int:
        """A batch in which nothing was measured."""
        return max(cell.batch for cell in self.record.cells) + 1

    def is_for_this_device(self) -> bool:
        """Whether a device on which it was measured is here."""
        wanted = self.record.device
        return wanted == _ANY_CPU or any(device.model == wanted for device in cuda_devices())

    def apply(self, model: nn.Module, *, calls: Counter[str] | None = None) -> Applied:
        """Put it into the model, in place. Warns where the environment is not the one that was measured.

        `calls` counts by site, for tests: a counter has no place in a step that is compiled.

        Raises:
            UsageError: the model lacks a site, so it is not the one that was measured.
            E2EError: the kernel does not build or load here.
        """
        device = next(model.parameters()).device
        if self._name_of(device) != self.record.device:
            warnings.warn(f"{self.record.op}: measured on {self.record.device}, not here: left out", stacklevel=3)
            return Applied((), None)
        if changed := compare(self.record.environment, surroundings()).changed:
            warnings.warn(f"{self.record.op}: measured in another environment: {', '.join(changed)}", stacklevel=3)
        op = registry.load_op(self.record.op, self.record.op_sha256)
        found = {site.fqn: site for site in sites_of(op, model, ["*"]) if site.incompatible is None}
        missing = [fqn for fqn in self.record.sites if fqn not in found]
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise UsageError(f"this model has no place for {op.name} at {missing[0]}{more}: another was measured")
        sites = [found[fqn] for fqn in self.record.sites]
        function = self._function(op, device)
        return Applied(
            tuple(self.record.sites), Patch(op, sites, lambda site: self._guarded(op, site, function, calls))
        )

    def trial(self, *, batch: int | None = None) -> Counter[str]:
        """Calls by site in one step of the workload that it was measured in, or of another batch.

        Raises:
            UsageError: the workload is not here, or is another.
        """
        record = self.record
        loaded = load_workload(
            record.workload, [f"{name}={json.dumps(value)}" for name, value in record.overrides.items()]
        )
        if loaded.sha256 != record.workload_sha256:
            raise UsageError(f"{record.workload} has changed since run {record.run_id}")
        cell = record.cells[0] if batch is None else record.cells[0].model_copy(update={"batch": batch})
        device = "cpu" if record.device == _ANY_CPU else "cuda"
        task = registry.load("tasks", loaded.workload.task)
        session = task.open(loaded.workload, cell, root=loaded.path.parent, device=device, seed=_TRIAL_SEED)
        session.prepare(_TRIAL_SEED)
        calls: Counter[str] = Counter(dict.fromkeys(record.sites, 0))
        applied = self.apply(session.model, calls=calls)
        with torch.no_grad():
            session.program(session.model)(*session.batch(_TRIAL_SEED))
        applied.undo()
        return calls

    def _guarded(
        self, op: Op, site: Site, function: Callable[..., Any], calls: Counter[str] | None
    ) -> Callable[..., Any]:
        own, measured = op.own(site), self.record.calls

        def guarded(*args: Any) -> Any:
            if op.dims(split(op, args)) not in measured or _asks_for_gradient(args):
                return own(*args)
            if calls is not None:
                calls[site.fqn] += 1
            return function(*args)

        return guarded

    def _function(self, op: Op, device: torch.device) -> Callable[..., Any]:
        """The kernel, under torch.compile as an op that the compiler cannot look into; or PyTorch's own path."""
        if self.record.alternative is not None:
            return op.alternatives[self.record.alternative]
        kernel = self._kernel()
        builder = registry.load("builders", kernel.manifest.binding)
        here = next((known for known in cuda_devices() if known.name == str(device)), None)
        target = BuildTarget(
            device=device.type, arch=here.arch if here else None, cache=cache_folder() / "kernels", timeout_s=_BUILD_S
        )
        bound = bound_to(builder.build(kernel, target), op, self.record.cells[0].dtype)
        if kernel.sha256 not in _OPAQUE:
            call = sparing(bound.call, bound.writes)
            _OPAQUE[kernel.sha256] = registered(op, call, sha256=kernel.sha256, device=device.type)
        opaque = _OPAQUE[kernel.sha256]
        return lambda *args: opaque(*args) if torch.compiler.is_compiling() else bound.call(*args)

    def _kernel(self) -> Kernel:
        kernel = self.record.kernel
        if kernel is None:
            raise UsageError(f"{self.folder} holds no kernel")
        return kernel.model_copy(update={"path": str(self.folder / str(kernel.path)), "others": self._others(kernel)})

    def _others(self, kernel: Kernel) -> list[str]:
        return [str(self.folder / other) for other in kernel.others]

    def _name_of(self, device: torch.device) -> str:
        return _ANY_CPU if device.type == "cpu" else torch.cuda.get_device_name(device)


def _asks_for_gradient(args: tuple[Any, ...]) -> bool:
    return torch.is_grad_enabled() and any(isinstance(item, torch.Tensor) and item.requires_grad for item in args)
