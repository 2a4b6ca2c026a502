"""Stage `check`: the op's sites, proof of engagement, and correctness against higher precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from e2e.arm_names import AS_SHIPPED, WITH_KERNELS, ArmName, is_adopted
from e2e.crew import MANY_CORES
from e2e.errors import EnvironmentFault, UsageError
from e2e.measure.machine import thread_count
from e2e.numerics.constraints import declined_by
from e2e.processes import Worker, WorkerFault
from e2e.rules.lossy import over_budget
from e2e.schema.evidence import (
    TYPICAL,
    Answer,
    DeviceFacts,
    Fault,
    LossPath,
    ModelCheck,
    ModelFacts,
    MutantCheck,
    OpCheck,
    SiteRecord,
    TrainingCheck,
    engagement_at,
)
from e2e.schema.precision import PRECISIONS, Precision
from e2e.schema.words import Mode, ReasonCode, Role, Stage
from e2e.stages import earlier
from e2e.stages.apart import tried_apart
from e2e.stages.course import Course
from e2e.wording import size
from e2e.workers import CandidateFault, Member

STAGE = Stage.CHECK


def check(course: Course) -> None:
    """Survey the model, begin to compile beside it what an earlier run did not, and judge the candidate's outputs."""
    course.progress.stage("check", "loading the model, looking for the op's sites")
    with course.spending("load"):
        clean, begun = course.crew.begin(clean=True), course.crew.begin(clean=False)
        course.crew.warm()
        course.clean = course.crew.opened(clean)
    know_device(course)
    named = None
    if any(member.kernel.manifest.kind == "patch" for member in course.crew.members):
        named = scouted(course, begun)
        begun = course.crew.begin(clean=False)
    survey(course, named)
    if not all(member.fqns for member in course.crew.members):
        begun.close()
        course.finish(STAGE)
        return
    if course.evidence.stage_asked.rank > STAGE.rank:
        need_room(course)
        course.left_out = earlier.left_out(course)
        course.warmers = warm_caches(course)
    worker = course.crew.candidate_worker(course.fqns, stage=STAGE, begun=begun)
    course.learn(bind_s=course.crew.bind_s)
    try:
        course.progress.stage("check", "the op on the model's own activations, against float64")
        with tried_apart(course, check_op, stage=STAGE):
            check_op(course, worker)  # first: a wrong dtype or shape would only raise somewhere in the model
        check_mutants(course)
        if course.crew.cell.step == "train":
            with tried_apart(course, check_training, stage=STAGE):
                check_training(course, worker)
        else:
            with tried_apart(course, compare_outputs, stage=STAGE):
                engage(course, worker)
                check_outputs(course, worker)
        course.crew.see_rest(worker, stage=STAGE)
    finally:
        worker.close()
    course.finish(STAGE)


def know_device(course: Course) -> None:
    """Where the clean worker runs."""
    assert course.clean is not None
    facts = course.clean.facts
    course.facts |= facts
    spec = course.crew.workload.workload.model
    course.learn(
        random_weights=spec.weights == "random",
        model=ModelFacts.model_validate(facts["facts"]),
        device=DeviceFacts(
            kind="cpu" if course.crew.device == "cpu" else "cuda",
            name=facts["device"],
            count_threads=thread_count(),
            total_memory_bytes=facts["memory"],
        ),
    )


def scouted(course: Course, begun: Worker) -> list[str]:
    """Which modules a patch changes: found in a process of its own, where it runs on a copy of the model.

    Raises:
        CandidateFault: it raised, or what it does cannot be kept to one copy.
    """
    course.progress.stage("check", "what does the patch change?")
    (patch,) = course.crew.members
    assert patch.built is not None
    with course.crew.opened(begun) as scout:
        built = patch.built.model_dump(mode="json")
        fqns: list[str] = course.crew.ask(scout, "scout", stage=STAGE, built=built)["fqns"]
    return fqns


def survey(course: Course, named: list[str] | None = None) -> None:
    """What the model's sites are, which of them mean the ops, and which the kernels take.

    `named` are those of a patch, which says itself where it goes.

    Raises:
        UsageError: two kernels want to stand in one place.
    """
    members = course.crew.members
    found = [(member, record) for member in members for record in _surveyed(course, member, named)]
    owner: dict[str, Member] = {}
    for wanted in ("patched", "declined"):
        for member, record in found:
            if record.status == wanted:
                first = owner.setdefault(record.fqn, member)
                if wanted == "patched" and first is not member:
                    raise UsageError(conflict(first, member, record.fqn, "both stand for what happens there"))
    for member in members:
        own = [record for owned, record in found if owned is member and owner.get(record.fqn) is member]
        member.fit = [record.fqn for record in own]
        member.fqns = [record.fqn for record in own if record.status == "patched"]
        count = sum(owned is member for owned, _ in found)
        course.progress.note(f"{count} sites of {member.op}, {len(member.fqns)} take the kernel")
    course.fqns = [fqn for member in members for fqn in member.fqns]
    _need_apart(course)
    # a site of the same op that another kernel takes is none that this one misses
    ops = {record.fqn: member.op for member, record in found if record.status == "patched"}
    records = [record for member, record in found if record.status != "declined" or ops.get(record.fqn) != member.op]
    _know_sites(course, records, proof="" if named != [] else "the patch was run, and changed no module of this model")


