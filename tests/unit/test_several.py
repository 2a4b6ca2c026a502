"""Several kernels at once: where they cannot stand together, which of them fail, and what each adds."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from e2e.arm_names import ArmName, alternative_for, alternatives_of, places_of, some_kernels
from e2e.attribution import attribution
from e2e.crew import Deadline
from e2e.errors import UsageError
from e2e.judge import judge
from e2e.measure.schedule import SeedSource
from e2e.numerics.together import shadowed
from e2e.ops.add_rms_norm import AddRmsNorm
from e2e.ops.aten import AtenOp
from e2e.ops.rms_norm import RmsNorm
from e2e.ops.silu_mul import SiluMul
from e2e.preflight import check_together
from e2e.processes import Worker, WorkerFault
from e2e.protocols import Op
from e2e.schema.evidence import Evidence, Fault, Isolated, SubsetCheck, engagement_at
from e2e.schema.kernel import Kernel, Manifest
from e2e.schema.verdict import Verdict
from e2e.schema.words import Mode, Outcome, ReasonCode, Role, Stage
from e2e.stages.apart import tried_apart
from e2e.stages.course import Course
from e2e.stages.screen import _checked as screened
from e2e.stages.screen import _each_alone as each_alone
from e2e.stages.screen import record_of
from e2e.stages.survey import survey
from e2e.stages.verdict import _plan as verdict_plan
from e2e.story import tell
from e2e.story_sections import first_sections
from e2e.workers import CandidateFault, Member
from tests import results, tiny
from tests.fakes import (
    ALTERNATIVE,
    CANDIDATE,
    SHAM,
    arm,
    arms,
    audit,
    evidence,
    model_check,
    op_check,
    policy,
    site,
    steps_of,
    synthetic_segments,
)
from tests.sessions import LlamaSession

A, B, C, D = "a.cpp", "b.cpp", "c.cpp", "d.cpp"
NORM, PRODUCT = "model.norm", "model.layers.0.mlp"


def kernel(spec: str, op: str = "rms_norm", **manifest: Any) -> Kernel:
    fields: dict[str, Any] = {"op": op, "entry": "f", "binding": "tvm-ffi", **manifest}
    sha256 = spec.encode().hex().ljust(64, "0")
    return Kernel(spec=spec, path=spec, sha256=sha256, manifest=Manifest(**fields), format="block")


# ---- What files and command line say


@pytest.mark.parametrize(
    ("kernels", "op", "words"),
    [
        ((), None, "at least one --kernel"),
        ((kernel(A), kernel(A)), None, "same kernel: give it once"),
        ((kernel(A), kernel(B, "silu_mul")), "rms_norm", "--op rms_norm names the op of one kernel"),
        ((kernel(A), kernel(B, "patch", kind="patch")), None, "b.cpp is a patch, which goes everywhere"),
        ((kernel(A, device="cpu"), kernel(B, "silu_mul", device="cuda")), None, "a.cpp runs on cpu and b.cpp on cuda"),
    ],
)
def test_kernels_that_cannot_be_meant_together_are_the_callers_mistake(
    kernels: tuple[Kernel, ...], op: str | None, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        check_together(kernels, op=op)


def test_one_kernel_and_two_for_different_ops_are_meant_together() -> None:
    check_together([kernel(A)], op="rms_norm")
    check_together([kernel(A), kernel(B, "silu_mul"), kernel(C)], op=None)


# ---- Names of arms


def test_alternatives_stand_each_alone_wherever_offered_and_the_first_of_every_op_together() -> None:
    assert alternatives_of([["F.rms_norm", "slow"]]) == ["F.rms_norm", "slow"]
    assert alternatives_of([["F.rms_norm"], []]) == ["F.rms_norm"]
    assert alternatives_of([["F.rms_norm"], ["F.rms_norm"]]) == ["F.rms_norm"]
    assert alternatives_of([["F.rms_norm", "slow"], ["F.gelu"]]) == [
        "F.rms_norm",
        "slow",
        "F.gelu",
        "F.rms_norm+F.gelu",
    ]


def test_an_op_takes_its_own_part_of_an_arms_alternative() -> None:
    both = ArmName.parse("baseline:compile+F.rms_norm+F.gelu").alternative
    assert both is not None
    assert alternative_for(["F.rms_norm", "slow"], both) == "F.rms_norm"
    assert alternative_for(["F.gelu"], both) == "F.gelu"
    assert alternative_for(["F.silu"], both) is None
    assert alternative_for(["kernel:a+b.cpp"], "kernel:a+b.cpp") == "kernel:a+b.cpp"


def test_the_arm_of_some_kernels_says_which() -> None:
    name = some_kernels(Mode.COMPILE, [0, 2])
    assert str(name) == "part:compile+1+3"
    assert places_of(ArmName.parse(str(name))) == [0, 2]
    assert places_of(ArmName(Role.CANDIDATE, Mode.EAGER)) is None


# ---- Where two kernels cannot stand in one model


@pytest.fixture(scope="module")
def session() -> LlamaSession:
    return LlamaSession()


def test_ops_side_by_side_leave_each_others_sites_alone(session: LlamaSession) -> None:
    occurrences = [(op, op.find_sites(session.model)) for op in (RmsNorm(), SiluMul())]
    assert shadowed(session, occurrences, seed=1) == []
    assert not [name for name, module in session.model.named_modules() if "forward" in vars(module)]


@pytest.mark.parametrize(
    ("over", "under", "inside"),
    [
        (AddRmsNorm(), RmsNorm(), "post_attention_layernorm"),
        (SiluMul(), AtenOp().of("silu.default"), "mlp.act_fn"),
    ],
)
def test_a_site_inside_what_another_op_stands_for_is_found_in_either_order(
    session: LlamaSession, over: Op, under: Op, inside: str
) -> None:
    wide = (over, over.find_sites(session.model))
    small = (under, [item for item in under.find_sites(session.model) if item.fqn.endswith(inside)])
    expected = [f"model.layers.{layer}.{inside}" for layer in range(tiny.LAYERS)]
    assert shadowed(session, [wide, small], seed=1) == [(fqn, 0) for fqn in expected]
    assert shadowed(session, [small, wide], seed=1) == [(fqn, 1) for fqn in expected]
    assert not [name for name, module in session.model.named_modules() if "forward" in vars(module)]


class FakeProgress:
    """Says nothing."""

    def stage(self, name: str, detail: str = "") -> None: ...

    def advance(self, done: int, total: int, what: str = "", left_s: float | None = None) -> None: ...

    def note(self, text: str) -> None: ...


class SurveyCrew:
    """A clean process that has looked at a model; `rows`: every kernel's sites and their `hidden`."""

    def __init__(self, members: list[Member], rows: list[Mapping[str, int]], inside: Collection[tuple[str, int]] = ()):
        self.members = members
        self.scratch = Path()
        self._rows = rows
        self._inside = inside

    def require(self, worker: Any, do: str, **fields: Any) -> dict[str, Any]:
        if do == "shadowed":
            return {"shadowed": self._inside}
        dims = self._rows[fields["part"]]
        about: dict[str, Any] = {"owner": "Norm", "incompatible": None}
        return {
            "sites": [
                {**about, "fqn": fqn, "dims": {"hidden": hidden}, "all_dims": [{"hidden": hidden}]}
                for fqn, hidden in dims.items()
            ]
        }


