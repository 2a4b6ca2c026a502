"""CHILD: answers the parent's requests, one at a time. Loads torch and, unless it is clean, the candidate.

Nothing it says is believed beyond what the parent stamps or the clean worker verifies.
"""

from __future__ import annotations

import hashlib
import os
import resource
import secrets
import socket
import traceback
from collections import ChainMap
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from e2e.errors import E2EError
from e2e.integrity.channel import Channel, ChannelClosed
from e2e.integrity.isolation import limit_address_space

MAX_FILE_BYTES = 8 * 2**30
"""No file that a worker writes comes near; a candidate that prints for ever is stopped here."""


def run(sock: socket.socket, request: dict[str, Any]) -> int:
    """Serve until the parent closes the channel; the exit status of the process."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE_BYTES, MAX_FILE_BYTES))
    os.environ.update(request.get("environment", {}))
    channel = Channel(sock)
    worker = Handlers(channel, clean=bool(request["clean"]))
    while True:
        try:
            message = channel.receive()
        except ChannelClosed:
            return 0
        worker.asked = message.pop("id")
        reply = _answer(worker, message)
        try:
            channel.send({**reply, "id": worker.asked})
        except (TypeError, ValueError) as error:
            fault = {"message": f"an answer that is not JSON: {error}", "code": None, "line": None}
            channel.send({"fault": fault, "id": worker.asked})


def _answer(worker: Handlers, message: dict[str, Any]) -> dict[str, Any]:
    do = message.pop("do")
    try:
        reply: dict[str, Any] = getattr(worker, f"do_{do}")(**message) or {}
        worker.verify(do)
        return reply
    except E2EError as error:
        return {"fault": {"message": error.message, "code": error.code, "line": getattr(error, "line", None)}}
    except MemoryError:
        return {"fault": {"message": "host memory ran out", "code": "out_of_memory"}}
    except Exception as error:  # noqa: BLE001  worker edge: a candidate may raise anything; the parent judges
        return {"fault": {"message": _describe(error), "code": _code(error), "line": None}}


def _describe(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = f" ({Path(last[0].filename).name}:{last[0].lineno})" if last else ""
    return f"{type(error).__name__}: {str(error).strip()[:1500]}{where}"


def _code(error: BaseException) -> str | None:
    text = str(error).lower()
    if type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in text or "bad_alloc" in text:
        return "out_of_memory"
    return None


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


LOOKS = 16
"""Of so many timed segments, after about one the whole process is compared with what it was, which takes about 7 ms of
a core with torch and transformers loaded. The number is chosen, not measured."""
_OWN_SETTINGS = ("arena", "settle")
"""Requests in which e2e itself changes settings: threads, garbage collection."""


class Handlers:
    """One method per request; the state of one worker."""

    def __init__(self, channel: Channel, *, clean: bool) -> None:
        self._channel = channel
        self._clean = clean
        self._staged: tuple[str, list[Any], int] | None = None
        self.parts: list[Part] = []
        """In the order of the run's kernels; requests number them from 0."""
        self.asked = ""
        """Number of the request being answered."""
        self._ledger: Any = None
        """Of a worker that holds a candidate: its process as it was before the candidate was imported."""

    def verify(self, do: str) -> None:
        """See Ledger.verify; nothing is timed when a request is done.

        Between segments a look at everything would leave every arm with cold caches: settings are compared after each,
        the rest after a random few.
        """
        if self._ledger is None or do == "stage":
            return
        if do in _OWN_SETTINGS:
            self._ledger.renew()
        self._ledger.verify(f"after {do!r}", is_whole=do != "go" or secrets.randbelow(LOOKS) == 0)

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
        self.device, self.seed, self.include = device, seed, loaded.include
        self.exam_seed: int = exam["seed"]
        self.session = task.open(loaded, Cell.model_validate(cell), root=Path(root), device=device, seed=self.exam_seed)
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

    # clean side

    def do_survey(self, *, part: int, path: str, budget_bytes: int, named: list[str] | None) -> dict[str, Any]:
        """Captures and conformance; see Examiner.survey. `named`: the sites of a patch, which changed them."""
        from e2e.numerics.examine import Examiner

        own = self.parts[part]
        sites = [site for site in own.sites if named is None or site.fqn in named]
        own.examiner = examiner = Examiner(self.session, own.op, sites)
        examiner.together = [other.examiner for other in self.parts if other.examiner is not None]
        return examiner.survey(seed=self.seed, path=Path(path), budget_bytes=budget_bytes, is_named=named is not None)

    def do_shadowed(self, *, fqns: list[list[str]]) -> dict[str, Any]:
        """See together.shadowed; `fqns`: where each part's kernel is to stand."""
        from e2e.numerics.together import shadowed

        standing = [
            (part.op, [site for site in part.sites if site.fqn in own])
            for part, own in zip(self.parts, fqns, strict=True)
        ]
        return {"shadowed": shadowed(self.session, standing, seed=self.seed)}

    def do_draw(self, *, path: str, captured: str | None) -> dict[str, Any]:
        """See OpExaminer.draw; where a file of captured inputs is given, OpExaminer.take."""
        from e2e.numerics.op_level import OpExaminer

        own = self.parts[0]
        own.examiner = examiner = OpExaminer(own.op, self.device)
        if captured is not None:
            return examiner.take(Path(captured), seed=self.seed, path=Path(path))
        return examiner.draw(dtype=self.dtype, seed=self.seed, path=Path(path))

    def do_compare_op_gradients(self, *, path: str, ratio: float) -> dict[str, Any]:
        """See OpExaminer.compare_gradients."""
        found: dict[str, Any] = self.parts[0].examiner.compare_gradients(path=Path(path), seed=self.seed, ratio=ratio)
        return found

    def do_reference_logits(self, *, tokens: int) -> dict[str, Any]:
        """See Examiner.reference_logits."""
        kept = self._kept()
        found = self._model.reference_logits(tokens=tokens, seed=self.exam_seed, kept=kept)
        return {**found, **kept.report}

    def do_reference_step(self) -> dict[str, Any]:
        """See Examiner.reference_step."""
        kept = self._kept()
        self._model.reference_step(seed=self.exam_seed, kept=kept)
        return dict(kept.report)

    @property
    def _model(self) -> Any:
        """The examiner that was made last: of the model as a whole, with the references of all ops."""
        return self.parts[-1].examiner

    def _kept(self) -> Any:
        """Where answers to the exam are kept, by all that they depend on beyond the questions themselves."""
        from e2e.numerics.kept import Kept, surroundings

        folder, identity = self._answers_kept
        fit = [site for _, sites in self._model.occurrences for site in sites]
        return Kept(Path(folder) if folder else None, [*identity, *surroundings(self.session.model, fit)])

    def do_mutants(self, *, ratio: float, part: int = 0) -> dict[str, Any]:
        """See Examiner.mutants."""
        return {"mutants": self.parts[part].examiner.mutants(ratio=ratio)}

    def do_compare_ops(self, *, outputs: str, ratio: float, part: int = 0) -> dict[str, Any]:
        """See Examiner.compare_ops."""
        return {"checks": self.parts[part].examiner.compare_ops(outputs=Path(outputs), ratio=ratio)}

    def do_compare_logits(self, *, path: str, ratio: float, is_lossy: bool) -> dict[str, Any]:
        """See Examiner.compare_logits."""
        found: dict[str, Any] = self._model.compare_logits(path=Path(path), ratio=ratio, is_lossy=is_lossy)
        return found

    def do_gross_errors(self, *, fqns: list[str]) -> dict[str, Any]:
        """See Examiner.gross_errors."""
        return {"rows": self._model.gross_errors(fqns=fqns)}

    def do_reference_training(self) -> dict[str, Any]:
        """See TrainingReference.of."""
        from e2e.numerics.training import TrainingReference

        self._training = TrainingReference.of(self.session, self._model.occurrences, seed=self.seed)
        return {"error_baseline": self._training.error_baseline}

    def do_reference_paths(self, *, steps: int) -> None:
        """The baseline's losses, and those under legal changes; see loss_path."""
        import copy

        from e2e.numerics.loss_path import perturbed, walked

        session = self.session
        own = walked(session, lambda: copy.deepcopy(session.model), seed=self.seed, steps=steps)
        self._paths = (own, perturbed(session, seed=self.seed, steps=steps))

    def do_compare_paths(self, *, path: str) -> dict[str, Any]:
        """See loss_path.judged."""
        from e2e.numerics.captures import read_outputs
        from e2e.numerics.loss_path import judged

        return {"paths": judged(*self._paths, read_outputs(Path(path), self.device))}

    def do_compare_probes(self, *, path: str) -> dict[str, Any]:
        """See TrainingReference.problem."""
        from e2e.numerics.captures import read_outputs

        return {"problem": self._training.problem(read_outputs(Path(path), self.device))}

    def do_compare_step(self, *, path: str, rough: float) -> dict[str, Any]:
        """See Examiner.compare_step."""
        found: dict[str, Any] = self._model.compare_step(path=Path(path), rough=rough)
        return found

    def do_compare_gradients(self, *, baseline: str, candidate: str, ratio: float) -> dict[str, Any]:
        """Gradients of two training steps against a reference one precision higher."""
        from e2e.numerics.training import compare

        occurrences = self._model.occurrences
        return compare(self.session, occurrences, Path(baseline), Path(candidate), ratio=ratio, seed=self.seed)

    # profile: one clean process, one op after the other

    def do_turn_to(self, *, op: str, op_sha256: str | None) -> dict[str, Any]:
        """Another op from now on, in the same model."""
        from e2e import registry
        from e2e.patch import sites_of

        found = registry.load_op(op, op_sha256)
        self.parts = [Part(found, sites_of(found, self.session.model, self.globs))]
        return {"sites": len(self.parts[0].sites), "alternatives": list(found.alternatives)}

    def do_forms(self, *, most: int) -> dict[str, Any]:
        """See Examiner.forms."""
        found: dict[str, Any] = self._model.forms(most=most)
        return found

    def do_save_captured(self, *, path: str, op: str, budget_bytes: int) -> dict[str, Any]:
        """See Examiner.save_captured."""
        found: dict[str, Any] = self._model.save_captured(path=Path(path), op=op, budget_bytes=budget_bytes)
        return found

    def do_stopwatch(self) -> dict[str, Any]:
        """See stopwatch.seconds_in."""
        from e2e.numerics.stopwatch import seconds_in

        own = self.parts[0]
        return seconds_in(self.session, own.op, own.examiner.fit, seed=self.seed)

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

    # candidate side

    def do_scout(self, *, built: dict[str, Any]) -> dict[str, Any]:
        """Which modules a patch changes, once it is proven that it can be kept to one copy of the model."""
        from e2e.bound import bound_to
        from e2e.numerics.exercise import step_outputs
        from e2e.protocols import Built
        from e2e.scout import replica_of

        entry = bound_to(Built.model_validate(built), self.parts[0].op, self.dtype).call
        replica = replica_of(entry, self.session.model, lambda model: step_outputs(self.session, model, self.seed))
        return {"fqns": list(replica.fqns)}

    def do_bind(
        self, *, built: dict[str, Any], fqns: list[str], adopted: dict[str, Any], part: int = 0
    ) -> dict[str, Any]:
        """Load a kernel, and kernels adopted earlier that the candidate must beat. A clean worker refuses."""
        from e2e.bound import bound_to
        from e2e.errors import CandidateError
        from e2e.integrity.ledger import Ledger
        from e2e.numerics import examine, exercise  # noqa: F401  the ledger sees what is there
        from e2e.ops._sites import InModules
        from e2e.protocols import Built
        from e2e.scout import replica_of

        if self._clean:
            raise E2EError("a clean worker never loads a candidate")
        self._ledger = self._ledger or Ledger()
        record, own = Built.model_validate(built), self.parts[part]
        own.manifest = record.kernel.manifest
        own.bound = bound_to(record, own.op, self.dtype)
        if own.manifest.kind == "patch":
            own.bound = replace(own.bound, call=replica_of(own.bound.call, self.session.model))
        if isinstance(own.op, InModules) and own.bound.writes - {0}:
            weight = own.op.tensor_names[max(own.bound.writes)]
            message = f"{record.kernel.shown}: mutates: {weight!r} is the model's own parameter, which later steps need"
            raise CandidateError(message, code="bind_failed")
        own.adopted = {
            name: bound_to(Built.model_validate(fields), own.op, self.dtype) for name, fields in adopted.items()
        }
        wanted = set(fqns)
        own.patched = [site for site in own.sites if site.fqn in wanted]
        return {}

    @property
    def _standing(self) -> list[Any]:
        """Every kernel that this process holds, where it stands."""
        return [part.standing for part in self.parts if part.bound is not None]

    def do_run_ops(self, *, inputs: str, outputs: str, part: int = 0) -> dict[str, Any]:
        """See exercise.run_calls."""
        from e2e.numerics.exercise import run_calls

        own = self.parts[part]
        remarks = run_calls(
            own.op,
            own.bound.call,
            inputs=Path(inputs),
            outputs=Path(outputs),
            constraints=own.manifest.constraints,
            writes=own.bound.writes,
            device=self.device,
        )
        return {"remarks": remarks}

    def do_opcheck(self, *, inputs: str) -> dict[str, Any]:
        """See op_level.torch_problems."""
        from e2e.binding import sparing
        from e2e.numerics.op_level import torch_problems

        own = self.parts[0]
        kernel = sparing(own.bound.call, own.bound.writes)
        return torch_problems(own.op, kernel, inputs=Path(inputs), sha256=own.bound.sha256, device=self.device)

    def do_op_gradients(self, *, inputs: str, path: str) -> None:
        """See op_level.save_gradients."""
        from e2e.binding import trainable
        from e2e.numerics.op_level import save_gradients

        own = self.parts[0]
        function = trainable(own.op, own.bound.call, borrowed=own.manifest.borrows_gradients)
        save_gradients(own.op, function, inputs=Path(inputs), path=Path(path), seed=self.seed, device=self.device)

    def do_engage(self) -> dict[str, Any]:
        """See exercise.engage."""
        from e2e.numerics.exercise import engage

        return engage(self.session, self._standing, seed=self.seed)

    def do_logits(self, *, tokens: int, path: str) -> dict[str, Any]:
        """See exercise.model_logits."""
        from e2e.numerics.exercise import model_logits

        calls = self.session.exam(tokens, self.exam_seed)
        return {"calls": model_logits(self.session, self._standing, calls=calls, path=Path(path))}

    def do_gradients(self, *, path: str, candidate: bool) -> dict[str, Any]:
        """See exercise.gradients."""
        from e2e.numerics.exercise import gradients

        return gradients(self.session, self._learning if candidate else [], seed=self.seed, path=Path(path))

    @property
    def _learning(self) -> list[Any]:
        """Every kernel as it stands in an eager training step."""
        bound = [part for part in self.parts if part.bound is not None]
        return [replace(part.standing, call=part.bound.in_training(part.op)) for part in bound]

    def do_loss_paths(self, *, path: str, steps: int) -> None:
        """See loss_path.walked."""
        import copy

        from safetensors.torch import save_file

        from e2e.numerics.loss_path import walked
        from e2e.scout import placed

        def made() -> Any:
            return placed(self.session.model, self._learning, copied=copy.deepcopy)

        save_file(walked(self.session, made, seed=self.seed, steps=steps), Path(path))

    def do_isolated(self, *, inputs: str, seconds: float, alternative: str | None, part: int = 0) -> dict[str, Any]:
        """The op alone: the model's own module, the best alternative, the candidate."""
        from e2e.numerics.exercise import isolated, plumbing

        own = self.parts[part]
        op, site, kernel = own.op, own.patched[0], own.bound.call
        functions: dict[str, Any] = {"eager": op.own(site), "candidate": kernel}
        if alternative is not None:
            functions["alternative"] = op.alternatives[alternative]
        return {
            "seconds": isolated(op, functions, inputs=Path(inputs), device=self.device, seconds=seconds),
            "plumbing_s": plumbing(op, site, kernel, inputs=Path(inputs), device=self.device),
        }

    def do_generation(self, *, arm: str, seeds: list[int]) -> dict[str, Any]:
        """See Arena.generation_s."""
        first_s, step_s = self.arena.generation_s(arm, seeds=seeds) or (None, None)
        return {"first_token_s": first_s, "step_s": step_s}

    # arms

    def do_arena(self, *, fqns: list[list[str]]) -> None:
        """Make the place where arms live, with all threads; after `bind` when there is a candidate.

        `fqns`: of every part the sites that compute the op, whether or not its kernel takes them.
        """
        import torch

        from e2e.arms import Arena
        from e2e.bound import Candidate
        from e2e.bound import Part as ArenaPart

        torch.set_num_threads(self.threads)
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

    def do_keep(self, *, arms: list[str]) -> None:
        """See Arena.keep."""
        self.arena.keep(arms)

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
        """One untimed, profiled pass; `by_module` names the modules of an eager arm in it."""
        from contextlib import nullcontext

        from e2e.profile.recorder import named_modules_ranged, record

        with named_modules_ranged(self.arena.program(arm)) if by_module else nullcontext():
            return record(self.arena, arm, seed=self.seed, steps=steps, path=Path(path), device=self.device)

    def do_memory(self, *, arm: str, steps: int) -> dict[str, Any]:
        """Peak memory of one arm, alone in this process."""
        from e2e.measure.memory import peak

        return peak(self.arena, arm, seed=self.seed, steps=steps, device=self.device)


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
