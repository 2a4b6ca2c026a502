"""Answers kept for the next kernel: found again by all that they depend on, and never believed whole."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, load_file, save_file
from torch import Tensor

from e2e import registry
from e2e.numerics import kept as kept_module
from e2e.numerics.examine import Examiner
from e2e.numerics.kept import Kept, surroundings
from tests.sessions import LlamaSession

torch.set_num_threads(1)

OP = registry.load("ops", "rms_norm")
TOKENS = 24 * 8
"""Eight calls of the step's shape."""


class Counted:
    """Computes one row of ones, slowly enough to be worth keeping, and counts."""

    def __init__(self, rows: int = 4) -> None:
        self.times = 0
        self._rows = rows

    def __call__(self) -> dict[str, Tensor]:
        self.times += 1
        time.sleep(0.001)
        return {"x": torch.ones(self._rows, 2)}


def believe(known: dict[str, Tensor]) -> int:
    return 1


def disbelieve(known: dict[str, Tensor]) -> int:
    return 0


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


# ---- The folder


def test_what_was_computed_once_is_taken_by_the_next_run(tmp_path: Path) -> None:
    compute = Counted()
    first, second = Kept(tmp_path, ["a"]), Kept(tmp_path, ["a"])
    one = first.tensors("logits", [1], compute, believe)
    two = second.tensors("logits", [1], compute, believe)
    assert compute.times == 1
    assert torch.equal(one["x"], two["x"])
    assert first.report == {"kept": [], "rows": 0, "rows_again": 0, "rejected": []}
    assert second.report == {"kept": ["logits"], "rows": 4, "rows_again": 1, "rejected": []}


def test_without_a_folder_everything_is_computed(tmp_path: Path) -> None:
    compute = Counted()
    for _ in range(2):
        Kept(None, ["a"]).tensors("logits", [1], compute, believe)
    assert (compute.times, files(tmp_path)) == (2, [])


@pytest.mark.parametrize(
    ("name", "identity", "about"), [("steps", ["a"], [1]), ("logits", ["b"], [1]), ("logits", ["a"], [2])]
)
def test_any_other_question_has_another_key(tmp_path: Path, name: str, identity: list[str], about: list[int]) -> None:
    assert Kept(tmp_path, ["a"]).key("logits", [1]) != Kept(tmp_path, identity).key(name, about)


@pytest.mark.parametrize("damage", [b"", b"not tensors", b"\xff" * 4096])
def test_a_damaged_file_is_computed_again(tmp_path: Path, damage: bytes) -> None:
    compute = Counted()
    Kept(tmp_path, []).tensors("logits", [], compute, believe)
    files(tmp_path)[0].write_bytes(damage)
    again = Kept(tmp_path, [])
    again.tensors("logits", [], compute, believe)
    assert (compute.times, again.kept) == (2, [])
    assert load_file(files(tmp_path)[0])["x"].shape == (4, 2), "and kept anew"


def test_half_a_file_is_computed_again(tmp_path: Path) -> None:
    compute = Counted()
    Kept(tmp_path, []).tensors("logits", [], compute, believe)
    path = files(tmp_path)[0]
    path.write_bytes(path.read_bytes()[:-8])
    Kept(tmp_path, []).tensors("logits", [], compute, believe)
    assert compute.times == 2


def test_a_pipe_in_the_place_of_a_file_holds_nobody_up(tmp_path: Path) -> None:
    compute = Counted()
    Kept(tmp_path, []).tensors("logits", [], compute, believe)
    path = files(tmp_path)[0]
    path.unlink()
    os.mkfifo(path)
    Kept(tmp_path, []).tensors("logits", [], compute, believe)
    assert compute.times == 2


def test_what_does_not_hold_is_replaced(tmp_path: Path) -> None:
    compute = Counted()
    Kept(tmp_path, []).tensors("logits", [], compute, believe)
    save_file({"x": torch.zeros(4, 2)}, files(tmp_path)[0])
    found = Kept(tmp_path, [])
    assert torch.equal(found.tensors("logits", [], compute, disbelieve)["x"], torch.ones(4, 2))
    assert (found.kept, found.rejected) == ([], ["logits"])
    assert torch.equal(load_file(files(tmp_path)[0])["x"], torch.ones(4, 2))


def test_an_answer_that_is_quicker_computed_than_read_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_module, "BYTES_PER_S", 1.0)
    Kept(tmp_path, []).tensors("logits", [], Counted(), believe)
    assert files(tmp_path) == []


def test_an_answer_that_is_too_large_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_module, "ENTRY_BYTES", 31)
    Kept(tmp_path, []).tensors("logits", [], Counted(), believe)
    assert files(tmp_path) == []


