"""Modes that an earlier pilot found far behind: which are left out, where that is kept, when it is forgotten."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from e2e.exam import Exam
from e2e.schema.words import Mode
from e2e.stages.earlier import far_behind, forget, left_out, remember
from tests.fakes import arm, engagement, evidence, policy, site

GRAPHED = "reduce-overhead"
DECODE = {
    "baseline:eager": 20.0,
    "baseline:compile": 9.8,
    f"baseline:{GRAPHED}": 1.7,
    "candidate:eager": 19.0,
    "headroom:eager": 17.0,
    "headroom:compile": 9.0,
    f"headroom:{GRAPHED}": 1.8,
}


def test_a_mode_is_far_behind_only_if_the_op_replaced_by_nothing_is_too() -> None:
    assert set(far_behind(DECODE)) == {Mode.EAGER, Mode.COMPILE}
    assert (
        far_behind(DECODE)[Mode.COMPILE]
        == "in an earlier run's pilot at best 5.29x the step of baseline:reduce-overhead"
    )
    assert set(far_behind({**DECODE, "headroom:compile": 1.9})) == {Mode.EAGER}


def test_a_mode_whose_ceiling_or_baseline_is_not_known_is_tried() -> None:
    assert set(far_behind({k: v for k, v in DECODE.items() if k != "headroom:eager"})) == {Mode.COMPILE}
    assert set(far_behind({k: v for k, v in DECODE.items() if k != "baseline:compile"})) == {Mode.EAGER}
    assert far_behind({}) == {}


def test_a_fast_kernel_adopted_earlier_makes_no_mode_of_pytorchs_slow() -> None:
    assert far_behind({**DECODE, f"baseline:{GRAPHED}+kernel:a.cu": 0.1}) == far_behind(DECODE)


def course(folder: Path, *, weights: str = "w", seed: int = 1, declined: bool = False, **rules: Any) -> Any:
    """What these functions read of a course."""
    sites = [site("a"), site("b", **({"status": "declined"} if declined else {}))]
    found = evidence(arms=[arm(name, step_s=step_s) for name, step_s in DECODE.items()], engagement=engagement(*sites))
    patched = all(record.status == "patched" for record in sites)
    return SimpleNamespace(
        crew=SimpleNamespace(exam=Exam(seed, folder, "identity"), adopted={}),
        evidence=found,
        facts={"weights": weights},
        folder=Path("20261201-run"),
        policy=policy(**rules),
        runs_everywhere=patched,
    )


def test_the_next_run_on_the_same_workload_leaves_them_out_until_it_is_forgotten(tmp_path: Path) -> None:
    assert left_out(course(tmp_path)) == {}
    remember(course(tmp_path))
    assert set(left_out(course(tmp_path))) == {Mode.EAGER, Mode.COMPILE}
    assert set(left_out(course(tmp_path, required_modes=["compile"]))) == {Mode.EAGER}
    forget(course(tmp_path))
    assert left_out(course(tmp_path)) == {}


def test_other_weights_and_another_exam_are_another_tournament(tmp_path: Path) -> None:
    remember(course(tmp_path))
    assert left_out(course(tmp_path, weights="other")) == {} == left_out(course(tmp_path, seed=2))


def test_a_kernel_at_some_sites_only_neither_leaves_nor_takes_a_choice(tmp_path: Path) -> None:
    remember(course(tmp_path, declined=True))
    assert left_out(course(tmp_path)) == {}
    remember(course(tmp_path))
    assert left_out(course(tmp_path, declined=True)) == {}


def test_a_run_that_leaves_modes_out_does_not_forget_why(tmp_path: Path) -> None:
    remember(course(tmp_path))
    shorter = course(tmp_path)
    shorter.evidence = evidence(arms=[arm(f"baseline:{GRAPHED}", step_s=1.7), arm(f"headroom:{GRAPHED}", step_s=1.8)])
    remember(shorter)
    assert set(left_out(course(tmp_path))) == {Mode.EAGER, Mode.COMPILE}


@pytest.mark.parametrize(
    "text", ["", "{}", '{"run": "a", "steps_s": {"x": 1}}', '{"run": "a", "steps_s": {"baseline:eager": -1}}']
)
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    remember(course(tmp_path))
    (path,) = tmp_path.iterdir()
    path.write_text(text)
    assert left_out(course(tmp_path)) == {}


def test_without_kept_references_nothing_is_kept_here_either(tmp_path: Path) -> None:
    lonely = course(tmp_path)
    lonely.crew.exam = Exam(1)
    remember(lonely)
    forget(lonely)
    assert left_out(lonely) == {} and not any(tmp_path.iterdir())
