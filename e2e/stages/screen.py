"""Stage `screen`: the tournament of arms, the ceiling, the op alone. Never a confirmation."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any, Literal

from e2e import ceilings, stats, wording
from e2e.arm_names import AS_SHIPPED, WITH_KERNELS, ArmName, is_adopted, places_of, some_kernels
from e2e.errors import E2EError, NoRoom
from e2e.judge import judge
from e2e.measure.machine import thread_count
from e2e.measure.schedule import pick_strongest, steps_for
from e2e.processes import Worker, WorkerFault
from e2e.schema.evidence import ArmRecord, Fault, Generation, Isolated, Roofline, Segment
from e2e.schema.verdict import Estimate
from e2e.schema.words import Mode, ReasonCode, Role, Stage
from e2e.stages import earlier
from e2e.stages.apart import tried_apart
from e2e.stages.correctness import arm_is_right
from e2e.stages.course import Course
from e2e.stages.lineup import arm_names, begin_pilot, every_arm, is_left_out, mode_problem, wait_for_caches
from e2e.stages.memory import measure_memory
from e2e.stages.timing import rough_step_s, run_block, segment_steps, warm_up
from e2e.weighing import opponent_arm, weigh
from e2e.workers import CandidateFault, Member

STAGE = Stage.SCREEN
PILOT_WORKER, CEILING_WORKER = 0, 1
PILOT_BLOCKS = 2
"""Mirrored blocks of all arms; they choose the modes and are part of no interval."""
PILOT_SEGMENT_S = 0.1
AUTOTUNE_COST = 4.0
"""Compiling with max-autotune over compiling without: assumed, not measured; it times many variants of every large
kernel."""
AUTOTUNE_SHARE = 0.2
"""Of the time left, the most that tuning may take: the verdict needs the rest."""
_GENERATIONS = 5
"""Steps whose first token is timed, and as many whole ones; the medians are told."""
NEAR = 1.05
TIE_OF_MARGIN = 0.2
"""Arms this share of the margin apart are a tie: a wider one would let the candidate face a weaker baseline."""


def screen(course: Course) -> None:
    """Try every arm, choose the strongest of either side, and bound what any kernel could win."""
    course.progress.stage("screen", "compiling every arm")
    with course.spending("compile"):
        if course.pilot is None:
            wait_for_caches(course)
            begin_pilot(course, arm_names(course))
        _prepare_arms(course)
    if course.deadline.left_s <= 0:
        course.learn(budget_exhausted=True)
        return
    course.progress.stage("screen", "pilot of every arm")
    course.watch.begin()
    _pilot(course)
    course.progress.stage("screen", "the most any kernel for this op could win")
    _ceiling(course)
    _each_alone(course)
    _isolated(course)
    _generation(course)
    if course.policy.objective == "memory" and course.evidence.baseline and course.evidence.candidate:
        measure_memory(course, stage=STAGE)  # what saves nothing needs no long run
    course.finish(STAGE)


def _prepare_arms(course: Course) -> None:
    """Collect what `begin_pilot` asked for, then what the time allows beyond."""
    records = collected(course, {}, arm_names(course))
    tuned, reason = _autotuned(course, records)
    assert course.pilot is not None
    for name in [] if reason else tuned:
        course.pilot.send("prepare", arm=name)
    records = collected(course, records, [] if reason else tuned)
    skipped = [_absent(ArmName.parse(name), "skipped", reason) for name in tuned if reason]
    course.learn(arms=[*records.values(), *skipped, *_skipped(course), *_left_out(course)])


def _autotuned(course: Course, records: dict[str, ArmRecord]) -> tuple[list[str], str]:
    """The arms of max-autotune, and why they are left out, if they are.

    Only the model as it is and with the kernel: an alternative's other code matters little to what is tuned.
    """
    if Mode.MAX_AUTOTUNE not in course.policy.modes:
        return [], ""
    names = [str(ArmName(role, Mode.MAX_AUTOTUNE)) for role in (Role.BASELINE, Role.CANDIDATE)]
    if course.evidence.stage_asked is not Stage.VERDICT:
        return names, "tried at stage verdict only"
    compiled = [r.first_step_s for r in records.values() if r.mode.is_compiled and r.first_step_s is not None]
    takes_s = AUTOTUNE_COST * len(names) * max(compiled, default=0.0)
    if not compiled:
        return names, "no compiled arm works here"
    if takes_s > AUTOTUNE_SHARE * course.deadline.left_s:
        left = wording.span(course.deadline.left_s)
        return names, f"tuning would take about {wording.span(takes_s)} of the {left} that are left"
    return names, ""


def collected(course: Course, records: dict[str, ArmRecord], waiting: list[str]) -> dict[str, ArmRecord]:
    """The pilot's answers; an arm that fails is shown with its reason, never dropped."""
    while waiting:
        name = waiting.pop(0)
        arm = ArmName.parse(name)
        course.progress.advance(len(records), len(records) + len(waiting) + 1, f"preparing {name}")
        assert course.pilot is not None
        try:
            reply = course.pilot.answer("prepare", timeout_s=course.policy.budgets.compile_s)
            course.know_first_step(name, reply["first_step_s"], clean=False)
            if arm.role is Role.CANDIDATE:
                course.learn(prepare_s=reply["prepare_s"])
            records[name] = record_of(course, arm, reply)
        except WorkerFault as fault:
            needs_none = arm.role is Role.CANDIDATE and arm.mode is Mode.EAGER
            if needs_none and fault.reason == ReasonCode.OUT_OF_MEMORY and _failed(records, AS_SHIPPED):
                raise NoRoom(f"as shipped and with the kernel: {fault.message}") from fault
            if needs_none or (arm.role in WITH_KERNELS and fault.kind != "raised"):
                raise course.crew.blame(fault, stage=STAGE, worker=course.pilot) from fault
            records[name] = _absent(arm, "failed", fault.message)
            if fault.kind != "raised":  # it took its process with it: a new one, without that arm
                waiting = [*(name for name, record in records.items() if record.status == "ok"), *waiting]
                begin_pilot(course, waiting)
    return records


