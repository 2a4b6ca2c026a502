"""Clean side: captures, references and comparisons. Nothing here ever loads a candidate."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from e2e.errors import UsageError
from e2e.measure.audit import FAR
from e2e.measure.fingerprint import checksum
from e2e.numerics.captures import Captured, described, read_outputs, save_calls, select, storages_of, twins
from e2e.numerics.compare import MODE_RATIO, distance_of, error_of, floor_of, other_choices
from e2e.numerics.conditions import conditions_of, judged, name_of
from e2e.numerics.conformance import LOUD, Outputs, Watch
from e2e.numerics.depth import Look, errors
from e2e.numerics.envelope import RESPLIT, SHARE, changes, measured, split_words, summed
from e2e.numerics.kept import Kept, Tensors
from e2e.numerics.lossy import gross_errors, labels_of, surprise
from e2e.numerics.op_level import OpExaminer, spared
from e2e.numerics.reference import one_higher
from e2e.patch import Occurrence, observed, put_references
from e2e.protocols import Batch, Op, Session, Site
from e2e.schema.evidence import CAPTURED, NOT_CALLED
from e2e.schema.words import ReasonCode
from e2e.trainer import Update, stepping

NOT_RUN = "its forward does not run with its own code in the kernel's place"
REFERENCE, BASELINE = "reference", "baseline"
MOST_FAILING = 8
"""Calls kept of those on which a kernel was wrong."""
AGAIN = 1 / 16
"""Share of the questions that are asked again of answers that an earlier run kept, one at least."""


@dataclass(frozen=True)
class Question:
    """One call of the model, answered by the baseline at once and by the reference row by row."""

    inputs: Batch
    """All that the answers depend on; (B, ...) each."""
    baseline: Callable[[], Tensor]
    """(B, ...)."""
    reference: Callable[..., Tensor]
    """Of the model one precision higher, and the inputs of one row: (1, ...)."""

    @property
    def rows(self) -> int:
        """B."""
        return int(self.inputs[0].shape[0])

    def exact(self, model: nn.Module, row: int) -> Tensor:
        """The reference's answer to one row, whose numbers it takes in its own precision."""
        dtype = next(model.parameters()).dtype
        one = (tensor[row : row + 1] for tensor in self.inputs)
        return self.reference(model, *(tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in one))