def _surveyed(course: Course, member: Member, named: list[str] | None) -> list[SiteRecord]:
    """The sites of one kernel's op."""
    assert course.clean is not None
    rows = course.crew.require(
        course.clean,
        "survey",
        part=course.crew.members.index(member),
        path=str(course.calls_path(member)),
        budget_bytes=course.policy.numerics.capture_bytes,
        named=named,
    )["sites"]
    records = []
    for row in rows:
        why, status = row["incompatible"], "incompatible"
        if why is None:
            constraints = member.kernel.manifest.constraints
            refused = [text for dims in row["all_dims"] if (text := declined_by(constraints, dims))]
            why, status = (f"the kernel declares {refused[0]!r}", "declined") if refused else (None, "patched")
        about = {"status": status, "reason": why, "unchecked": row.get("unchecked"), "dims": row["dims"]}
        about |= {"kernel": course.said(member)}
        records.append(SiteRecord.model_validate({"fqn": row["fqn"], "owner": row["owner"], **about}))
    return records


def _need_apart(course: Course) -> None:
    """Refuse kernels of which one stands for code that has another one's site in it.

    Raises:
        UsageError: names both, and the site.
    """
    members = course.crew.members
    if len(members) == 1 or not all(member.fqns for member in members):
        return
    assert course.clean is not None
    reply = course.crew.require(course.clean, "shadowed", fqns=[member.fqns for member in members])
    for fqn, place in reply["shadowed"]:
        mine = next(member for member in members if fqn in member.fqns)
        raise UsageError(conflict(members[place], mine, fqn, "the first stands for code that the second is a part of"))


def conflict(first: Member, second: Member, fqn: str, why: str) -> str:
    """What two kernels that cannot stand in one model are told."""
    return (
        f"{first.kernel.spec} and {second.kernel.spec} conflict at {fqn}: {why}; leave one of them out, or keep them "
        "apart by their `constraints`"
    )


def _know_sites(course: Course, records: list[SiteRecord], *, proof: str, moved: bool | None = None) -> None:
    course.learn(engagement=engagement_at(records, proof=proof, moved=moved))


def begin_pilot(course: Course, names: Sequence[str]) -> None:
    """Start preparing these arms in a worker of its own, without waiting: compiling takes longest."""
    course.pilot = course.crew.candidate_worker(course.fqns, stage=STAGE)
    for name in names:
        course.pilot.send("prepare", arm=name)


def warm_caches(course: Course) -> list[tuple[Worker, list[str]]]:
    """Compile ahead of the pilot, which then finds the code in the cache: the model's own in clean processes, where no
    kernel can meddle, and not again where an earlier run's did; where cores abound, the kernel's as well.

    There, one process per kind of arm, its modes one after the other: modes of one kind share most of their code.
    What compiles cold does it here, so these first steps are the ones that a user meets.
    """
    is_wide = thread_count() >= MANY_CORES
    arms = [arm for arm in map(ArmName.parse, arm_names(course)) if course.compiles(arm)]
    is_done = course.crew.has_compiled([str(arm) for arm in arms if _is_clean(course, arm)])
    groups: dict[Any, list[str]] = {}
    for arm in arms:
        is_clean = _is_clean(course, arm)
        if (is_clean and not is_done) or (is_wide and not is_clean):
            groups.setdefault((arm.role, arm.alternative) if is_wide else "one at a time", []).append(str(arm))
    if is_done and not groups:
        course.crew.hand_over_compiled(is_earlier=True)
    warmers = []
    for names in groups.values():
        if _is_clean(course, ArmName.parse(names[0])):
            worker = course.crew.worker(clean=True)
            course.crew.make_arena(worker)
        else:
            worker = course.crew.candidate_worker(course.fqns, stage=STAGE)
        for name in names:
            worker.send("prepare", arm=name)
        warmers.append((worker, names))
    return warmers


def _is_clean(course: Course, arm: ArmName) -> bool:
    """Whether a process that never holds the kernel can compile the arm."""
    is_own = arm.role is Role.BASELINE and not is_adopted(arm.alternative)
    return is_own or (arm.role is Role.HEADROOM and course.runs_everywhere)