def course(crew: Any, *, left_s: float = 60.0, **seen: Any) -> Course:
    made = Course(
        crew=crew,
        policy=policy(),
        progress=FakeProgress(),
        deadline=Deadline(left_s),
        folder=Path(),
        evidence=evidence(**seen),
        traces=False,
        rng=random.Random(0),
        seeds=SeedSource(0),
    )
    made.clean = crew  # whoever is asked, the crew answers
    return made


def test_two_kernels_for_one_site_conflict_by_name() -> None:
    crew = SurveyCrew([Member(kernel(A)), Member(kernel(B))], [{"x": 64, NORM: 64}, {NORM: 64}])
    with pytest.raises(UsageError, match=rf"a\.cpp and b\.cpp conflict at {NORM}: both stand"):
        survey(course(crew))


def test_a_site_inside_another_kernels_conflicts_by_name() -> None:
    members = [Member(kernel(A)), Member(kernel(B, "silu_mul"))]
    crew = SurveyCrew(members, [{NORM: 64}, {PRODUCT: 64}], inside=[(NORM, 1)])
    with pytest.raises(UsageError, match=rf"b\.cpp and a\.cpp conflict at {NORM}: the first stands for code"):
        survey(course(crew))


def test_kernels_for_one_op_share_its_sites_by_their_constraints() -> None:
    small = Member(kernel(A, constraints=["hidden <= 64"]))
    large = Member(kernel(B, constraints=["hidden > 64"]))
    rows = {"q": 64, NORM: 128, "tiny": 8}
    made = course(SurveyCrew([small, large], [rows, rows]))
    survey(made)
    assert (small.fqns, large.fqns) == (["q", "tiny"], [NORM])
    assert (small.fit, large.fit) == (["q", "tiny"], [NORM])
    assert made.fqns == ["q", "tiny", NORM]
    engagement = made.evidence.engagement
    assert engagement is not None
    assert (engagement.sites_found, engagement.sites_patched) == (3, 3), "what another kernel takes is not missed"