def _failed(records: Mapping[str, ArmRecord], arm: str) -> bool:
    return arm in records and records[arm].status == "failed"


def record_of(course: Course, arm: ArmName, reply: dict[str, Any]) -> ArmRecord:
    """What a prepared arm proved about itself, and whether its mode keeps the result."""
    calls = _calls(course, arm, reply)
    silent = [spec for spec, number in calls.items() if not number]
    status, reason = "ok", "compiled with breaks in its graph" if reply["graph_breaks"] else None
    if arm.mode.is_compiled and not reply["regions"]:
        status, reason = "void", "it ran eagerly: no compiled region was entered"
    elif silent:
        graph = "compiled" if arm.mode.is_compiled else "captured"
        status, reason = "void", f"{silent[0] or 'the kernel'} is not in the {graph} graph"
    return ArmRecord(
        name=str(arm),
        role=arm.role,
        mode=arm.mode,
        alternative=arm.alternative,
        status="ok" if status == "ok" else "void",
        reason=reason,
        first_step_s=course.first_steps.get(str(arm)) if course.compiles(arm) else reply["first_step_s"],
        compiled_regions=reply["regions"],
        kernel_calls=sum(calls.values()) if calls else None,
    )


def _calls(course: Course, arm: ArmName, reply: dict[str, Any]) -> dict[str | None, int]:
    """Calls of every kernel that stands in the arm: nodes in its graphs, or for an eager one those of the check."""
    if arm.role not in WITH_KERNELS:
        return {}
    engagement, places = course.evidence.engagement, places_of(arm)
    calls = {}
    for part, member in enumerate(course.crew.members):
        if places is not None and part not in places:
            continue
        counted = reply["kernel_calls"][part] if reply["kernel_calls"] is not None else 0
        if arm.mode is Mode.EAGER and engagement is not None:
            counted = sum(site.calls for site in engagement.sites if site.kernel == course.said(member))
        calls[course.said(member)] = counted
    return calls


def _absent(arm: ArmName, status: Literal["failed", "skipped", "left_out"], reason: str) -> ArmRecord:
    return ArmRecord(
        name=str(arm),
        role=arm.role,
        mode=arm.mode,
        alternative=arm.alternative,
        status=status,
        reason=reason,
    )


def _skipped(course: Course) -> list[ArmRecord]:
    return [
        _absent(ArmName(role, mode), "skipped", problem)
        for mode in course.policy.modes
        if (problem := mode_problem(course, mode)) is not None
        for role in (Role.BASELINE, Role.CANDIDATE)
    ]


def _left_out(course: Course) -> list[ArmRecord]:
    left_out = [arm for arm in every_arm(course) if is_left_out(course, arm) and arm.role is not Role.HEADROOM]
    return [_absent(arm, "left_out", course.left_out[arm.mode]) for arm in left_out]


