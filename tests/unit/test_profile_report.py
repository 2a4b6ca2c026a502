"""A profile as it is told and stored: from an invented one, whole or with almost everything unknown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from e2e import profile_store
from e2e.errors import StoredRunError
from e2e.profile_story import tell
from e2e.reports.md import written
from e2e.reports.text import printed
from e2e.schema.profile import ModuleRow, SiteGroup
from e2e.store import Run, load
from tests.profiles import INTERRUPT, norm, report, step


def shown(**changes: Any) -> str:
    return printed(tell(report(**changes)))


def row(text: str, start: str) -> str:
    """The first line that begins so, its columns parted by one space."""
    return next(" ".join(line.split()) for line in text.splitlines() if line.strip().startswith(start))


# ---- The story


def test_an_op_says_its_calls_its_share_its_ceiling_and_what_pytorch_gives_for_nothing() -> None:
    text = shown()
    assert row(text, "rms_norm") == "rms_norm 33 14 % 1.026x (1.024 to 1.028) 1.013x yes 1.159x F.rms_norm"
    assert "e2e new kernel rms_norm --lang cu" in text


def test_it_fits_one_screen_of_a_terminal() -> None:
    ops = [norm(op=f"op_{number}") for number in range(10)]
    text = shown(ops=ops, next=["e2e new kernel op_0 --lang cu"] * 5)
    assert len(text.splitlines()) <= 50
    assert max(map(len, text.splitlines())) <= 100


def test_the_devices_idle_share_is_unknown_without_device_events_and_never_zero() -> None:
    assert "the device waits 5.6 % of it" in shown()
    blind = shown(steps=[step(busy_s=None, idle_ratio=None, kernels=None)])
    assert "no device events: unknown" in blind
    assert "waits" not in blind


def test_an_unknown_ceiling_is_no_number_and_its_reason_is_said() -> None:
    unknown = {"ceiling": None, "worth": None, "twice_as_fast_ratio": None, "ceiling_reason": "no time to compile"}
    text = shown(ops=[norm(**unknown)], next=[])
    assert row(text, "rms_norm") == "rms_norm 33 14 % - - unknown 1.159x F.rms_norm"
    assert "ceiling unknown: no time to compile" in text
    assert "none for certain, of those that were measured" in text


def test_ops_that_the_budget_did_not_reach_are_named() -> None:
    late = norm(op="rope", status="not_measured", reason="there was no time", share=None, ceiling=None, worth=None)
    text = shown(ops=[norm(), late])
    assert "rope (about 14 % of the step)" in text
    assert "not measured: there was no time" in text


def test_sites_that_cannot_take_a_kernel_are_counted_with_their_reason() -> None:
    groups = [SiteGroup(reason="its own forward is not rms_norm", sites=["a", "b"])]
    assert "2 of rms_norm" in shown(ops=[norm(not_sites=groups)])


def test_what_may_be_worth_a_kernel_stands_apart_from_what_is() -> None:
    text = shown(ops=[norm(), norm(op="rope", worth="maybe"), norm(op="silu", worth="no")])
    assert "perhaps, a larger --budget tells: rope" in text
    assert "silu," not in text


def test_what_limits_the_numbers_is_said_in_capitals_or_at_the_top() -> None:
    text = shown(random_weights=True, overrides={"model.weights": "random"}, cells=4, error=INTERRUPT)
    assert "RANDOM WEIGHTS" in text
    assert "SYNTHETIC DATA" in text
    assert "model.weights=random" in text
    assert "The first of 4 cells" in text
    assert text.startswith("PROFILE, ENDED EARLY (exit code 130)")


def test_a_profile_that_was_interrupted_at_once_can_still_be_told() -> None:
    text = shown(ops=[], steps=[], modes=[], strongest=None, memory=None, absent=[], next=[], error=INTERRUPT)
    assert "PROFILE, ENDED EARLY (exit code 130)" in text


def test_names_from_a_model_steer_no_terminal_and_no_page() -> None:
    hostile = ModuleRow(name="a\x1b[31m|<b>", owner="X", calls=1, own_s=1, total_s=1, share_ratio=1)
    told = tell(report(steps=[step(modules=[hostile])]))
    assert "\x1b" not in printed(told)
    assert "<b>" not in written(told).replace("\\<b\\>", "")


# ---- The folder


def test_a_stored_profile_is_read_back_as_it_was(tmp_path: Path) -> None:
    profile_store.keep(report(), Run(tmp_path))
    assert profile_store.load(tmp_path) == report()
    assert "# PROFILE" in (tmp_path / "report.md").read_text()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text[: len(text) // 2], "not whole, strict JSON"),
        (lambda text: text.replace("118.0", "NaN"), "not whole, strict JSON"),
        (lambda text: text.replace("e2e.profile/1", "e2e.profile/9"), "this e2e reads 'e2e.profile/1' only"),
        (lambda text: text.replace('"calls": 33', '"calls": "33"'), "not a valid profile: ops.0.calls"),
        (lambda text: "[]", "has schema None"),
    ],
)
def test_a_damaged_profile_is_refused_with_the_place(tmp_path: Path, change: Any, words: str) -> None:
    profile_store.keep(report(), Run(tmp_path))
    file = tmp_path / "profile.json"
    file.write_text(change(file.read_text()))
    with pytest.raises(StoredRunError, match=words):
        profile_store.load(tmp_path)


def test_a_profile_is_no_run_that_can_be_judged(tmp_path: Path) -> None:
    profile_store.keep(report(), Run(tmp_path))
    with pytest.raises(StoredRunError, match="is a profile, without a kernel to judge"):
        load(tmp_path)