def test_a_site_that_every_kernel_declines_is_still_one() -> None:
    members = [Member(kernel(A, constraints=["hidden <= 64"])), Member(kernel(B, "layer_norm"))]
    made = course(SurveyCrew(members, [{"q": 64, NORM: 128}, {"k": 8}]))
    survey(made)
    assert (members[0].fqns, members[0].fit) == (["q"], ["q", NORM])
    assert [(record.fqn, record.kernel) for record in made.evidence.engagement.sites] == [  # type: ignore[union-attr]
        ("q", A),
        (NORM, A),
        ("k", B),
    ]


# ---- Which of them fail


class SubsetCrew:
    """Hands out workers that hold kernels by number."""

    def __init__(self, count: int) -> None:
        self.members = [Member(kernel(spec), fqns=[spec]) for spec in (A, B, C, D)[:count]]
        self.tried: list[str] = []

    def candidate_worker(self, fqns: list[str], *, stage: Stage) -> SubsetCrew:
        self.tried.append("".join(fqn[0] for fqn in fqns))
        return self

    def __enter__(self) -> SubsetCrew:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to end."""


def fails_with(*culprits: str, raises: bool = False) -> Callable[[Course, Worker], None]:
    """A probe that finds the model wrong where all those kernels stand."""

    def probe(own: Course, worker: Any) -> None:
        guilty = set(culprits) <= set(own.fqns)
        if guilty and raises:
            raise CandidateFault(Fault(code=ReasonCode.CANDIDATE_CRASHED, message="it died", stage=Stage.CHECK))
        own.learn(model_check=model_check(status="wrong" if guilty else "passed"))

    return probe


def searched(count: int, probe: Any, *, left_s: float = 60.0) -> Course:
    crew = SubsetCrew(count)
    names = [member.kernel.spec for member in crew.members]
    made = course(crew, left_s=left_s, kernels=names if count > 1 else [], model_check=None)
    made.fqns = names
    with tried_apart(made, probe, stage=Stage.CHECK):
        probe(made, None)
    return made


@pytest.mark.parametrize(
    ("count", "culprits", "tried", "words"),
    [
        (2, [B], ["a", "b"], "without the others b.cpp fails as well"),
        (2, [A, B], ["a", "b"], "each kernel passes alone, and what fails is a.cpp with b.cpp"),
        (3, [A, C], ["a", "b", "c", "ab", "ac", "bc"], "each kernel passes alone, and what fails is a.cpp with c.cpp"),
        (3, [A, B, C], ["a", "b", "c", "ab", "ac", "bc"], "what fails is a.cpp with b.cpp with c.cpp"),
        (
            4,
            [A, B, D],
            [*"abcd", *("ab", "ac", "ad", "bc", "bd", "cd"), "bcd", "acd", "abd"],
            "a.cpp with b.cpp with d",
        ),
    ],
)
def test_the_smallest_failing_set_is_found_and_named(
    count: int, culprits: list[str], tried: list[str], words: str
) -> None:
    made = searched(count, fails_with(*culprits))
    assert made.crew.tried == tried  # type: ignore[attr-defined]
    verdict = judge(made.evidence, policy())
    assert verdict.reasons[0].code is ReasonCode.MODEL_ERROR_EXCEEDED
    assert words in verdict.reasons[0].message
    assert verdict.ablation[-1].kernels == made.evidence.kernels
    failing = [row.kernels for row in verdict.ablation if row.code is not None]
    assert culprits in failing


def test_kernels_that_pass_and_a_single_one_are_not_tried_apart() -> None:
    assert searched(3, fails_with(D)).crew.tried == []  # type: ignore[attr-defined]
    assert searched(1, fails_with(A)).crew.tried == []  # type: ignore[attr-defined]


def test_a_crash_of_all_is_put_down_to_the_one_that_crashes_alone() -> None:
    with pytest.raises(CandidateFault) as caught:
        searched(2, fails_with(B, raises=True))
    assert caught.value.fault.where.file == B
    with pytest.raises(CandidateFault) as caught:
        searched(2, fails_with(A, B, raises=True))
    assert caught.value.fault.where.file is None


class Holding:
    """A worker that holds the kernels of those sites."""

    def __init__(self, fqns: Collection[str]) -> None:
        self.fqns = fqns

    def __enter__(self) -> Holding:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to end."""