def _pilot(course: Course) -> None:
    """Time every arm that works, drop those whose mode changes the result, and choose."""
    assert course.pilot is not None
    usable = [_checked(course, record) for record in course.evidence.arms]
    course.learn(arms=usable)
    names = [record.name for record in usable if record.status == "ok"]
    warm_up(course, course.pilot, names, worker_number=PILOT_WORKER, stage=STAGE)
    step_s = _rough_step_s(course)
    steps = steps_for(step_s, segment_s=PILOT_SEGMENT_S, min_steps=course.policy.min_steps)
    for number in range(PILOT_BLOCKS):
        _timed(
            course,
            course.pilot,
            dict.fromkeys(names, steps),
            phase="pilot",
            worker_number=PILOT_WORKER,
            number=number,
        )
    course.learn(arms=[_with_time(course, record) for record in course.evidence.arms])
    earlier.remember(course)
    arms = course.evidence.arms
    adopted = {name: _strongest(course, [r for r in arms if r.alternative == name]) for name in course.crew.adopted}
    course.learn(
        baseline=_strongest(course, [r for r in arms if r.role is Role.BASELINE and not is_adopted(r.alternative)]),
        candidate=_strongest(course, [r for r in arms if r.role is Role.CANDIDATE]),
        adopted={name: arm for name, arm in adopted.items() if arm is not None},
    )
    _match_headroom(course)
    course.progress.note(f"strongest PyTorch: {course.evidence.baseline}; best candidate: {course.evidence.candidate}")


def arms_in_use(course: Course) -> list[str]:
    """The pilot's arms of which something may still be asked after the tournament."""
    opponents = [opponent_arm(course.evidence, opponent) for opponent in course.policy.opponents]
    alone = [record.name for record in course.evidence.arms if record.role is Role.PART and record.status == "ok"]
    wanted = [AS_SHIPPED, *_chosen(course), *headroom_arms(course), *filter(None, opponents), *alone]
    return list(dict.fromkeys(wanted))


def _match_headroom(course: Course) -> None:
    """The headroom arm of a chosen mode that has none yet: a slower mode's ceiling would be none."""
    chosen = [record for record in course.evidence.arms if record.name in _chosen(course)]
    for mode in dict.fromkeys(record.mode for record in chosen):
        name = str(ArmName(Role.HEADROOM, mode))
        if name not in (record.name for record in course.evidence.arms):
            _try_late(course, [name], first_block=PILOT_BLOCKS)


def _each_alone(course: Course) -> None:
    """Every one of several kernels without the others, in the mode that all of them are best in."""
    members = course.crew.members
    if len(members) == 1 or course.evidence.candidate is None or not course.has_time:
        return
    if weigh(course.evidence, course.policy).has_no_headroom:
        return  # no verdict follows that these arms could be timed in
    mode = ArmName.parse(course.evidence.candidate).mode
    names = [str(some_kernels(mode, [part])) for part in range(len(members))]
    course.progress.stage("screen", "each kernel without the others")
    with course.spending("compile"):
        _try_late(course, names, first_block=2 * PILOT_BLOCKS)


def _try_late(course: Course, names: list[str], *, first_block: int) -> None:
    """Arms that could be named only after the tournament: prepared, and timed beside the strongest baseline."""
    assert course.pilot is not None
    for name in names:
        course.pilot.send("prepare", arm=name)
    found = [_checked(course, record) for record in collected(course, {}, list(names)).values()]
    course.learn(arms=[*course.evidence.arms, *found])
    usable = [record.name for record in found if record.status == "ok"]
    plan = dict.fromkeys((str(course.evidence.baseline), *usable), segment_steps(course, _chosen(course)[0]))
    for number in range(first_block, first_block + PILOT_BLOCKS) if usable else ():
        _timed(course, course.pilot, plan, phase="pilot", worker_number=PILOT_WORKER, number=number)
    course.learn(arms=[_with_time(course, record) for record in course.evidence.arms])


def _chosen(course: Course) -> list[str]:
    return [name for name in (course.evidence.baseline, course.evidence.candidate) if name is not None]


def _checked(course: Course, record: ArmRecord) -> ArmRecord:
    """The arm, void if its mode changes the result; a candidate that is wrong in any mode is wrong.

    Raises:
        CandidateFault: a candidate arm's outputs are wrong.
    """
    if record.status != "ok" or record.role is Role.HEADROOM:
        return record
    assert course.pilot is not None
    if record.role is Role.CANDIDATE:
        with tried_apart(course, lambda own, worker: _prepare_right(own, worker, record.name), stage=STAGE):
            _need_right(course, course.pilot, record.name)
        return record
    problem = arm_is_right(course, course.pilot, record.name)
    return record if problem is None else record.model_copy(update={"status": "void", "reason": problem})


