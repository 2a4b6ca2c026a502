"""Stage `verdict`: fresh worker processes, mirrored blocks, planned looks; then the audit."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from e2e import stats, wording
from e2e.arm_names import AS_SHIPPED, ArmName
from e2e.measure.audit import Fingerprint, Replay, Tolerance, allowed_apart, compared, conclude, disagreements
from e2e.processes import Worker
from e2e.schema.words import Outcome, Role, Stage
from e2e.stages import clean
from e2e.stages.correctness import rounding_of
from e2e.stages.course import Course
from e2e.stages.ready import ready, workers_at_once
from e2e.stages.screen import CEILING_WORKER, contending_headroom, headroom_arms
from e2e.stages.timing import run_block, segment_steps, warm_up
from e2e.sweep import settled
from e2e.unfinished import VerdictSoFar
from e2e.units import Seconds
from e2e.weighing import opponent_arm, weigh

STAGE = Stage.VERDICT
FIRST_WORKER = CEILING_WORKER + 1
TIMED_SHARE = 0.6
"""Of a verdict worker's time, roughly what its blocks may take: it also starts, prepares, warms up, is audited."""


def time_verdict(course: Course) -> None:
    """Worker after worker until a look decides, the looks are used up, or the time is."""
    if course.evidence.baseline is None or course.evidence.candidate is None:
        return
    if course.verdict is None:
        course.verdict = _begun(course)
        course.forget_fingerprints()
        course.keep()
    pace, done = Pace(), course.evidence.workers_finished
    for first, look in pairwise((0, *course.policy.looks)):
        if not _reach(course, range(max(first, done), look), pace):
            course.learn(budget_exhausted=True)
            break
        if settled(course.evidence, course.policy, cells=course.cells):
            break
    row = weigh(course.evidence, course.policy).deciding
    if row is not None and row.outcome is Outcome.CONFIRMED:
        with course.spending("audit"):
            clean.time_losers(course, course.verdict.clean_arms)
    course.finish(STAGE)


def _begun(course: Course) -> VerdictSoFar:
    """What is decided once, before the first worker."""
    plan = _plan(course)
    blocks = _blocks(course, plan)
    with course.spending("audit"):
        return VerdictSoFar(plan=plan, blocks=blocks, clean_arms=clean.make_ready(course, plan))


def _plan(course: Course) -> dict[str, int]:
    """Arms of every block and their counted steps, from baselines' pilot times only."""
    assert course.evidence.baseline is not None and course.evidence.candidate is not None
    strongest = ArmName.parse(course.evidence.baseline)
    counted = segment_steps(course, course.evidence.baseline)
    plan = {course.evidence.baseline: counted, course.evidence.candidate: counted}
    plan[str(ArmName(Role.SHAM, strongest.mode, strongest.alternative))] = counted
    alone = [arm.name for arm in course.evidence.arms if arm.role is Role.PART and arm.status == "ok"]
    plan |= dict.fromkeys(alone, counted)
    opponents = [opponent_arm(course.evidence, opponent) for opponent in course.policy.opponents]
    return plan | {arm: segment_steps(course, arm) for arm in opponents if arm is not None and arm not in plan}


def _blocks(course: Course, plan: Mapping[str, int]) -> int:
    """Blocks per worker: from the spread of the pilot's block contrasts, as far as the time allows."""
    baseline = course.evidence.baseline
    assert baseline is not None
    fastest = headroom_arms(course)[:1]
    contrasts = [stats.block_contrasts(course.evidence.segments, arm=arm, other=baseline) for arm in fastest]
    spread = stats.block_sd(contrasts[0]) if contrasts else None
    if spread is None:
        return course.policy.blocks
    times = {record.name: record.step_s or 0.0 for record in course.evidence.arms}
    block_s = 2 * sum((steps + course.policy.settle_steps) * times.get(arm, 0.0) for arm, steps in plan.items())
    timed_s = TIMED_SHARE * (course.deadline.left_s - course.reserve_s) / course.policy.looks[0]
    affordable = int(timed_s / block_s) if block_s > 0 else course.policy.max_blocks
    return max(course.policy.blocks, min(stats.blocks_for(spread, course.policy), affordable))


