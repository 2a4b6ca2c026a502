"""What a clean worker is asked: references, and how far a kernel's outputs are from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from e2e.requests.opened import Opened, Part


class Judging(Opened):
    """The side that never holds a candidate."""

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

    def do_roofline(self, *, inputs: str, part: int) -> dict[str, Any]:
        """See roofline.work_of and roofline.ceilings; with all threads, as arms run."""
        import torch

        from e2e.numerics import roofline

        threads = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            limits = roofline.ceilings(dtype=self.dtype, device=self.device)
        finally:
            torch.set_num_threads(threads)
        return {**roofline.work_of(self.parts[part].op, inputs=Path(inputs), device=self.device), **limits}

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

    def do_save_failing(
        self, *, part: int, places: list[int], label: str | None, path: str, op: str, budget_bytes: int
    ) -> dict[str, Any]:
        """See Examiner.save_failing."""
        examiner = self.parts[part].examiner
        found: dict[str, Any] = examiner.save_failing(
            places=places, label=label, path=Path(path), op=op, budget_bytes=budget_bytes
        )
        return found

    def do_stopwatch(self) -> dict[str, Any]:
        """See stopwatch.seconds_in."""
        from e2e.numerics.stopwatch import seconds_in

        own = self.parts[0]
        return seconds_in(self.session, own.op, own.examiner.fit, seed=self.seed)