def test_a_full_folder_loses_what_was_used_longest_ago(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, age_s in (("old", 300), ("older", 600), ("oldest", 900)):
        Kept(tmp_path, []).tensors(name, [], Counted(), believe)
        for path in tmp_path.glob(f"{name}-*"):
            os.utime(path, (time.time() - age_s,) * 2)
    Kept(tmp_path, []).tensors("older", [], Counted(), believe)  # used again: now the youngest
    monkeypatch.setattr(kept_module, "FOLDER_BYTES", 2.5 * files(tmp_path)[0].stat().st_size)
    Kept(tmp_path, []).tensors("new", [], Counted(), believe)
    assert {path.name.partition("-")[0] for path in files(tmp_path)} == {"older", "new"}


def test_what_a_killed_run_left_half_written_goes_after_a_while(tmp_path: Path) -> None:
    for name, age_s in (("young.part", 5), ("old.part", 7200)):
        (tmp_path / name).write_bytes(b"half")
        os.utime(tmp_path / name, (time.time() - age_s,) * 2)
    Kept(tmp_path, []).tensors("logits", [], Counted(), believe)
    assert [path.name for path in tmp_path.glob("*.part")] == ["young.part"]


def test_a_folder_that_cannot_be_made_costs_time_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = Kept(tmp_path / "file" / "references", []).tensors("logits", [], Counted(), believe)
    assert torch.equal(found["x"], torch.ones(4, 2))


def test_two_runs_at_once_always_find_whole_files(tmp_path: Path) -> None:
    seen: list[Tensor] = []

    def run() -> None:
        for _ in range(20):
            mine = Kept(tmp_path, [])
            seen.append(mine.tensors("logits", [], Counted(), believe)["x"])
            for path in files(tmp_path):
                with contextlib.suppress(FileNotFoundError):  # the other run has just thrown it away
                    assert load(path.read_bytes())["x"].shape == (4, 2)
            mine.tensors("logits", [], Counted(), disbelieve)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 40
    assert all(torch.equal(value, torch.ones(4, 2)) for value in seen)
    assert list(tmp_path.glob("*.part")) == []


# ---- What outputs depend on


def test_another_site_config_or_switch_is_another_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    session = LlamaSession()
    sites = OP.find_sites(session.model)
    seen = [surroundings(session.model, sites), surroundings(session.model, sites[1:])]
    model: Any = session.model
    model.config.rms_norm_eps = 1e-4
    seen.append(surroundings(session.model, sites))
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    seen.append(surroundings(session.model, sites))
    keys = {Kept(None, identity).key("logits", []) for identity in seen}
    assert len(keys) == len(seen)


# ---- The examiner


@pytest.fixture(scope="module")
def session() -> LlamaSession:
    return LlamaSession()


def examined(session: LlamaSession, folder: Path, *, seed: int = 1) -> tuple[Kept, Any]:
    """A run of the clean side: what became of its answers, and the logits it compares with."""
    kept = Kept(folder, ["model"])
    examiner = Examiner(session, OP, OP.find_sites(session.model))
    examiner.reference_logits(tokens=TOKENS, seed=seed, kept=kept)
    examiner.reference_step(seed=seed, kept=kept)
    return kept, (examiner._logits, examiner._steps)


def answers_in(folder: Path) -> list[Path]:
    return [path for path in files(folder) if not path.name.startswith("envelope")]


@pytest.mark.parametrize(
    "poison",
    [{}, {"measures": torch.zeros(2, 3, 6)}, {"measures": torch.zeros(1)}],
    ids=["nothing", "other numbers", "another form"],
)
def test_a_poisoned_envelope_is_measured_again(
    session: LlamaSession, tmp_path: Path, poison: dict[str, Tensor]
) -> None:
    examined(session, tmp_path)
    (path,) = set(files(tmp_path)) - set(answers_in(tmp_path))
    save_file(poison, path)
    assert examined(session, tmp_path)[0].rejected == ["envelope"]


def same(left: Any, right: Any) -> bool:
    return all(torch.equal(a, b) for one, two in zip(left, right, strict=True) for a, b in zip(one, two, strict=True))


def test_the_second_run_has_the_first_ones_answers_and_says_how_many_it_computed_again(
    session: LlamaSession, tmp_path: Path
) -> None:
    first, theirs = examined(session, tmp_path)
    second, mine = examined(session, tmp_path)
    assert (first.kept, second.kept) == ([], ["logits", "envelope", "steps"])
    assert (second.rows, second.rows_again) == (16 + 2 + 8, 1 + 2 + 1)
    assert same(theirs, mine)


def test_the_same_seed_gives_the_same_answers_without_any_cache(session: LlamaSession, tmp_path: Path) -> None:
    _, one = examined(session, tmp_path / "a", seed=5)
    _, two = examined(session, tmp_path / "b", seed=5)
    _, other = examined(session, tmp_path / "a", seed=6)
    assert same(one, two)
    assert not same(one, other)


@pytest.mark.parametrize(
    "change",
    [
        lambda reference, baseline: (reference * (1 + 1e-12), baseline),
        lambda reference, baseline: (reference, baseline + 1e-3),
        lambda reference, baseline: (baseline.double(), baseline),
        lambda reference, baseline: (reference.float(), baseline),
        lambda reference, baseline: (reference[:-1], baseline[:-1]),
        lambda reference, baseline: (reference.reshape(-1, 1), baseline),
        lambda reference, baseline: (reference.index_fill(1, torch.tensor([0]), float("nan")), baseline),
    ],
    ids=["reference", "baseline", "no better", "less exact", "a row less", "another form", "nan"],
)
def test_poisoned_answers_are_found_and_thrown_away(
    session: LlamaSession, tmp_path: Path, change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
) -> None:
    _, right = examined(session, tmp_path)
    for path in answers_in(tmp_path):
        known = load(path.read_bytes())
        reference, baseline = change(known["reference"], known["baseline"])
        save_file({"reference": reference.contiguous(), "baseline": baseline.contiguous()}, path)
    found, answers = examined(session, tmp_path)
    assert (found.kept, found.rejected) == (["envelope"], ["logits", "steps"])
    assert same(right, answers)
    assert examined(session, tmp_path)[0].kept == ["logits", "envelope", "steps"], "and the right ones are kept instead"


def test_a_single_infinite_row_is_found_wherever_it_is(session: LlamaSession, tmp_path: Path) -> None:
    """Every comparison with it would be false, and so any kernel right."""
    examined(session, tmp_path)
    for path in answers_in(tmp_path):
        known = load(path.read_bytes())
        known["reference"][-1] = float("inf")
        save_file(known, path)
    assert examined(session, tmp_path)[0].rejected == ["logits", "steps"]