class ModeCrew(SubsetCrew):
    """Its workers' steps are wrong where all those kernels stand."""

    cell = results.cell()

    def __init__(self, *culprits: str) -> None:
        super().__init__(2)
        self.prepared: list[str] = []
        self._culprits = set(culprits)
        self._last: Collection[str] = ()

    def candidate_worker(self, fqns: list[str], *, stage: Stage) -> Any:
        super().candidate_worker(fqns, stage=stage)
        return Holding(fqns)

    def ask(self, worker: Holding, do: str, *, stage: Stage, arm: str, **fields: Any) -> dict[str, Any]:
        self._last = worker.fqns
        self.prepared += [arm] if do == "prepare" else []
        return {}

    def require(self, worker: object, do: str, **fields: Any) -> dict[str, Any]:
        assert do == "compare_step"
        return {"passed": not self._culprits <= set(self._last), "error": 0.5, "allowed": 0.1, "baseline": 0.01}


def test_a_mode_in_which_all_are_wrong_is_tried_with_fewer(tmp_path: Path) -> None:
    crew = ModeCrew(A, B)
    crew.scratch = tmp_path  # type: ignore[attr-defined]
    made = course(crew, kernels=[A, B], model_check=None)
    made.fqns, pilot = [A, B], Holding([A, B])
    made.pilot = pilot  # type: ignore[assignment]
    with pytest.raises(CandidateFault, match=r"candidate:compile: its step's outputs are wrong"):
        screened(made, arm("candidate:compile"))
    assert (crew.tried, crew.prepared) == (["a", "b"], ["candidate:compile"] * 2)
    assert [subset.code for subset in made.evidence.subsets] == [None, None]
    one = screened(made, arm("part:compile+1"))
    assert (one.status, one.reason) == (
        "void",
        "its step's outputs are wrong: error 5.0e-01, allowed 1.0e-01 (eager baseline 1.0e-02)",
    )


def test_without_time_nothing_is_said_of_who_fails() -> None:
    made = searched(2, fails_with(B), left_s=0.0)
    assert made.evidence.subsets == []
    assert "alone" not in judge(made.evidence, policy()).reasons[0].message
    half = made.evidence.model_copy(update={"subsets": [SubsetCheck(kernels=[A], code=None)]})
    assert "alone" not in judge(half, policy()).reasons[0].message


# ---- Every kernel for itself: engagement, power, arms


