"""One cell's way through the stages: what is known so far, and what every stage needs."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.arm_names import WITH_KERNELS, ArmName
from e2e.crew import Crew, Deadline
from e2e.measure.audit import Fingerprint
from e2e.measure.machine import Watch
from e2e.measure.schedule import SeedSource
from e2e.processes import Worker
from e2e.protocols import Built, Progress
from e2e.sanitizers import Sanitizers
from e2e.schema.evidence import Evidence, Fault, Part, Spent, StageEnd
from e2e.schema.policy import Policy
from e2e.schema.words import Mode, Stage
from e2e.unfinished import CellSoFar, VerdictSoFar
from e2e.units import Seconds
from e2e.workers import Member, shared


@dataclass
class Course:
    """Evidence grows here; every other record in e2e is frozen."""

    crew: Crew
    policy: Policy
    progress: Progress
    deadline: Deadline
    folder: Path
    """The run's own folder, for traces."""
    evidence: Evidence
    traces: bool
    rng: random.Random
    seeds: SeedSource
    cells: int = 1
    """Cells of the sweep that this one belongs to."""
    sanitizing: list[tuple[Member, Sanitizers, Built]] = field(default_factory=list)
    """Kernels that are looked at under sanitizers, with their builds for that."""
    clean: Worker | None = None
    pilot: Worker | None = None
    """Has every arm prepared; times the pilot, replays audited steps, records traces. Never part of an interval."""
    warmers: list[tuple[Worker, list[str]]] = field(default_factory=list)
    """Workers that compile arms ahead of the pilot, and which arms."""
    left_out: Mapping[Mode, str] = field(default_factory=dict)
    """Modes that are not tried because an earlier run's pilot found them far behind, and that in words."""
    fqns: list[str] = field(default_factory=list)
    """Sites that run a kernel of the candidate."""
    digests: dict[tuple[str, int], Fingerprint] = field(default_factory=dict)
    """Fingerprint of every timed step that was not audited yet, by arm and input seed."""
    steps_run: int = 0
    steps_committed: int = 0
    """Steps of recorded segments since the last audit, and how many of them left a fingerprint."""
    verdict: VerdictSoFar | None = None
    """None until it has begun."""
    keep: Callable[[], None] = field(default=lambda: None)
    """Called whenever something is complete, so that a kill does not cost it."""
    first_steps: dict[str, Seconds] = field(default_factory=dict)
    """Of arms that compile: their first step in the process that compiled them, while the caches were cold."""
    reserve_s: float = 0.0
    """Time kept for traces, memory and the report."""
    watch: Watch = field(default_factory=lambda: Watch("cpu"))
    facts: dict[str, Any] = field(default_factory=dict)
    _parts: list[Part] = field(default_factory=lambda: ["other"])
    _spent: dict[Part, float] = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic)
    _since: float = field(default_factory=time.monotonic)

    @property
    def has_time(self) -> bool:
        """Whether there is time left beyond what the end of the run needs."""
        return self.deadline.left_s > self.reserve_s

    @contextlib.contextmanager
    def spending(self, part: Part) -> Iterator[None]:
        """What follows counts as that part of the run's own time; a part inside another is not counted twice."""
        self._charge()
        self._parts.append(part)
        try:
            yield
        finally:
            self._charge()
            self._parts.pop()

    def _charge(self) -> None:
        now = time.monotonic()
        self._spent[self._parts[-1]] = self._spent.get(self._parts[-1], 0.0) + now - self._since
        self._since = now
        self.learn(spent=[Spent(part=part, seconds=seconds) for part, seconds in self._spent.items()])

    def learn(self, **found: Any) -> None:
        """Add to the evidence."""
        self.evidence = self.evidence.model_copy(update=found)

    def fail(self, fault: Fault) -> None:
        """Record a fault; everything else that is known stays."""
        self.learn(faults=[*self.evidence.faults, fault])

    def finish(self, stage: Stage) -> None:
        """That stage's work is complete."""
        end = StageEnd(stage=stage, seconds=self.used_s)
        self.learn(stage_finished=stage, stage_ends=[*self.evidence.stage_ends, end])
        self.keep()

    @property
    def used_s(self) -> Seconds:
        """Since the cell began, without the time between a stop and the next start."""
        return time.monotonic() - self._began

    def draw_for(self, part: str) -> None:
        """Random choices from here on are those of that part of the run, whatever was drawn before it."""
        self.rng = random.Random(f"{self.crew.seed} {part}")

    def take_up(self, evidence: Evidence, so_far: CellSoFar) -> None:
        """Go on from what an earlier process left when it was stopped."""
        self.evidence, self.verdict = evidence, so_far.verdict
        self.crew.weights = so_far.weights
        self.set_clock(so_far.used_s)

    def set_clock(self, used_s: Seconds) -> None:
        """As if the cell had begun so long ago."""
        self._began = self._since = time.monotonic()
        self._began -= used_s
        self._spent = {item.part: item.seconds for item in self.evidence.spent}
        self.deadline = Deadline(self.policy.budgets.cell_s - used_s)

    @contextlib.contextmanager
    def on_the_side(self) -> Iterator[None]:
        """What is learnt inside is known already, and takes none of the cell's time; but faults stay."""
        before, used_s, keep = self.evidence, self.used_s, self.keep
        self.keep = lambda: None
        try:
            yield
        finally:
            self.evidence = before.model_copy(update={"faults": self.evidence.faults})
            self.keep = keep
            self.set_clock(used_s)

    def forget_fingerprints(self) -> None:
        """They were audited; or their steps ran in the process that would replay them, as the pilot's do."""
        self.digests, self.steps_run, self.steps_committed = {}, 0, 0

    def compiles(self, arm: ArmName) -> bool:
        """Whether the arm's first step compiles: torch.compile does, and a kernel in Python may."""
        own = arm.role in WITH_KERNELS
        return arm.mode.is_compiled or (own and any(item.kernel.manifest.is_python for item in self.crew.members))

    @property
    def rounding(self) -> float | None:
        """The eager baseline's own relative error in the step's outputs; None where it was not found."""
        found = self.evidence.model_check or self.evidence.training
        return found.error_baseline if found is not None else None

    @property
    def runs_everywhere(self) -> bool:
        """Whether the kernel stands at every site: then what a headroom arm replays depends on no kernel."""
        engagement = self.evidence.engagement
        return engagement is not None and all(site.status == "patched" for site in engagement.sites)

    def know_first_step(self, arm: str, seconds: Seconds, *, clean: bool) -> None:
        """The first process to say so counts; whoever comes later finds the caches warm."""
        if self.crew.starts_cold[clean]:
            self.first_steps.setdefault(arm, seconds)

    @property
    def is_applicable(self) -> bool:
        """Whether every kernel stands somewhere."""
        return all(member.fqns for member in self.crew.members)

    @property
    def bound(self) -> list[tuple[int, Member]]:
        """Kernels that stand at any of its sites, with their numbers."""
        here = set(self.fqns)
        return [(part, member) for part, member in enumerate(self.crew.members) if here.intersection(member.fqns)]

    def said(self, member: Member) -> str | None:
        """How records name one of several kernels; None where there is one only."""
        return member.kernel.spec if len(self.crew.members) > 1 else None

    def calls_path(self, member: Member) -> Path:
        """The file with the captured calls of that kernel's op."""
        return self.path(f"calls-{self.crew.members.index(member)}.safetensors")

    def path(self, name: str) -> Path:
        """A file in the scratch folder, gone after the run."""
        return self.crew.scratch / name

    def handed_over(self, name: str) -> Path:
        """The same for a file that a process with the candidate writes."""
        return shared(self.crew.scratch) / name
