"""A stored run made again: its kernel, workload and policy, in today's environment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from e2e.configuration import LoadedWorkload
from e2e.errors import UsageError
from e2e.reading import read_kernel
from e2e.request import Again
from e2e.schema.kernel import Kernel


def workload_of(again: Again, found: LoadedWorkload) -> LoadedWorkload:
    """The stored workload, relative to the file of today.

    Raises:
        UsageError: the run stored none, or the code of its task is not what it was.
    """
    stored = again.run.workload
    if stored is None:
        raise UsageError(f"run {again.run.run_id} stored no workload, so it cannot be made again")
    then = again.run.environment.get("task_sha256")
    if then != found.task_sha256:
        raise UsageError(
            f"the task {stored.task} has changed since run {again.run.run_id} (sha256 {str(then)[:12]} then, "
            f"{str(found.task_sha256)[:12]} now): validate it afresh instead"
        )
    sha256 = again.run.environment.get("workload_sha256") or found.sha256
    return replace(found, workload=stored, overrides=again.run.overrides, sha256=sha256)


def kernels_of(again: Again, op: str | None) -> Iterator[Kernel]:
    """The stored kernels: from where they were if they are still the same, else from the run's own folder.

    Raises:
        UsageError: one is neither here nor there.
    """
    many = len(again.run.kernels) > 1
    for number, stored in enumerate(again.run.kernels):
        folder = again.folder / "kernel" / (str(number + 1) if many else "")
        places = [stored.spec] + ([str(folder / Path(stored.path).name)] if stored.path is not None else [])
        found = next((kernel for place in places if (kernel := _same(place, stored, op)) is not None), None)
        if found is None:
            raise UsageError(
                f"kernel {stored.spec} has changed since run {again.run.run_id}, and {folder} does not hold it as it "
                "was: validate it afresh instead"
            )
        yield found.model_copy(update={"spec": stored.spec})


def _same(place: str, stored: Kernel, op: str | None) -> Kernel | None:
    """What stands there, if it is that kernel."""
    try:
        kernel = read_kernel(place, op=op)
    except UsageError:  # gone, or no kernel any more: then it is not that one
        return None
    is_same = (kernel.sha256, kernel.op_sha256) == (stored.sha256, stored.op_sha256)
    return kernel if is_same else None
