"""Whether the kernels are right: at their op, in the whole model, in training, and in every mode that is timed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from e2e.arm_names import WITH_KERNELS, ArmName
from e2e.capture_files import FOLDER, file_name
from e2e.processes import Worker
from e2e.rules.lossy import over_budget
from e2e.schema.answers import REACHED
from e2e.schema.evidence import (
    TYPICAL,
    UNUSUAL,
    Answer,
    Fault,
    LossPath,
    ModelCheck,
    MutantCheck,
    OpCheck,
    TrainingCheck,
)
from e2e.schema.precision import PRECISIONS, Precision
from e2e.schema.words import ReasonCode, Stage
from e2e.stages.course import Course
from e2e.stages.survey import know_sites
from e2e.store import Run
from e2e.wording import small
from e2e.workers import CandidateFault, Member

STAGE = Stage.CHECK


def engage(course: Course, worker: Worker) -> None:
    """One untimed step with counted calls: each patched site must run as often as the op occurs there."""
    course.progress.stage("check", "does the kernel run at its sites?")
    reply = course.crew.ask(worker, "engage", stage=STAGE)
    proof = "calls counted in an untimed step"
    moved = reply["watermark_moved"]
    if all(moved):
        proof += "; a constant in its place moved the step's outputs"
    _know_calls(course, reply["calls"], proof=proof, moved=all(moved))
    specs = [member.kernel.spec for member in course.crew.members]
    if len(specs) > 1 and course.evidence.engagement is not None:
        unmoved = [spec for spec, has_moved in zip(specs, moved, strict=True) if not has_moved]
        course.learn(engagement=course.evidence.engagement.model_copy(update={"unmoved": unmoved}))


def _know_calls(course: Course, calls: dict[str, Any], *, proof: str, moved: bool | None = None) -> None:
    assert course.evidence.engagement is not None
    records = [
        record.model_copy(update={"calls": int(calls.get(record.fqn, 0))})
        for record in course.evidence.engagement.sites
    ]
    know_sites(course, records, proof=proof, moved=moved)


def check_op(course: Course, worker: Worker) -> None:
    """The kernels bound in that worker, each on every captured and edge input of its op."""
    ratio = course.policy.numerics.error_ratio
    assert course.clean is not None
    found = []
    for part, member in course.bound:
        inputs, outputs = str(course.calls_path(member)), str(course.handed_over(f"op-outputs-{part}.safetensors"))
        try:
            reply = course.crew.ask(
                worker, "run_ops", stage=STAGE, member=member, part=part, inputs=inputs, outputs=outputs
            )
        except CandidateFault:
            _keep_failing(course, part, member, label=_in_hand(Path(outputs)))
            raise
        rows = course.crew.require(course.clean, "compare_ops", part=part, outputs=outputs, ratio=ratio)["checks"]
        said = {"kernel": course.said(member)}
        is_lossy = _lossy_in(course, member) is not None
        checks = op_checks(rows, reply["remarks"], is_lossy=is_lossy)
        found += [check.model_copy(update=said) for check in checks]
        course.learn(op_checks=found)
        wrong = [place for place, check in enumerate(checks) if check.status == "wrong"]
        if wrong:
            _keep_failing(course, part, member, places=wrong)


FAILING_BYTES = 64 * 2**20
"""Most of inputs that are kept beside a result."""


def _in_hand(outputs: Path) -> str | None:
    """The label of the input that a kernel's process had when it died."""
    try:
        with outputs.with_suffix(REACHED).open(errors="replace") as stream:
            return stream.read(_LONGEST_LABEL)
    except OSError:
        return None


_LONGEST_LABEL = 200


