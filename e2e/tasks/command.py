"""A program of your own, in a process for every measurement: vLLM, SGLang, torchrun, a private trainer.

Its runs are the parent's (`e2e.stages.command`); nothing of it is opened in a worker.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from e2e.errors import UsageError
from e2e.schema.workload import Cell, Workload


class Command:
    """What runs a step is not e2e, so that there is no session to open."""

    steps = ("prefill", "decode", "generate", "train", "forward")

    def open(self, workload: Workload, cell: Cell, *, root: Path, device: str, seed: int) -> Any:
        """Never.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            f"{workload.name}: task: command: e2e does not see into a program of your own; "
            "`e2e validate` runs it, and nothing else can"
        )


PLUGIN = Command()
