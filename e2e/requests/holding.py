"""What a worker with a candidate is asked: to load it and to run it on given inputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from e2e.errors import E2EError
from e2e.requests.opened import Opened


class Holding(Opened):
    """The side that holds the candidate, and has no opinion of it."""

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

        if self.is_clean:
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
        return {"calls": model_logits(self.session, self._standing, calls=calls, path=Path(path), seed=self.exam_seed)}

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
        from e2e.numerics.exercise import isolated, isolated_cold, plumbing

        own = self.parts[part]
        op, site, kernel = own.op, own.patched[0], own.bound.call
        functions: dict[str, Any] = {"eager": op.own(site), "candidate": kernel}
        if alternative is not None:
            functions["alternative"] = op.alternatives[alternative]
        return {
            "seconds": isolated(op, functions, inputs=Path(inputs), device=self.device, seconds=seconds),
            "cold": isolated_cold(functions, inputs=Path(inputs), device=self.device),
            "plumbing_s": plumbing(op, site, kernel, inputs=Path(inputs), device=self.device),
        }
