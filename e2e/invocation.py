"""The command that started a run, to be typed again with changes. Pure."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace

from e2e.schema.words import Stage
from e2e.units import Seconds


@dataclass(frozen=True)
class Invocation:
    """What was typed, so that it can be typed again."""

    workload: str
    kernels: tuple[str, ...]
    run: str
    """The run's folder, as the user can type it."""
    policy: str | None = None
    """`--policy`, if given."""
    overrides: tuple[str, ...] = ()
    """Every `--set`, as `key.path=value`."""
    options: tuple[str, ...] = ()
    """Every other option of the question, such as `--device cuda:1`; without `--until` and `--budget`."""
    beside: tuple[str, ...] = ()
    """Options that change no question, `--out DIR` and `--no-trace`: they go with `--repeat` too."""

    def validate(
        self, *, until: Stage | None = None, policy: str | None = None, budget_s: Seconds | None = None
    ) -> str:
        """The same run again, changed in what is given."""
        words = ["e2e", "validate", self.workload]
        words += [word for kernel in self.kernels for word in ("--kernel", kernel)]
        words += [word for override in self.overrides for word in ("--set", override)]
        words += [*self.options, *self.beside]
        chosen = policy or self.policy
        words += ["--policy", chosen] if chosen else []
        words += ["--until", until.value] if until else []
        words += ["--budget", str(math.ceil(budget_s))] if budget_s else []
        return shlex.join(words)

    def check(self) -> str | None:
        """The kernel by itself on the inputs that the run kept; of several kernels there is no one command."""
        if len(self.kernels) != 1:
            return None
        return shlex.join(["e2e", "check", self.kernels[0], "--captures", self.run, *self._said("--op", "--device")])

    def _said(self, *names: str) -> list[str]:
        pairs = zip(self.options, self.options[1:], strict=False)
        return [word for name, value in pairs if name in names for word in (name, value)]

    def repeat(self, workers: int) -> str:
        """A fresh run of the same, with so many workers planned."""
        return shlex.join(["e2e", "validate", "--repeat", self.run, "--workers", str(workers), *self.beside])

    def overriding(self, fields: Mapping[str, str]) -> Invocation:
        """The same with other `--set` values of these fields."""
        kept = [item for item in self.overrides if item.partition("=")[0].strip() not in fields]
        return replace(self, overrides=(*kept, *(f"{field}={value}" for field, value in fields.items())))

    def as_the_file_is(self) -> Invocation:
        """The same without any `--set`."""
        return replace(self, overrides=())

    def on_run(self, command: str, *options: str) -> str:
        """`e2e COMMAND RUN`, with options behind it."""
        return shlex.join(["e2e", command, self.run, *options])