@dataclass
class Pace:
    """The longest that was needed so far: for a group of workers to get ready, and for one to be timed."""

    ready_s: Seconds = 0.0
    timed_s: Seconds = 0.0


def _reach(course: Course, places: Sequence[int], pace: Pace) -> bool:
    """Time the workers up to a look, arms of the clean process after each; whether the time sufficed."""
    assert course.verdict is not None
    plan, waiting = course.verdict.plan, list(places)
    while waiting:
        if not _suffices(course, pace.ready_s + pace.timed_s, waiting):
            return False
        group = [waiting.pop(0) for _ in range(min(workers_at_once(course), len(waiting)))]
        plans = [_with_headroom(course, plan) if place < course.policy.ceiling_workers else plan for place in group]
        course.draw_for(f"workers from {group[0]}")
        start = time.monotonic()
        with ready(course, plans) as workers:
            pace.ready_s = max(pace.ready_s, time.monotonic() - start)
            for place, worker, arms in zip(group, workers, plans, strict=True):
                if not _suffices(course, pace.timed_s, places[places.index(place) :]):
                    return False
                start = time.monotonic()
                course.draw_for(f"worker {place}")
                if not _one_worker(course, worker, arms, place=place):
                    return False
                with course.spending("audit"):
                    clean_blocks = max(1, course.policy.blocks // course.policy.looks[0])
                    own = course.verdict.clean_arms
                    clean.time_arms(course, own, worker=FIRST_WORKER + place, blocks=clean_blocks)
                course.learn(workers_finished=course.evidence.workers_finished + 1)
                course.keep()
                _say(course)
                pace.timed_s = max(pace.timed_s, time.monotonic() - start)
    return True


def _suffices(course: Course, next_s: Seconds, waiting: Sequence[int]) -> bool:
    """Whether there is time for the next of the workers that a look still needs.

    What is kept for traces and memory stays kept, but not from the last of them: it says what the others were for.
    """
    return course.deadline.left_s >= next_s + (course.reserve_s if len(waiting) > 1 else 0.0)


def _with_headroom(course: Course, plan: Mapping[str, int]) -> dict[str, int]:
    return {**plan, **dict.fromkeys(contending_headroom(course), plan[str(course.evidence.baseline)])}


def _one_worker(course: Course, worker: Worker, plan: Mapping[str, int], *, place: int) -> bool:
    """All arms of a fresh process: one discarded block, then the counted ones; its steps are audited elsewhere.

    False when the time was over before.
    """
    assert course.verdict is not None
    number, blocks = FIRST_WORKER + place, course.verdict.blocks
    course.progress.stage("verdict", f"worker {place + 1} of at least {course.policy.looks[0]}")
    warm_up(course, worker, course.rng.sample(list(plan), len(plan)), worker_number=number, stage=STAGE)
    # before the block that is discarded: after it the device was idle, and may be slow (probably seen on an H200)
    course.crew.see_rest(worker, stage=STAGE)
    for block in range(-1, blocks):
        if course.deadline.left_s <= 0:
            course.learn(budget_exhausted=True)
            return False
        run_block(
            course,
            worker,
            plan,
            phase="verdict",
            worker_number=number,
            block_number=block,
            stage=STAGE,
        )
        course.progress.advance(block + 1, blocks, f"worker {place + 1}", course.deadline.left_s)
    worker.close()
    with course.spending("audit"):
        _audit(course, plan)
    return True


def _say(course: Course) -> None:
    row = weigh(course.evidence, course.policy).deciding
    if row is not None:
        done = course.evidence.workers_finished
        course.progress.note(f"so far, from {done} workers: {wording.estimate(row.speedup)}, provisional")


def _audit(course: Course, plan: Mapping[str, int]) -> None:
    """Replay a random few of this worker's steps in processes that did not run them, and compare fingerprints."""
    assert course.verdict is not None and course.pilot is not None and course.clean is not None
    fresh, before, found = course.digests, course.verdict, list(course.verdict.replays)
    sham = str(ArmName(Role.SHAM, *_mode_of(course.evidence.baseline)))
    for arm in plan:
        if ArmName.parse(arm).role is Role.HEADROOM:
            continue
        seeds = [seed for name, seed in fresh if name == arm]
        count = max(1, round(course.policy.audit_fraction * len(seeds)))
        replayed_as = str(course.evidence.baseline) if arm == sham else arm
        for run in _runs(course, arm, seeds, count):
            found += _replayed(course, course.pilot, arm, replayed_as, run)
            if arm == AS_SHIPPED:
                found += _replayed(course, course.clean, arm, arm, run)
    candidate, baseline = str(course.evidence.candidate), str(course.evidence.baseline)
    rough = max(course.rounding or 0.0, rounding_of(course))
    allowed = allowed_apart(rough, course.crew.cell.dtype)
    apart, pairs = disagreements(fresh, candidate=candidate, baseline=baseline, allowed=allowed)
    more = {
        "steps_run": before.steps_run + course.steps_run,
        "steps_committed": before.steps_committed + course.steps_committed,
        "steps_compared": before.steps_compared + pairs,
        "steps_apart": before.steps_apart + apart,
        "replays": found,
    }
    course.verdict = so_far = before.model_copy(update=more)
    course.forget_fingerprints()
    audit = conclude(
        so_far.replays,
        run=so_far.steps_run,
        committed=so_far.steps_committed,
        baseline=course.evidence.baseline,
        tolerance=_tolerance(course),
    )
    course.learn(audit=audit.model_copy(update=compared(candidate, so_far.steps_apart, so_far.steps_compared)))


def _runs(course: Course, arm: str, seeds: list[int], count: int) -> list[list[int]]:
    """Seeds of the steps to replay, at least `count` of them where there are as many, run by run.

    In training a step depends on those before it, up to the segment's start: a run is a segment's first few steps.
    """
    if course.crew.cell.step != "train":
        return [course.rng.sample(seeds, min(count, len(seeds)))]
    known = set(seeds)
    own = [segment for segment in course.evidence.segments if segment.arm == arm and segment.seed in known]
    course.rng.shuffle(own)
    runs: list[list[int]] = []
    for segment in own:
        if sum(map(len, runs)) >= count:
            break
        length = course.rng.randint(1, course.policy.settle_steps + segment.steps)
        runs.append(list(itertools.takewhile(known.__contains__, range(segment.seed, segment.seed + length))))
    return runs


def _tolerance(course: Course) -> Tolerance:
    repeats = all(check.repeats is not False for check in course.evidence.op_checks)
    return Tolerance(course.rounding or 0.0, candidate_repeats=repeats)


def _mode_of(arm: str | None) -> tuple[Any, Any]:
    name = ArmName.parse(str(arm))
    return name.mode, name.alternative


def _replayed(course: Course, worker: Worker, arm: str, replayed_as: str, seeds: list[int]) -> list[Replay]:
    """What those steps left when they were timed, beside what they leave in another process."""
    if worker is course.clean:
        reply = course.crew.require(worker, "digests", arm=replayed_as, seeds=seeds)
    else:
        reply = course.crew.ask(worker, "digests", stage=STAGE, arm=replayed_as, seeds=seeds)
    found = [Fingerprint.read(value) for value in reply["digests"]]
    found += [None] * (len(seeds) - len(found))
    return [
        Replay(arm, course.digests[(arm, seed)], replayed, is_clean=worker is course.clean)
        for seed, replayed in zip(seeds, found, strict=False)
    ]