def two(**changes: Any) -> Evidence:
    """Two kernels, each of which ran at its site."""
    sites = [site(NORM, kernel=A), site(PRODUCT, kernel=B)]
    fields: dict[str, Any] = {
        "kernels": [A, B],
        "engagement": engagement_at(sites, proof="counted", moved=True),
        "op_checks": [op_check(kernel=A), op_check(kernel=B)],
        **changes,
    }
    segments = fields.pop("segments", [])
    return evidence(segments, **fields)


def test_a_kernel_that_never_ran_is_named_though_the_other_did() -> None:
    silent = engagement_at([site(NORM, kernel=A), site(PRODUCT, kernel=B, calls=0)], proof="counted", moved=True)
    verdict = judge(two(engagement=silent), policy())
    assert verdict.reasons[0].code is ReasonCode.NEVER_CALLED
    assert verdict.reasons[0].message.startswith(f"{B}: the kernel ran at 0 of 1 patched sites")


def test_a_kernel_without_a_site_makes_the_set_not_applicable() -> None:
    only = engagement_at([site(NORM, kernel=A)])
    verdict = judge(two(engagement=only), policy())
    assert (verdict.outcome, verdict.reasons[0].code) == (Outcome.NOT_APPLICABLE, ReasonCode.NO_SITES)
    assert verdict.reasons[0].message.startswith(B)


def test_a_check_that_one_kernel_never_passed_has_no_power() -> None:
    verdict = judge(two(op_checks=[op_check(kernel=A), op_check(kernel=B, status="declined")]), policy())
    assert any(r.code is ReasonCode.CHECK_NO_POWER and B in r.message for r in verdict.reasons)


def test_a_watermark_that_one_kernel_did_not_move_names_it() -> None:
    off = two().engagement.model_copy(update={"watermark_moved": False, "unmoved": [B]})  # type: ignore[union-attr]
    (found,) = [r for r in judge(two(engagement=off), policy()).reasons if r.code is ReasonCode.NOT_ON_PATH]
    assert found.message.endswith(f"({B})")


@pytest.mark.parametrize(
    ("name", "calls", "status", "total"),
    [
        ("candidate:compile", [3, 4], "ok", 7),
        ("candidate:compile", [3, 0], "void", 3),
        ("part:compile+1", [3, 0], "ok", 3),
        ("part:compile+2", [3, 0], "void", 0),
        ("candidate:eager", None, "ok", 2),
        ("part:eager+2", None, "ok", 1),
        ("baseline:compile", [0, 0], "ok", None),
    ],
)
def test_an_arm_counts_only_with_every_kernel_that_stands_in_it(
    name: str, calls: list[int] | None, status: str, total: int | None
) -> None:
    made = course(SubsetCrew(2))
    made.evidence = two()
    reply = {"first_step_s": 0.5, "graph_breaks": False, "regions": 1, "kernel_calls": calls}
    record = record_of(made, ArmName.parse(name), reply)
    assert (record.status, record.kernel_calls) == (status, total)
    if status == "void":
        assert record.reason == f"{B} is not in the compiled graph"


# ---- Arms of one kernel, from the screen into the verdict's plan


class Pilot(Holding):
    """Prepares and times what it is asked to; a step takes a millisecond."""

    alive, clean = True, False

    def __init__(self, fqns: Collection[str], calls: Mapping[str, list[int]]) -> None:
        super().__init__(fqns)
        self._calls, self._sent, self._turn, self._now = calls, [""], ("", 0), 0

    def send(self, do: str, *, arm: str) -> None:
        self._sent.append(arm)

    def answer(self, do: str, *, timeout_s: float) -> dict[str, Any]:
        arm = self._sent.pop(1)
        if arm not in self._calls:
            raise WorkerFault("it does not compile", kind="raised")
        return {"first_step_s": 1.0, "graph_breaks": False, "regions": 1, "kernel_calls": self._calls[arm]}

    def call(self, do: str, *, timeout_s: float, arm: str, seeds: list[int], settle: int) -> dict[str, Any]:
        assert do == "stage"
        self._turn = (arm, len(seeds) - settle)
        return {}

    def stamps(self, do: str, *, marks: int, timeout_s: float) -> tuple[list[int], dict[str, Any]]:
        start, self._now = self._now, self._now + self._turn[1] * 10**6
        return [start, self._now], {"digests": [], "device_s": None, "allocations": None, "recompiled": False}