def _need_right(course: Course, worker: Worker, arm: str) -> None:
    problem = arm_is_right(course, worker, arm)
    if problem is not None:
        message = f"{arm}: {problem}"
        raise CandidateFault(Fault(code=ReasonCode.MODEL_ERROR_EXCEEDED, message=message, stage=STAGE))


def _prepare_right(course: Course, worker: Worker, arm: str) -> None:
    limit = course.policy.budgets.compile_s
    course.crew.ask(worker, "prepare", stage=STAGE, timeout_s=limit, arm=arm, profiled=False)
    _need_right(course, worker, arm)


def _rough_step_s(course: Course) -> float:
    """The eager baseline's step, to size the pilot's segments."""
    assert course.pilot is not None
    return rough_step_s(course, course.pilot, AS_SHIPPED, stage=STAGE)


def _timed(
    course: Course, worker: Worker, plan: dict[str, int], *, phase: Any, worker_number: int, number: int
) -> None:
    run_block(course, worker, plan, phase=phase, worker_number=worker_number, block_number=number, stage=STAGE)


def _with_time(course: Course, record: ArmRecord) -> ArmRecord:
    return record.model_copy(update={"step_s": stats.step_seconds(course.evidence.segments, record.name)})


def _strongest(course: Course, arms: list[ArmRecord]) -> str | None:
    timed = [record for record in arms if record.step_s is not None]
    if not timed:
        return None
    order = sorted(timed, key=lambda record: (record.mode.rank, record.alternative is not None))
    times = {record.name: record.step_s for record in timed if record.step_s is not None}
    return pick_strongest(times, [record.name for record in order], tie=TIE_OF_MARGIN * course.policy.margin)


def _ceiling(course: Course) -> None:
    """Strongest baseline against the headroom arms; a second worker where it can confirm that there is no headroom."""
    baseline, fastest = course.evidence.baseline, headroom_arms(course)
    if not fastest or baseline is None or course.pilot is None:
        return
    opponents = {baseline, opponent_arm(course.evidence, course.policy.decides) or baseline}
    plan = dict.fromkeys((*sorted(opponents), *fastest), segment_steps(course, baseline))
    _ceiling_blocks(course, course.pilot, plan, worker_number=PILOT_WORKER)
    seen = ceiling(course)
    if course.has_time and seen is not None and seen.upper_bound < 1 + course.policy.margin:
        _second_ceiling(course, plan)
        seen = ceiling(course)
    if seen is not None:
        course.progress.note(
            f"any kernel for this op: {seen.point_estimate:.3f}x at most "
            f"({seen.lower_bound:.3f} to {seen.upper_bound:.3f})"
        )


def _ceiling_blocks(course: Course, worker: Worker, plan: dict[str, int], *, worker_number: int) -> None:
    """The policy's blocks; while the ceiling is near the margin, short ones go on for a while."""
    end = time.monotonic() + course.policy.ceiling_s
    number = PILOT_BLOCKS
    while course.has_time and (number < PILOT_BLOCKS + course.policy.blocks or time.monotonic() < end):
        _timed(course, worker, plan, phase="ceiling", worker_number=worker_number, number=number)
        number += 1
        if number == PILOT_BLOCKS + course.policy.blocks and not _is_near(course):
            return


def _is_near(course: Course) -> bool:
    """Whether the ceiling, as far as it is known, might decide the run."""
    seen = ceiling(course)
    return seen is None or seen.point_estimate < 1 + 2 * course.policy.margin


def headroom_arms(course: Course) -> list[str]:
    """The fastest headroom arm of the pilot, and those so near that more blocks may put them ahead."""
    times = {r.name: r.step_s for r in course.evidence.arms if r.role is Role.HEADROOM and r.step_s is not None}
    return [name for name, step_s in times.items() if step_s <= NEAR * min(times.values())]


def contending_headroom(course: Course) -> list[str]:
    """Those of them that may still prove to be the fastest: the ceiling's blocks did not put them clearly behind."""
    segments = [segment for segment in course.evidence.segments if segment.phase == "ceiling"]
    times = {name: stats.step_seconds(segments, name) for name in headroom_arms(course)}
    fastest = min(times, key=lambda name: times[name] or math.inf, default="")
    return [name for name in times if name == fastest or not _is_behind(course, segments, name, fastest)]