def _keep_failing(
    course: Course, part: int, member: Member, *, places: Sequence[int] = (), label: str | None = None
) -> None:
    """Inputs on which the kernel is wrong, for `e2e check` to run it on again; of a sweep those of the first cell."""
    name = f"{FOLDER}/{file_name(member.op)}"
    if member.kernel.manifest.kind != "op" or (course.folder / name).exists():
        return
    assert course.clean is not None
    path = course.path("failing.safetensors")
    said = course.crew.require(
        course.clean,
        "save_failing",
        part=part,
        places=list(places),
        label=label,
        op=member.op,
        path=str(path),
        budget_bytes=FAILING_BYTES,
    )
    if said["calls"]:
        Run(course.folder).write_bytes(name, path.read_bytes())
        course.learn(failing_inputs=[*course.evidence.failing_inputs, name])


def check_mutants(course: Course) -> None:
    """The same comparison, on wrong kernels made on purpose."""
    assert course.clean is not None
    ratio = course.policy.numerics.error_ratio
    found = []
    for part, member in enumerate(course.crew.members):
        mutants = course.crew.require(course.clean, "mutants", part=part, ratio=ratio)["mutants"]
        found += [MutantCheck.model_validate({**row, "kernel": course.said(member)}) for row in mutants]
    course.learn(mutants=found)


def op_checks(rows: list[dict[str, Any]], remarks: list[dict[str, Any]], *, is_lossy: bool) -> list[OpCheck]:
    """What the clean worker says of each call, with what the candidate's process remarked about it.

    Of a kernel that declares so (`is_lossy`) an error that a lower precision may have is not wrong by itself.

    Raises:
        CandidateFault: `tampered`: they are not about the same calls.
    """
    if len(rows) != len(remarks):
        message = f"{len(remarks)} remarks on {len(rows)} calls"
        raise CandidateFault(Fault(code=ReasonCode.TAMPERED, message=message, stage=STAGE))
    if is_lossy:
        rows = [_excused(row, remark) for row, remark in zip(rows, remarks, strict=True)]
    return [_op_check(row, remark) for row, remark in zip(rows, remarks, strict=True)]


LOSSY_MOST = 0.5
"""Relative error beyond which no declared precision is an excuse; zeros err by 1."""


def _excused(row: dict[str, Any], remark: dict[str, Any]) -> dict[str, Any]:
    """The clean worker's numbers on a declared lossy kernel, whose rounding has to be the same in every call."""
    code, error = row.get("code"), row.get("error_candidate")
    if code is ReasonCode.NONFINITE_OUTPUT and row["label"] in UNUSUAL:  # one scale for many numbers spreads it
        return {**row, "status": "lossy", "code": None}
    if code not in (None, ReasonCode.OP_ERROR_EXCEEDED, ReasonCode.PRECISION_DOWNGRADED) or error is None:
        return row
    if remark.get("repeats") is False:
        message = "two calls gave different bits, which a kernel of a declared lossy precision may not"
        return {**row, "status": "wrong", "code": code or ReasonCode.OP_ERROR_EXCEEDED, "message": message}
    is_rounding = code is not None and error <= LOSSY_MOST
    return {**row, "status": "lossy", "code": None} if is_rounding else row


def _op_check(row: dict[str, Any], remark: dict[str, Any]) -> OpCheck:
    """The clean worker's numbers, with what the candidate's process remarked about the call itself."""
    empty = {"error_candidate": None, "error_baseline": None, "status": "wrong"}
    if remark["declined"] is not None:
        return OpCheck.model_validate({**empty, **row, "status": "declined", "message": remark["declined"]})
    layout = ReasonCode.WRONG_OUTPUT_LAYOUT
    problem: tuple[ReasonCode, str] | None = None
    spread, most = remark.get("spread"), row.get("allowed")
    if remark["problem"] is not None:
        problem = (layout, remark["problem"])
    elif remark["inputs_changed"]:
        problem = (ReasonCode.INPUTS_CHANGED, "an input tensor was written to")
    elif remark["aliased"]:
        problem = (layout, "the output shares memory with an input or with the previous output")
    elif spread is not None and most is not None and spread > most:
        message = f"two calls on the same input differ by {small(spread)}, allowed {small(most)}"
        problem = (ReasonCode.OP_ERROR_EXCEEDED, message)
    elif remark["layout"] and row.get("label") in TYPICAL:  # how others lie in memory, nobody there relies on
        problem = (layout, f"the output's strides are {remark['layout']}")
    if problem and row.get("status", "passed") in ("passed", "lossy"):
        row = {**row, "status": "wrong", "code": problem[0], "message": problem[1]}
    return OpCheck.model_validate({**empty, **row, "repeats": remark.get("repeats"), "spread": spread})


