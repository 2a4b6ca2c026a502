"""What a worker is asked with all arms in it: prepare them, run them, time them."""

from __future__ import annotations

from collections import ChainMap
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from e2e.requests.opened import Opened


class Timing(Opened):
    """The side that runs arms."""

    _staged: tuple[str, list[Any], int] | None = None

    def do_arena(self, *, fqns: list[list[str]]) -> None:
        """Make the place where arms live, with all threads; after `bind` when there is a candidate.

        `fqns`: of every part the sites that compute the op, whether or not its kernel takes them.
        """
        import torch

        from e2e.arms import Arena
        from e2e.bound import Candidate
        from e2e.bound import Part as ArenaPart
        from e2e.measure.heap import keep_freed

        torch.set_num_threads(self.threads)
        keep_freed()
        parts = []
        for part, fit in zip(self.parts, map(set, fqns), strict=True):
            usable = [site for site in part.sites if site.fqn in fit]
            own = None
            if part.bound is not None:
                own = Candidate(part.bound, frozenset(site.fqn for site in part.patched))
            same_op = [other.adopted for other in self.parts if other.op.name == part.op.name]
            parts.append(ArenaPart(part.op, usable, own, dict(ChainMap(*same_op))))
        transfer = "transfer" in self.include and self.device != "cpu"
        self.arena = Arena(self.session, parts, transfer=transfer)

    def do_prepare(self, *, arm: str, profiled: bool = True) -> dict[str, Any]:
        """See Arena.prepare."""
        return self.arena.prepare(arm, seed=self.seed, profiled=profiled)

    def do_room(self) -> dict[str, Any]:
        """See memory.room."""
        from e2e.measure.memory import room

        return room(self.device)

    def do_plant(self, *, arm: str, pause_s: float) -> None:
        """See Arena.plant."""
        self.arena.plant(arm, pause_s=pause_s, seed=self.seed)

    def do_pause(self, *, arm: str, seeds: list[int]) -> dict[str, Any]:
        """See Arena.pause_s."""
        return {"pause_s": self.arena.pause_s(arm, seeds=seeds)}

    def do_warm_up(self, *, arm: str, warm_steps: int, warm_s: float, warm_most_s: float) -> dict[str, Any]:
        """See steady.until_steady; the clock is this process's own, and no interval rests on it."""
        from e2e.measure.steady import until_steady

        return until_steady(
            lambda count: self.arena.clocked(arm, seed=self.seed, count=count),
            self.arena.disturbances,
            least_steps=warm_steps,
            least_s=warm_s,
            most_s=warm_most_s,
        )

    def do_settle(self) -> None:
        """Before timing: stop compile workers, which would count as the candidate's children, and collect."""
        import gc

        from torch._inductor.async_compile import shutdown_compile_workers

        shutdown_compile_workers()
        gc.collect()
        gc.freeze()
        gc.disable()

    def do_step_output(self, *, arm: str, path: str) -> None:
        """The first output of a few steps of one arm, saved for the clean side."""
        import torch
        from safetensors.torch import save_file

        from e2e.numerics.examine import Examiner

        seeds = Examiner.probe_seeds(self.session, self.exam_seed)
        logits = torch.cat([self.arena.outputs(arm, seed)[0] for seed in seeds])
        save_file({"logits": logits.contiguous()}, Path(path))

    def do_probes(self, *, arm: str, path: str) -> None:
        """What single training steps of one arm leave, saved for the clean side; see Trainer.probe."""
        from safetensors.torch import save_file

        from e2e.numerics.training import PROBES

        found = {
            f"{place}:{name}": item
            for place in range(PROBES)
            for name, item in self.arena.probe(arm, self.seed + place).items()
        }
        save_file(found, Path(path))

    def do_stage(self, *, arm: str, seeds: list[int], settle: int) -> None:
        """Put the next segment's inputs on the device."""
        self._staged = (arm, self.arena.batches(arm, seeds), settle)

    def do_go(self) -> dict[str, Any]:
        """Run what is staged; the parent stamps the two marks."""
        from torch._dynamo.utils import counters

        assert self._staged is not None
        arm, batches, settle = self._staged
        self._staged = None
        before = counters["stats"]["unique_graphs"]
        found = self.arena.timed(arm, batches=batches, settle=settle, mark=self._mark)
        return {**found, "recompiled": counters["stats"]["unique_graphs"] != before}

    def _mark(self) -> None:
        self._channel.send({"mark": 1, "id": self.asked})

    def do_digests(self, *, arm: str, seeds: list[int]) -> dict[str, Any]:
        """Replay steps for the audit."""
        return {"digests": self.arena.run(arm, seeds=seeds)}

    def do_trace(self, *, arm: str, path: str, steps: int, by_module: bool = False) -> dict[str, Any]:
        """One untimed, profiled pass; an eager arm's has ranges around the op's calls, or `by_module` modules."""
        from e2e.profile.recorder import named_modules_ranged, record

        with named_modules_ranged(self.arena.program(arm)) if by_module else self.arena.with_ranges(arm):
            return record(self.arena, arm, seed=self.seed, steps=steps, path=Path(path), device=self.device)

    def do_memory(self, *, arm: str, steps: int) -> dict[str, Any]:
        """Peak memory of one arm, alone in this process."""
        from e2e.measure.memory import peak

        return peak(self.arena, arm, seed=self.seed, steps=steps, device=self.device)

    def do_retarget(self, *, fqns: list[str]) -> None:
        """Arms of the op in hand; memory of the last one's is free again."""
        import gc

        import torch

        gc.enable()  # `settle` froze what is dropped now
        gc.unfreeze()
        own, fit = self.parts[0], set(fqns)
        self.arena.turn_to(own.op, [site for site in own.sites if site.fqn in fit])
        gc.collect()
        if self.device != "cpu":
            torch.cuda.empty_cache()

    def do_step_memory(self, *, arm: str) -> dict[str, Any]:
        """See memory.of_step."""
        from e2e.measure.memory import of_step

        return of_step(self.arena, arm, self.session.model, seed=self.seed, device=self.device)

    def do_feed(self, *, arm: str | None, seeds: list[int], settle: int) -> dict[str, Any]:
        """See feeding.batch_s."""
        from e2e.measure.feeding import batch_s, short_temporary_folder

        stepping = nullcontext() if arm is None else self.arena.stepping(arm)
        with short_temporary_folder(), stepping as step:
            return {"batch_s": batch_s(self.session, self.data, step, seeds=seeds, settle=settle)}

    def do_generation(self, *, arm: str, seeds: list[int]) -> dict[str, Any]:
        """See Arena.generation_s."""
        first_s, step_s = self.arena.generation_s(arm, seeds=seeds) or (None, None)
        return {"first_token_s": first_s, "step_s": step_s}