class ScreenCrew(ModeCrew):
    starts_cold: Mapping[bool, bool] = {True: False, False: False}


def screened_apart(tmp_path: Path, calls: Mapping[str, list[int]], **seen: Any) -> Course:
    crew = ScreenCrew("nobody")
    crew.scratch = tmp_path  # type: ignore[attr-defined]
    known = [arm(name) for name in ("baseline:compile", "candidate:compile", "baseline:eager")]
    made = course(crew)
    made.evidence = two(arms=known, baseline="baseline:compile", candidate="candidate:compile", **seen)
    made.fqns = [A, B]
    made.pilot = Pilot(made.fqns, calls)  # type: ignore[assignment]
    each_alone(made)
    return made


def test_each_kernel_alone_is_an_arm_of_the_winning_mode_and_of_every_verdict_block(tmp_path: Path) -> None:
    first, second = "part:compile+1", "part:compile+2"
    made = screened_apart(tmp_path, {first: [3, 0], second: [0, 4]})
    alone = made.evidence.arms[3:]
    assert [(item.name, item.status, item.kernel_calls) for item in alone] == [(first, "ok", 3), (second, "ok", 4)]
    assert [item.step_s for item in alone] == [pytest.approx(1e-3)] * 2
    plan = verdict_plan(made)
    assert plan[first] == plan[second] == plan["candidate:compile"] == plan["baseline:compile"]


def test_a_kernel_that_fails_alone_in_that_mode_is_shown_and_left_out_of_the_verdict(tmp_path: Path) -> None:
    made = screened_apart(tmp_path, {"part:compile+1": [3, 0]})
    assert [(item.status, item.reason) for item in made.evidence.arms[3:]] == [
        ("ok", None),
        ("failed", "it does not compile"),
    ]
    assert "part:compile+2" not in verdict_plan(made)


def test_where_no_kernel_can_win_none_is_tried_alone() -> None:
    ceiling = synthetic_segments(
        {"baseline:compile": 1e-3, "headroom:compile": 1e-3}, workers=2, phase="ceiling", spikes=0, first_worker=1
    )
    known = [arm(name) for name in ("baseline:compile", "candidate:compile", "headroom:compile")]
    made = course(ScreenCrew("nobody"))
    chosen = {"baseline": "baseline:compile", "candidate": "candidate:compile"}
    made.evidence = two(segments=ceiling, arms=known, **chosen)
    each_alone(made)
    assert made.evidence.arms == known


# ---- What each adds


ONE, OTHER = "part:eager+1", "part:eager+2"


def ablated(together: float, alone: tuple[float, float], **changes: Any) -> Verdict:
    """The verdict on two kernels with those speed-ups over the strongest baseline."""
    speedups = {ALTERNATIVE: 1.0, CANDIDATE: together, SHAM: 1.0, ONE: alone[0], OTHER: alone[1]}
    segments = synthetic_segments(steps_of(speedups), block_sd=0.001, worker_sd=0.0003)
    return judge(two(segments=segments, arms=[*arms(), arm(ONE), arm(OTHER)], **changes), policy())


def test_each_kernel_alone_has_rows_of_its_own_beside_all_together() -> None:
    verdict = ablated(1.10, (1.06, 1.00))
    assert [row.kernels for row in verdict.ablation] == [[A], [B], [A, B]]
    found = [{item.opponent: item for item in row.against} for row in verdict.ablation]
    assert [row["best_pytorch"].speedup.point_estimate for row in found] == [
        pytest.approx(1.06, abs=0.003),
        pytest.approx(1.00, abs=0.003),
        pytest.approx(1.10, abs=0.003),
    ]
    assert [row["best_pytorch"].outcome for row in found] == [Outcome.CONFIRMED, Outcome.REFUTED, Outcome.CONFIRMED]
    assert verdict.outcome is Outcome.CONFIRMED, "the verdict is for the set"
    assert list(verdict.ablation[-1].against) == list(verdict.latency.against)