def wait_for_caches(course: Course) -> None:
    """Until the caches are warm; what failed here fails again in the pilot, where it is recorded."""
    compiled = []
    for worker, names in course.warmers:
        for name in names:
            try:
                reply = worker.answer("prepare", timeout_s=course.policy.budgets.compile_s)
                course.know_first_step(name, reply["first_step_s"], clean=worker.clean)
                compiled += [name] if worker.clean else []
            except WorkerFault as fault:
                if fault.kind != "raised":
                    break
        worker.close()
    course.warmers = []
    if compiled:
        course.crew.know_compiled(compiled)
    course.crew.hand_over_compiled()


def arm_names(course: Course) -> list[str]:
    """The arms of the tournament, simplest first; those of max-autotune come later."""
    return [str(arm) for arm in every_arm(course) if not is_left_out(course, arm)]


def is_left_out(course: Course, arm: ArmName) -> bool:
    """Whether an earlier run's pilot spares us the arm; eager as shipped is wanted in any case."""
    return arm.mode in course.left_out and str(arm) != AS_SHIPPED


def every_arm(course: Course) -> list[ArmName]:
    """Baselines first and simplest first, then candidates, then headroom.

    Without those of max-autotune: they wait until it is known what compiling costs here.
    """
    modes = [mode for mode in course.policy.modes if mode_problem(course, mode) is None]
    modes = [mode for mode in modes if mode is not Mode.MAX_AUTOTUNE]
    alternatives = [None, *course.facts["alternatives"], *course.crew.adopted]
    baselines = [
        ArmName(Role.BASELINE, mode, other)
        for mode in modes
        for other in alternatives
        if other is None or mode in course.policy.alternative_modes
    ]
    candidates = [ArmName(Role.CANDIDATE, mode) for mode in modes]
    return [*baselines, *candidates, *(ArmName(Role.HEADROOM, mode) for mode in modes)]


def need_room(course: Course) -> None:
    """Training arms have states of their own, and all of them are in one process.

    Raises:
        EnvironmentFault: the device cannot hold them.
    """
    room, cell = course.facts["memory"], course.crew.cell
    if cell.step != "train" or room is None:
        return
    parameters, train = int(course.facts["facts"]["parameters"]), course.crew.workload.workload.train
    each = parameters * SIZES[cell.dtype] * train.copies
    arms = len(arm_names(course))
    if arms * each > room:
        raise EnvironmentFault(
            f"{arms} arms with a training state of {size(each)} each do not fit into {size(room)}, and arms are not "
            "yet run process by process: name fewer `modes` and `alternative_modes` in the policy, or a smaller model"
        )


SIZES = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of an element."""


def mode_problem(course: Course, mode: Mode) -> str | None:
    """Why a mode cannot exist in this step or on this device, before anything is tried."""
    if mode is Mode.CUDA_GRAPH and course.crew.cell.step == "train":
        return "a training step is not captured by hand; reduce-overhead captures its forward and backward"
    if mode.is_graphed and mode is not Mode.MAX_AUTOTUNE and course.crew.device == "cpu":
        return "CUDA graphs need a CUDA device"
    return None


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
    _know_sites(course, records, proof=proof, moved=moved)


def check_op(course: Course, worker: Worker) -> None:
    """The kernels bound in that worker, each on every captured and edge input of its op."""
    ratio = course.policy.numerics.error_ratio
    assert course.clean is not None
    found = []
    for part, member in course.bound:
        inputs, outputs = str(course.calls_path(member)), str(course.path(f"op-outputs-{part}.safetensors"))
        reply = course.crew.ask(
            worker, "run_ops", stage=STAGE, member=member, part=part, inputs=inputs, outputs=outputs
        )
        rows = course.crew.require(course.clean, "compare_ops", part=part, outputs=outputs, ratio=ratio)["checks"]
        said = {"kernel": course.said(member)}
        is_lossy = _lossy_in(course, member) is not None
        checks = op_checks(rows, reply["remarks"], is_lossy=is_lossy)
        found += [check.model_copy(update=said) for check in checks]
        course.learn(op_checks=found)


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
    if remark["problem"] is not None:
        problem = (layout, remark["problem"])
    elif remark["inputs_changed"]:
        problem = (ReasonCode.INPUTS_CHANGED, "an input tensor was written to")
    elif remark["aliased"]:
        problem = (layout, "the output shares memory with an input or with the previous output")
    elif remark["layout"] and row.get("label") in TYPICAL:  # how others lie in memory, nobody there relies on
        problem = (layout, f"the output's strides are {remark['layout']}")
    if problem and row.get("status", "passed") in ("passed", "lossy"):
        row = {**row, "status": "wrong", "code": problem[0], "message": problem[1]}
    return OpCheck.model_validate({**empty, **row, "repeats": remark.get("repeats")})


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
    crew, path, ratio = course.crew, str(course.path("logits.safetensors")), course.policy.numerics.error_ratio
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
        True: str(course.path("gradients-candidate.st")),
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
    steps, path = course.policy.numerics.training_steps, str(course.path("paths.st"))
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
    path = str(course.path("step.safetensors"))
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
