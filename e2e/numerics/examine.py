"""Clean side: captures, references and comparisons. Nothing here ever loads a candidate."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from e2e.errors import UsageError
from e2e.numerics.captures import Captured, read_outputs, save_calls, select
from e2e.numerics.compare import distance_of, error_of, floor_of
from e2e.numerics.conformance import LOUD, Outputs, Watch
from e2e.numerics.op_level import OpExaminer
from e2e.patch import Patch, observed, sites_in
from e2e.protocols import Op, Site
from e2e.schema.words import ReasonCode

MODE_RATIO = 8.0
"""A mode's outputs may err this many times as much as the eager baseline's before the mode counts as wrong."""


class Examiner(OpExaminer):
    """Knows what is right in a model: captured inputs, the reference, and the baseline's own error."""

    def __init__(self, session: Any, op: Op, sites: list[Site]) -> None:
        super().__init__(op, session.device)
        self._session = session
        self._sites = sites
        self.fit: list[Site] = []
        """Sites that compute the op, as the survey found."""
        self._logits: tuple[Tensor, Tensor] | None = None
        self._steps: tuple[Tensor, Tensor] | None = None

    def survey(self, *, seed: int, path: Path, budget_bytes: int) -> dict[str, Any]:
        """Run eager steps, see every call of the op, check that each site computes it, keep inputs.

        The first step runs the model as it is; the next ones with every site's own code put where a kernel would
        stand. An owner that then gives something else is left out with its like, and another step is run without
        them, since what comes after them saw other inputs.
        """
        outputs = Outputs(self._session.device)
        with outputs.kept(self._sites):
            self._step(seed)
        problems = {site.fqn: site.incompatible for site in self._sites if site.incompatible is not None}
        while True:
            watch = Watch(self._op, seed, budget_bytes)
            sites = [site for site in self._sites if site.fqn not in problems]
            why = self._try_in_place(sites, watch, outputs, seed)
            if why is None:
                break
            site, problem = why
            problems |= {item.fqn: problem for item in sites if type(item.module) is type(site.module)}
        problems |= watch.problems
        self.fit = [site for site in self._sites if site.fqn not in problems and site.fqn in watch.dims]
        fit = {site.fqn for site in self.fit}
        kept = select([item for item in watch.calls if item.site in fit], budget_bytes)
        if kept:
            first = kept[0]
            edges = [Captured(first.site, label, call) for label, call in self._op.edge_calls(first.call, seed)]
            self._calls = [*kept, *edges]
            save_calls(path, self._calls)
        rows = [self._site_row(site, problems.get(site.fqn), watch.dims.get(site.fqn, [])) for site in self._sites]
        return {"sites": rows, "captured": len(kept), "calls": len(self._calls)}

    def _try_in_place(self, sites: list[Site], watch: Watch, outputs: Outputs, seed: int) -> tuple[Site, str] | None:
        """One step with every site's own code in the kernel's place: the first site that this changes, and how."""
        with outputs.compared(sites), observed(self._op, sites, watch.see):
            try:
                self._step(seed)
            except LOUD as error:
                inside = outputs.inside
                if inside is None:
                    raise
                return inside, f"its forward does not run with its own code in the kernel's place: {error}"
        if outputs.changed is None:
            return None
        return outputs.changed, "its forward gives other outputs with its own code in the kernel's place"

    def _step(self, seed: int) -> None:
        with torch.no_grad():
            self._session.reset()
            self._session.program(self._session.model)(*self._session.batch(seed))

    def _site_row(self, site: Site, problem: str | None, dims: list[dict[str, int | str]]) -> dict[str, Any]:
        return {
            "fqn": site.fqn,
            "owner": type(site.module).__name__,
            "incompatible": problem or (None if dims else "it is not called in this step"),
            "dims": dims[0] if dims else {},
            "all_dims": dims,
            "calls": len(dims),
        }

    def _baseline(self, item: Captured) -> Any:
        """What the site's own code makes of the call."""
        site = next(site for site in self._sites if site.fqn == item.site)
        with torch.no_grad():
            return self._op.own(site)(*item.call.tensors, *item.call.scalars)

    def reference_logits(self, *, tokens: int, seed: int) -> dict[str, Any]:
        """Teacher-forced logits by the reference and by the eager baseline, kept here."""
        rows = self.token_rows(self._session, tokens, seed)
        baseline = _flat(torch.cat([self._session.logits(self._session.model, ids) for ids in rows]))
        self._need_finite(baseline)
        model = self._reference_model()
        reference = _flat(torch.cat([self._session.logits(model, row[None]) for ids in rows for row in ids]))
        self._logits = (reference, baseline)
        return {"tokens": reference.shape[0], "reference": str(reference.dtype).removeprefix("torch.")}

    @staticmethod
    def token_rows(session: Any, tokens: int, seed: int) -> list[Tensor]:
        """Real text for the model-level comparison, call by call; the same for the same seed, in any process.

        Calls of the step's own shape, where that many tokens are compared: a kernel cannot tell them from timed ones,
        and here every row's output counts, where a step hands out the last token's only.

        Shapes:
            ids (B, S) each.
        """
        cell = session.cell
        batch, length = cell.batch, cell.sequence
        if cell.step == "decode" or batch * length > tokens:
            length = min(tokens, 512, length if cell.step != "decode" else 512)
            batch = max(1, tokens // length)
        calls = max(1, tokens // (batch * length))
        ids: Tensor = session.tokens.windows(calls * batch, length, seed).to(session.device)
        return list(ids.split(batch))

    def compare_logits(self, *, path: Path, ratio: float) -> dict[str, Any]:
        """The candidate's logits against the reference, beside the baseline's own distance."""
        assert self._logits is not None
        reference, baseline = self._logits
        value = read_outputs(path, self._session.device, "logits")["logits"]
        own = distance_of(baseline, reference)
        allowed = ratio * own.error + floor_of(baseline.dtype)
        row: dict[str, Any] = {
            "error_baseline": own.error,
            "kl_baseline": own.kl,
            "top1_baseline": own.top1,
            "allowed": allowed,
            "tokens": reference.shape[0],
            "reference": str(reference.dtype).removeprefix("torch."),
        }
        if value.shape != baseline.shape or value.dtype != baseline.dtype:
            return row | _wrong(ReasonCode.WRONG_OUTPUT_LAYOUT)
        if not bool(torch.isfinite(value).all()):
            return row | _wrong(ReasonCode.NONFINITE_OUTPUT)
        found = distance_of(value, reference)
        code = ReasonCode.MODEL_ERROR_EXCEEDED if found.error > allowed else None
        return row | {
            "error_candidate": found.error,
            "kl_candidate": found.kl,
            "top1_candidate": found.top1,
            "status": "wrong" if code else "passed",
            "code": code,
        }

    def reference_step(self, *, seed: int) -> None:
        """The reference's and the eager baseline's logits of a few whole steps at the cell's real shape."""
        model, program = self._reference_model(), self._session.program(self._session.model)
        references, baselines = [], []
        with torch.no_grad():
            for step in self.probe_seeds(self._session, seed):
                self._session.reset()
                baselines.append(program(*self._session.batch(step))[0].clone())
                for row in self._session.step_ids(step):
                    references.append(model(input_ids=row[None], use_cache=False, logits_to_keep=1).logits)
        self._need_finite(torch.cat(baselines))
        self._steps = (torch.cat(references), torch.cat(baselines))

    @staticmethod
    def probe_seeds(session: Any, seed: int) -> list[int]:
        """Steps enough for eight rows: the error of one row alone varies by more than any mode changes it."""
        return [seed + place for place in range(-(-8 // session.cell.batch))]

    def compare_step(self, *, path: Path) -> dict[str, Any]:
        """One arm's steps, in whatever mode it ran, against the reference: a mode may not change the result.

        Modes round differently, so this bound is wide. How right the kernel is, the op and model checks say.
        """
        assert self._steps is not None
        reference, baseline = self._steps
        value = read_outputs(path, self._session.device, "logits")["logits"]
        own = error_of(baseline, reference)
        allowed = MODE_RATIO * (own.total + floor_of(baseline.dtype))
        if value.shape != baseline.shape or value.dtype != baseline.dtype or not bool(torch.isfinite(value).all()):
            return {"passed": False, "error": None, "baseline": own.total, "allowed": allowed}
        found = error_of(value, reference)
        return {
            "passed": found.total <= allowed,
            "error": found.total,
            "baseline": own.total,
            "allowed": allowed,
        }

    def _need_finite(self, baseline: Tensor) -> None:
        if not bool(torch.isfinite(baseline).all()):
            dtype = self._session.cell.dtype
            raise UsageError(f"the model's own logits are not finite in {dtype}: nothing can be compared with them")

    def _reference_model(self) -> nn.Module:
        """The model one precision higher, with the op's sites in exact maths (norms often compute in float32)."""
        higher = torch.float64 if self._session.cell.dtype == "float32" else torch.float32
        model = copy.deepcopy(self._session.model).to(higher)
        function: Callable[..., Any] = self._op.reference
        Patch(self._op, sites_in(model, self.fit), lambda site: function)
        return model


def _wrong(code: ReasonCode) -> dict[str, Any]:
    return {
        "error_candidate": None,
        "kl_candidate": None,
        "top1_candidate": None,
        "status": "wrong",
        "code": code,
    }


def _flat(logits: Tensor) -> Tensor:
    return logits.reshape(-1, logits.shape[-1])
