"""Where the ops happen in the model, which of those places mean the op, and which of them the kernels take."""

from __future__ import annotations

from e2e.errors import UsageError
from e2e.measure.machine import thread_count
from e2e.numerics.constraints import declined_by
from e2e.processes import Worker
from e2e.schema.evidence import (
    DeviceFacts,
    ModelFacts,
    SiteRecord,
    engagement_at,
)
from e2e.schema.words import Stage
from e2e.stages.course import Course
from e2e.workers import Member

STAGE = Stage.CHECK


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
    know_sites(course, records, proof="" if named != [] else "the patch was run, and changed no module of this model")


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


def know_sites(course: Course, records: list[SiteRecord], *, proof: str, moved: bool | None = None) -> None:
    """The proof of engagement, as far as it has come."""
    course.learn(engagement=engagement_at(records, proof=proof, moved=moved))