def _is_behind(course: Course, segments: list[Segment], arm: str, fastest: str) -> bool:
    """By half the margin, for certain, in every worker that timed both."""
    contrasts = stats.block_contrasts(segments, arm=arm, other=fastest)
    bounds = [stats.median_interval(v, course.policy.level).upper for v in contrasts.values() if len(v) >= 2]
    return bool(bounds) and max(bounds) < -math.log1p(course.policy.margin / 2)


def _second_ceiling(course: Course, plan: dict[str, int]) -> None:
    with course.crew.candidate_worker(course.fqns, stage=STAGE) as worker:
        with course.spending("compile"):
            for name in plan:
                course.crew.require(worker, "prepare", timeout_s=course.policy.budgets.compile_s, arm=name)
        warm_up(course, worker, plan, worker_number=CEILING_WORKER, stage=STAGE)
        _timed(course, worker, plan, phase="ceiling", worker_number=CEILING_WORKER, number=-1)
        _ceiling_blocks(course, worker, plan, worker_number=CEILING_WORKER)


def ceiling(course: Course) -> Estimate | None:
    """The ceiling as the judge sees it now."""
    return judge(course.evidence, course.policy).latency.ceiling


def _generation(course: Course) -> None:
    """First and following tokens, of the arms that will be compared; explains, never decides."""
    cell, found = course.crew.cell, []
    assert course.pilot is not None
    for arm in filter(None, (course.evidence.baseline, course.evidence.candidate)) if cell.new_tokens else ():
        first = course.seeds.take(_GENERATIONS)
        seeds = list(range(first, first + _GENERATIONS))
        reply = course.crew.ask(course.pilot, "generation", stage=STAGE, arm=arm, seeds=seeds)
        if reply["step_s"] and reply["first_token_s"]:
            found.append(Generation(arm=arm, tokens=cell.new_tokens, rows=cell.batch, **reply))
    course.learn(generations=found)


def _isolated(course: Course) -> None:
    """Every op alone at the workload's first captured shape; explains, never decides. A patch has no one op."""
    members = course.crew.members
    if any(member.kernel.manifest.kind == "patch" for member in members):
        return
    first, *others = [_alone(course, member) for member in members]
    course.learn(isolated=first, isolated_others=others)


def _alone(course: Course, member: Member) -> Isolated:
    assert course.pilot is not None and course.evidence.engagement is not None
    part = course.crew.members.index(member)
    tried = [record.alternative for record in course.evidence.arms]
    alternative = next((name for name in course.facts["alternatives_of"][part] if name in tried), None)
    reply = course.crew.ask(
        course.pilot,
        "isolated",
        stage=STAGE,
        member=member,
        part=part,
        inputs=str(course.calls_path(member)),
        seconds=min(3.0, 0.02 * course.policy.budgets.cell_s) / len(course.crew.members),
        alternative=alternative,
    )
    found, cold, said = reply["seconds"], reply["cold"] or {}, course.said(member)
    return Isolated(
        shape=next(check.shape for check in course.evidence.op_checks if check.kernel == said),
        calls_per_step=sum(site.calls for site in course.evidence.engagement.sites if site.kernel == said),
        eager_s=found["eager"],
        alternative=alternative,
        alternative_s=found.get("alternative"),
        candidate_s=found["candidate"],
        plumbing_s=reply["plumbing_s"],
        kernel=said,
        eager_cold_s=cold.get("eager"),
        alternative_cold_s=cold.get("alternative"),
        candidate_cold_s=cold.get("candidate"),
        roofline=_roofline(course, member, part),
    )


def _roofline(course: Course, member: Member, part: int) -> Roofline | None:
    """It explains only: what goes wrong costs no run."""
    assert course.clean is not None
    device = course.evidence.device
    try:
        found = course.crew.require(course.clean, "roofline", inputs=str(course.calls_path(member)), part=part)
        name = f"{device.name if device else course.crew.device}, {thread_count()} threads, {course.crew.cell.dtype}"
        limits = ceilings.highest(name, {key: found[key] for key in ceilings.NAMES})
        return Roofline.model_validate({**found, **limits})
    except (E2EError, OSError, ValueError) as error:
        course.learn(unseen=[*course.evidence.unseen, f"roofline: {wording.clean(str(error), 120)}"])
        return None