def check_outputs(course: Course, worker: Worker) -> None:
    """The whole model's outputs with the candidate bound in that worker."""
    course.progress.stage("check", "the model's outputs, against one precision higher")
    assert course.clean is not None
    crew = course.crew
    know_answers(course, crew.require(course.clean, "reference_logits", tokens=_model_tokens(course)))
    compare_outputs(course, worker)
    for _, member in course.bound:
        if _lossy_in(course, member) is not None:
            check_budget(course, member)
    if course.evidence.stage_asked.rank > STAGE.rank:  # what modes are compared with
        know_answers(course, crew.require(course.clean, "reference_step"))


def compare_outputs(course: Course, worker: Worker) -> None:
    """What the kernels bound in that worker make of the model, against what the reference made of it before."""
    assert course.clean is not None
    crew, path, ratio = course.crew, str(course.handed_over("logits.safetensors")), course.policy.numerics.error_ratio
    calls = crew.ask(worker, "logits", stage=STAGE, tokens=_model_tokens(course), path=path)["calls"]
    members = [member for _, member in course.bound]
    declared = [item for member in members if (item := _lossy_in(course, member)) is not None]
    precision = max(declared, key=PRECISIONS.index, default=None)
    row = crew.require(course.clean, "compare_logits", path=path, ratio=ratio, is_lossy=precision is not None)
    own = {
        "mutates": [name for member in members for name in member.kernel.manifest.mutates],
        "kernel_calls": min(sum(calls.get(fqn, 0) for fqn in member.fqns) for member in members),
        "precision": precision,
    }
    course.learn(model_check=ModelCheck.model_validate({**row, **own}))


def _lossy_in(course: Course, member: Member) -> Precision | None:
    """The lossy precision that the kernel declares, where the model's dtype holds more."""
    return member.kernel.manifest.lossy_in(course.crew.cell.dtype)


def check_budget(course: Course, member: Member) -> None:
    """Whether the budget that decides on a declared lossy kernel would catch plain mistakes in this model."""
    assert course.clean is not None
    rows = course.crew.require(course.clean, "gross_errors", fqns=member.fqns)["rows"]
    found = [
        MutantCheck(
            name=f"{row['name']}, by the model's outputs",
            caught=bool(over_budget(row["kl_added"], row["nll_upper"], course.policy.numerics)),
            kernel=course.said(member),
        )
        for row in rows
    ]
    course.learn(mutants=[*course.evidence.mutants, *found])


def rounding_of(course: Course) -> float:
    """The error in the model's outputs that is known of a declared lossy kernel; 0 for every other."""
    check = course.evidence.model_check
    return (check.error_candidate or 0.0) if check is not None and check.precision is not None else 0.0


def know_answers(course: Course, reply: dict[str, Any]) -> None:
    """Which of the exam's answers were an earlier run's, as the clean process says."""
    exam = course.evidence.exam
    if exam is None:
        return
    if reply["rejected"]:
        course.progress.note("what an earlier run kept did not come out the same again: thrown away, computed afresh")
    more = {name: getattr(exam, name) + reply[name] for name in ("kept", "rows", "rows_again", "rejected")}
    course.learn(exam=exam.model_copy(update=more))