@pytest.mark.parametrize(
    ("together", "alone", "words"),
    [
        (1.06, (1.05, 1.05), "less than the product"),
        (1.15, (1.05, 1.05), "more than the product"),
        (1.05 * 1.05, (1.05, 1.05), "as far as this run can tell"),
    ],
)
def test_the_interaction_is_what_they_win_together_over_the_product(
    together: float, alone: tuple[float, float], words: str
) -> None:
    verdict = ablated(together, alone)
    seen = verdict.interaction
    assert seen is not None
    assert seen.point_estimate == pytest.approx(together / (alone[0] * alone[1]), abs=0.003)
    assert seen.lower_bound < together / (alone[0] * alone[1]) < seen.upper_bound
    told = tell(results.result().model_copy(update={"ablation": verdict.ablation, "interaction": seen}))
    section = next(section for section in told.sections if section.title == "Each kernel, and all together")
    assert words in section.lines[0]
    assert section.table is not None
    assert [row[0] for row in section.table.rows] == [A, B, f"{A} + {B}"]


def test_an_arm_that_recompiled_loses_its_row_and_the_interaction_and_bars_no_verdict() -> None:
    whole = ablated(1.10, (1.06, 1.00), recompiles=[ONE])
    assert ([row.kernels for row in whole.ablation], whole.interaction) == ([[B], [A, B]], None)
    assert whole.outcome is Outcome.CONFIRMED


def test_beside_a_wrong_set_no_kernel_has_a_speed() -> None:
    verdict = ablated(1.10, (1.06, 1.00), model_check=model_check(status="wrong"))
    assert (verdict.outcome, verdict.ablation, verdict.interaction) == (Outcome.INCORRECT, [], None)


def test_an_audit_that_a_kernel_alone_fails_makes_the_set_incorrect() -> None:
    verdict = ablated(1.10, (1.06, 1.00), audit=audit(mismatches=[f"{ONE}: 1 of 9"]))
    assert (verdict.outcome, verdict.reasons[0].code) == (Outcome.INCORRECT, ReasonCode.STALE_OUTPUT)


def test_the_op_alone_of_every_kernel_is_shown_by_name() -> None:
    alone = [
        Isolated(
            shape="1 x 2",
            calls_per_step=1,
            eager_s=2e-3,
            alternative=None,
            alternative_s=None,
            candidate_s=1e-3,
            kernel=spec,
        )
        for spec in (A, B)
    ]
    cell = results.result().cells[0]
    shown = cell.evidence.model_copy(update={"isolated": alone[0], "isolated_others": alone[1:]})
    speed, _ = first_sections(results.result(), cell.model_copy(update={"evidence": shown}), "", is_deciding=True)
    assert speed.table is not None
    assert [row[0] for row in speed.table.rows][:2] == [f"op alone: own module, {spec}" for spec in (A, B)]


def test_what_each_op_alone_promises_is_a_line_of_its_own() -> None:
    fields = {"shape": "1 x 2", "calls_per_step": 2, "eager_s": 3e-6, "candidate_s": 1e-6}
    norm = Isolated(**fields, alternative="F.rms_norm", alternative_s=2e-6, kernel=A)
    other = Isolated(**fields, alternative=None, alternative_s=None, kernel=B)
    row = ablated(1.10, (1.06, 1.00)).latency.against[0]
    assert row.arm == ALTERNATIVE
    found = attribution(two(isolated=norm, isolated_others=[other]), row)
    assert [line.what for line in found] == [
        f"the op, alone and warm, 2 times ({A})",
        f"the op, alone and warm, 2 times ({B})",
        "unexplained",
    ]
    assert [line.microseconds_per_step for line in found[:2]] == pytest.approx([-2, -4])
    unknown = norm.model_copy(update={"alternative": "another"})
    assert attribution(two(isolated=unknown, isolated_others=[other]), row) == []