class Examiner(OpExaminer):
    """Knows what is right in a model: captured inputs, the reference, and the baseline's own error."""

    def __init__(self, session: Session, op: Op, sites: list[Site]) -> None:
        super().__init__(op, session.device)
        self._session = session
        self._sites = sites
        self.fit: list[Site] = []
        """Sites that compute the op, as the survey found."""
        self.together: list[Examiner] = [self]
        """Of every kernel's op: the reference has all of them in exact maths."""
        self._forms: list[Any] = []
        """Form of every call of a step at those sites."""
        self._logits: tuple[Tensor, Tensor] | None = None
        self._conditions: list[tuple[int, str, Tensor, Tensor]] = []
        """Number and name, the reference's answers and the baseline's."""
        self._look = Look()
        self._envelope: dict[str, Any] | None = None
        self._split: float | None = None
        """What another split does to the baseline's answers to the first row."""
        self._states: dict[str, Tensors] = {}
        """Hidden states by layer, of reference and baseline."""
        self._exam: list[Batch] = []
        """Inputs that the logits answer, call by call."""
        self._labels: Tensor | None = None
        self._count = 0
        """Answers that are compared."""
        self._steps: tuple[Tensor, Tensor] | None = None

    def survey(self, *, seed: int, path: Path, budget_bytes: int, is_named: bool = False) -> dict[str, Any]:
        """Run eager steps, see every call of the op, check that each site computes it, keep inputs.

        Sites that the kernel has named by changing them (`is_named`) are sites whatever they compute: what would
        rule out another one only means that its outputs alone cannot be compared.

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
        last = [watch.forms[fqn][-len(watch.forms[fqn]) // self._steps_seen :] for fqn in fit]
        self._forms = [form for forms in last for form in forms]
        kept = select([item for item in watch.calls if item.site in fit], budget_bytes)
        if kept:
            first = kept[0]
            self._calls = [*kept, *twins(first, seed), *self._edges(first, seed)]
        if kept or is_named:  # of a patch there is always something to run, if only in the model
            save_calls(path, self._calls)
        rows = [
            self._site_row(site, problems.get(site.fqn), watch.dims.get(site.fqn, []))
            for site in self._sites
            if site.is_declared or site.fqn in watch.dims or site.fqn in problems
        ]
        if is_named:
            self.fit = []  # the reference is the model itself: what is at these sites is no op
            rows = [_as_named(row, is_called=row["fqn"] in outputs.called) for row in rows]
        return {"sites": rows, "captured": len(kept), "calls": len(self._calls)}

    def forms(self, *, most: int) -> dict[str, Any]:
        """How often a step calls the op at sites that compute it, and in which forms, the most frequent first."""
        counted = Counter(self._forms).most_common(most)
        rows = [{"calls": calls, **described(form)} for form, calls in counted]
        return {"calls": len(self._forms), "sites": len(self.fit), "forms": rows}

    def save_captured(self, *, path: Path, op: str, budget_bytes: int) -> dict[str, Any]:
        """The model's own inputs of the op, as the survey kept them, if they fit: stored calls and bytes.

        `op` is the name by which it can be found again.
        """
        kept = [item for item in self._calls if item.label == CAPTURED]
        size = sum(tensor.nbytes for tensor in storages_of(kept))
        if not kept or size > budget_bytes:
            return {"calls": 0, "bytes": size}
        save_calls(path, kept, about={"op": op, "dtype": self._session.cell.dtype})
        return {"calls": len(kept), "bytes": path.stat().st_size}

    def save_failing(
        self, *, places: Sequence[int], label: str | None, path: Path, op: str, budget_bytes: int
    ) -> dict[str, Any]:
        """The calls at those places, and those of that label, as far as they fit, behind the first of all calls.

        The first is an input that a kernel must take, so that a right one passes on these.
        """
        named = [place for place, item in enumerate(self._calls) if item.label == label]
        kept: list[Captured] = []
        for place in dict.fromkeys((0, *places, *named)):
            more = [*kept, self._calls[place]]
            if len(more) > MOST_FAILING or sum(tensor.nbytes for tensor in storages_of(more)) > budget_bytes:
                break
            kept = more
        if kept:
            save_calls(path, kept, about={"op": op, "dtype": self._session.cell.dtype})
        return {"calls": len(kept)}

    def _try_in_place(self, sites: list[Site], watch: Watch, outputs: Outputs, seed: int) -> tuple[Site, str] | None:
        """One step with every site's own code in the kernel's place: the first site that this changes, and how."""
        with outputs.compared(sites), observed(self._op, sites, watch.see):
            try:
                self._step(seed)
            except LOUD as error:
                inside = outputs.inside
                if inside is None:
                    raise
                return inside, f"{NOT_RUN}: {error}"
        if outputs.changed is None:
            return None
        return outputs.changed, "its forward gives other outputs with its own code in the kernel's place"

    @property
    def _steps_seen(self) -> int:
        """Steps in which calls are seen: an optimizer's first one has a state of zeros."""
        return 2 if any(isinstance(site.module, Update) for site in self._sites) else 1

    def _step(self, seed: int) -> None:
        if self._steps_seen > 1:  # only a whole training step gets there
            with stepping(self._session) as step:
                for place in range(self._steps_seen):
                    step(self._session.batch(seed + place))
            return
        with torch.no_grad():
            self._session.reset()
            self._session.program(self._session.model)(*self._session.batch(seed))

    def _site_row(self, site: Site, problem: str | None, dims: list[dict[str, int | str]]) -> dict[str, Any]:
        return {
            "fqn": site.fqn,
            "owner": type(site.module).__name__,
            "incompatible": problem or (None if dims else NOT_CALLED),
            "dims": dims[0] if dims else {},
            "all_dims": dims,
            "calls": len(dims),
        }

    def _baseline(self, item: Captured) -> Any:
        """What the site's own code makes of the call."""
        site = next(site for site in self._sites if site.fqn == item.site)
        with torch.no_grad():
            call = spared(self._op, item.call)
            return self._op.own(site)(*call.tensors, *call.scalars)

    def reference_logits(self, *, tokens: int, seed: int, kept: Kept) -> dict[str, Any]:
        """The exam's answers by the reference and by the eager baseline, held here."""
        session = self._session
        self._exam = calls = session.exam(tokens, seed)
        questions = [
            Question(inputs, partial(session.answers, session.model, *inputs), session.answers) for inputs in calls
        ]
        self._look = Look.into(session.model, calls)
        found = self._answers("logits", questions, kept, self._look)
        reference, baseline = found[REFERENCE], found[BASELINE]
        self._states = {side: _under(side, found) for side in (REFERENCE, BASELINE)}
        self._states[REFERENCE] = self._look.without_padding(self._states[REFERENCE], reference)
        self._envelope, self._split = self._legal(calls, reference, baseline, kept)
        self._conditions = list(self._under_conditions(seed, kept))
        self._logits, self._labels = (_flat(reference), _flat(baseline)), labels_of(session, calls)
        self._count = sum(session.count(*inputs) for inputs in calls)
        return {"tokens": self._count, "reference": str(reference.dtype).removeprefix("torch.")}

    def _under_conditions(self, seed: int, kept: Kept) -> Iterator[tuple[int, str, Tensor, Tensor]]:
        session: Any = self._session
        for place, (name, inputs) in enumerate(conditions_of(session, seed)):
            answers = session.answers_under
            question = Question(inputs, partial(answers, session.model, *inputs), answers)
            try:
                found = self._answers(name_of(place), [question], kept, Look())
            except (*LOUD, UsageError):  # where PyTorch's own model gives none, nobody asks a kernel for any
                continue
            yield place, name, found[REFERENCE], found[BASELINE]

    def _legal(
        self, calls: list[Batch], reference: Tensor, baseline: Tensor, kept: Kept
    ) -> tuple[dict[str, Any], float | None]:
        """Fields of an Envelope, and what of it the first row shows of another split."""
        session = self._session
        ways = changes(session, int(calls[0][0].shape[0]))
        some = calls[: max(1, round(SHARE * len(calls)))]

        def measure(some: Sequence[Batch]) -> Tensor:
            return measured(session, some, ways, reference, baseline)

        def again(known: Tensors) -> int:
            first, told = measure(some[:1]), known.get("measures", torch.empty(0))
            has_form = told.shape == (sum(len(inputs[0]) for inputs in some), *first.shape[1:])
            return len(first) if has_form and _are_equal(told[: len(first)].cpu(), first) else 0

        about = [[checksum(tensor).item() for tensor in inputs] for inputs in some]
        found = kept.tensors("envelope", [*about, *ways], lambda: {"measures": measure(some)}, again)["measures"]
        alone = {row["name"]: row["apart"] for row in summed(found[:1], list(ways))["changes"]}
        return summed(found, list(ways)), alone.get(split_words(int(calls[0][0].shape[0])))

    def _answers(self, name: str, questions: list[Question], kept: Kept, look: Look) -> Tensors:
        """The reference's and the baseline's answers to all questions, row after row; of what is kept, some again.

        Under the side's name, and under that and the layer's the hidden states that are looked at.

        Raises:
            UsageError: the baseline's are not finite.
        """
        model = self._reference_model()

        def own(question: Question) -> Tensors:
            return _told(BASELINE, look, self._session.model, question.baseline)

        def exact(question: Question, row: int) -> Tensors:
            return _told(REFERENCE, look, model, lambda: question.exact(model, row))

        def compute() -> Tensors:
            baseline = _joined([own(question) for question in questions])
            self._need_finite(baseline[BASELINE])
            rows = [exact(question, row) for question in questions for row in range(question.rows)]
            return {**_joined(rows), **baseline}

        about = [*([checksum(tensor).item() for tensor in question.inputs] for question in questions), *look.layers]
        found = kept.tensors(name, about, compute, lambda known: _same_again(known, questions, own, exact))
        return {part: tensor.to(self._session.device) for part, tensor in found.items()}

    def gross_errors(self, *, fqns: list[str]) -> list[dict[str, Any]]:
        """What the model's outputs make of plain mistakes at those sites; see lossy.gross_errors."""
        assert self._logits is not None
        meant = [(op, [site for site in fit if site.fqn in fqns]) for op, fit in self.occurrences]
        return gross_errors(self._session, meant, self._exam[0], *self._logits)

    def compare_logits(self, *, path: Path, ratio: float, is_lossy: bool = False) -> dict[str, Any]:
        """The candidate's logits against the reference, beside the baseline's own distance.

        Of a declared lossy kernel (`is_lossy`) their distance is no fault here: the policy's budget decides.
        """
        assert self._logits is not None
        reference, baseline = self._logits
        told = read_outputs(path, self._session.device, "logits")
        value, answer = told["logits"], self._session.answer
        own = distance_of(baseline, reference, answers=self._count, is_distribution=answer.is_distribution)
        allowed = ratio * own.error + floor_of(baseline.dtype)
        row: dict[str, Any] = {
            "error_baseline": own.error,
            "kl_baseline": own.kl,
            "kl_tail_baseline": own.kl_tail,
            "top1_baseline": own.top1,
            "allowed": allowed,
            "tokens": self._count,
            "answer": answer.model_dump(),
            "reference": str(reference.dtype).removeprefix("torch."),
            "envelope": self._envelope,
            "split_baseline": self._split,
            "depth": errors(self._look, told, self._states[BASELINE], self._states[REFERENCE]),
        }
        if value.shape != baseline.shape or value.dtype != baseline.dtype:
            return row | _wrong(ReasonCode.WRONG_OUTPUT_LAYOUT)
        if not bool(torch.isfinite(value).all()):
            return row | _wrong(ReasonCode.NONFINITE_OUTPUT)
        found = distance_of(value, reference, answers=self._count, is_distribution=answer.is_distribution)
        lost = surprise(value, baseline, self._labels) if self._labels is not None else None
        code = ReasonCode.MODEL_ERROR_EXCEEDED if found.error > allowed and not is_lossy else None
        return row | {
            "error_candidate": found.error,
            "kl_candidate": found.kl,
            "kl_tail_candidate": found.kl_tail,
            "top1_candidate": found.top1,
            "conditions": [
                judged(name, told.get(name_of(place)), own, exact, ratio=ratio)
                for place, name, exact, own in (self._conditions if not is_lossy else ())
            ],
            "other_choices": other_choices(value, baseline) if answer.is_distribution else None,
            "split_candidate": self._split_of(told, value, reference),
            "nll_difference": lost.difference if lost else None,
            "nll_lower": lost.lower if lost else None,
            "nll_upper": lost.upper if lost else None,
            "status": "wrong" if code else "passed",
            "code": code,
        }

    def _split_of(self, told: Tensors, value: Tensor, reference: Tensor) -> float | None:
        """What another split does to the candidate's answers to the first row."""
        other = told.get(RESPLIT)
        if other is None or not other.numel() or other.shape != value[: len(other)].shape:
            return None
        if not bool(other.isfinite().all()):
            return None
        apart = (other.double() - value[: len(other)].double()).norm()
        return float(apart / reference[: len(other)].double().norm().clamp_min(1e-300))

    def reference_step(self, *, seed: int, kept: Kept) -> None:
        """The reference's and the eager baseline's first output of a few whole steps at the cell's real shape."""
        session, program = self._session, self._session.program(self._session.model)

        def baseline(step: int) -> Tensor:
            with torch.no_grad():
                session.reset()
                found: Tensor = program(*session.batch(step))[0].clone()
            return found

        steps = self.probe_seeds(session, seed)
        questions = [
            Question(session.step_inputs(step), partial(baseline, step), session.step_answers) for step in steps
        ]
        found = self._answers("steps", questions, kept, Look())
        self._steps = found[REFERENCE], found[BASELINE]

    @staticmethod
    def probe_seeds(session: Any, seed: int) -> list[int]:
        """Steps enough for eight rows: the error of one row alone varies by more than any mode changes it."""
        return [seed + place for place in range(-(-8 // session.cell.batch))]

    def compare_step(self, *, path: Path, rough: float = 0.0) -> dict[str, Any]:
        """One arm's steps, in whatever mode it ran, against the reference: a mode may not change the result.

        Modes round differently, so this bound is wide. How right the kernel is, the op and model checks say; `rough` is
        the error that they know of a declared lossy one.
        """
        assert self._steps is not None
        reference, baseline = self._steps
        value = read_outputs(path, self._session.device, "logits")["logits"]
        own = error_of(baseline, reference)
        allowed = MODE_RATIO * (own.total + floor_of(baseline.dtype))
        allowed = max(allowed, min(FAR, MODE_RATIO * rough))
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
            what = self._session.answer.what
            raise UsageError(f"the model's own {what} are not finite in {dtype}: nothing can be compared with them")

    def _reference_model(self) -> nn.Module:
        """The model one precision higher, with the ops' sites in exact maths (norms often compute in float32)."""
        model = one_higher(self._session.model, self._session.cell.dtype)
        put_references(model, self.occurrences)
        return model

    @property
    def occurrences(self) -> list[Occurrence]:
        """Every kernel's op with its sites."""
        return [(examiner._op, examiner.fit) for examiner in self.together]


def _as_named(row: dict[str, Any], *, is_called: bool) -> dict[str, Any]:
    why = str(row["incompatible"]).removeprefix(f"{NOT_RUN}: ") if is_called and row["incompatible"] else None
    return {**row, "incompatible": None if is_called else NOT_CALLED, "unchecked": why}


def _told(side: str, look: Look, model: nn.Module, answer: Callable[[], Tensor]) -> Tensors:
    """An answer and the hidden states on the way to it, under their names."""
    found, states = look.on(model, answer)
    return {side: found, **{f"{side}.{layer}": state for layer, state in states.items()}}


def _joined(told: Sequence[Tensors]) -> Tensors:
    """Row after row."""
    return {part: torch.cat([item[part] for item in told]) for part in told[0]}


def _under(side: str, found: Tensors) -> Tensors:
    """Hidden states of a side, by layer."""
    mark = f"{side}."
    return {part.removeprefix(mark): tensor for part, tensor in found.items() if part.startswith(mark)}


def _same_again(
    known: Tensors,
    questions: list[Question],
    own: Callable[[Question], Tensors],
    exact: Callable[[Question, int], Tensors],
) -> int:
    """Rows computed again, if they and the forms of all are as known, bit for bit; else 0.

    Bit for bit, because the same process computed them from the same bytes on the same kind of device. Where a device
    does not repeat itself nothing holds, and everything is computed afresh in every run: slower, never wrong.
    """
    draw = secrets.SystemRandom()  # no candidate can know what will be asked again
    chosen = draw.sample(range(len(questions)), max(1, round(AGAIN * len(questions))))
    firsts = [0, *accumulate(question.rows for question in questions)]
    for place in chosen:
        question, first = questions[place], firsts[place]
        row = draw.randrange(question.rows)
        again = {part: (first + row, tensor) for part, tensor in exact(question, row).items()}
        again |= {part: (first, tensor) for part, tensor in own(question).items()}
        if set(known) != set(again):
            return 0
        for part, (start, value) in again.items():
            found = known[part]
            if found.shape != (firsts[-1], *value.shape[1:]) or found.dtype != value.dtype:
                return 0
            if not _are_equal(found[start : start + value.shape[0]].to(value.device), value):
                return 0
    is_finite = all(bool(torch.isfinite(known[side]).all()) for side in (REFERENCE, BASELINE))
    return len(chosen) if is_finite else 0


def _are_equal(mine: Tensor, theirs: Tensor) -> bool:
    """Bit for bit, but that NaN, which a state at padding may be, equals itself."""
    is_same: bool = torch.equal(mine.isnan(), theirs.isnan()) and torch.equal(mine.nan_to_num(), theirs.nan_to_num())
    return is_same


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