def _model_tokens(course: Course) -> int:
    """As many tokens as the policy wants, the size of the answers allows and, on a CPU, the model's own size."""
    answer, numerics = Answer.model_validate(course.facts["answer"]), course.policy.numerics
    most = min(numerics.model_tokens, numerics.capture_bytes // (4 * (answer.width or 1)) * answer.tokens)
    if course.crew.device == "cpu" and course.evidence.model is not None:
        most = min(most, max(_FEWEST_TOKENS, _CPU_PRODUCTS // course.evidence.model.parameters))
    return max(1, most)


_CPU_PRODUCTS = 2**36
"""Weights times tokens that a CPU's reference is asked for: about ten seconds of one thread in float64."""

_FEWEST_TOKENS = 64


def check_training(course: Course, worker: Worker) -> None:
    """One training step's gradients with the candidate bound in that worker."""
    course.progress.stage("check", "one training step: gradients of every parameter")
    paths = {
        True: str(course.handed_over("gradients-candidate.st")),
        False: str(course.path("gradients-baseline.st")),
    }
    assert course.clean is not None
    own = course.crew.require(course.clean, "gradients", candidate=False, path=paths[False])
    theirs = course.crew.ask(worker, "gradients", stage=STAGE, candidate=True, path=paths[True])
    _know_calls(course, theirs["calls"], proof="calls counted in an untimed training step")
    row = course.crew.require(
        course.clean,
        "compare_gradients",
        baseline=paths[False],
        candidate=paths[True],
        ratio=course.policy.numerics.error_ratio,
    )
    course.learn(
        training=TrainingCheck.model_validate(
            {
                **row,
                "parameters": own["parameters"],
                "with_gradient_baseline": len(own["with_gradient"]),
                "with_gradient_candidate": len(theirs["with_gradient"]),
                "loss_baseline": own["loss"],
                "loss_candidate": theirs["loss"],
            }
        )
    )
    if row["status"] == "passed":
        _loss_paths(course, worker)
    if course.evidence.stage_asked.rank > STAGE.rank:  # what modes are compared with
        found = course.crew.require(course.clean, "reference_training")
        assert course.evidence.training is not None
        course.learn(training=course.evidence.training.model_copy(update=found))


def _loss_paths(course: Course, worker: Worker) -> None:
    """Where the kernel leads a model that it trains."""
    steps, path = course.policy.numerics.training_steps, str(course.handed_over("paths.st"))
    course.progress.stage("check", f"{steps} training steps: does the loss go where the baseline's goes?")
    assert course.clean is not None and course.evidence.training is not None
    limit = course.policy.budgets.compile_s
    course.crew.require(course.clean, "reference_paths", timeout_s=limit, steps=steps)
    course.crew.ask(worker, "loss_paths", stage=STAGE, timeout_s=limit, path=path, steps=steps)
    rows = course.crew.require(course.clean, "compare_paths", path=path)["paths"]
    paths = [LossPath.model_validate(row) for row in rows]
    course.learn(training=course.evidence.training.model_copy(update={"paths": paths}))


def arm_is_right(course: Course, worker: Worker, arm: str) -> str | None:
    """Why an arm may not be timed: in its mode the step's outputs are further from the reference than allowed."""
    assert course.clean is not None
    path = str(course.handed_over("step.safetensors"))
    if course.crew.cell.step == "train":
        course.crew.ask(worker, "probes", stage=Stage.SCREEN, arm=arm, path=path)
        problem: str | None = course.crew.require(course.clean, "compare_probes", path=path)["problem"]
        return problem
    course.crew.ask(worker, "step_output", stage=Stage.SCREEN, arm=arm, path=path)
    rough = rounding_of(course) if ArmName.parse(arm).role in WITH_KERNELS else 0.0
    row = course.crew.require(course.clean, "compare_step", path=path, rough=rough)
    if row["passed"]:
        return None
    found = "not finite or of another shape" if row["error"] is None else f"error {row['error']:.1e}"
    return f"its step's outputs are wrong: {found}, allowed {row['allowed']:.1e} (eager baseline {row['baseline']:.1e})"
