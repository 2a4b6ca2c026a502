"""Answers at late positions, behind padding and over a cache: what the step's own calls would not show."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from e2e import registry
from e2e.configuration import load_workload
from e2e.judge import judge
from e2e.numerics.conditions import judged
from e2e.numerics.examine import Examiner
from e2e.numerics.exercise import model_logits
from e2e.numerics.kept import Kept
from e2e.patch import Standing
from e2e.schema.evidence import ConditionCheck, ModelCheck
from e2e.schema.words import Outcome, ReasonCode, Stage
from e2e.schema.workload import cells_of
from e2e.scout import Replica
from tests import fakes, tiny
from tests.sessions import LlamaSession

torch.set_num_threads(1)

OP = registry.load("ops", "rms_norm")
TOKENS = 64
LONG = 4096


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Any:
    file = tiny.write_workload(tmp_path_factory.mktemp("workload"))
    tiny.llama(max_position_embeddings=LONG).save_pretrained(file.parent / "model")
    loaded = load_workload(str(file), [])
    (cell,) = cells_of(loaded.workload)
    return registry.load("tasks", "causal-lm").open(loaded.workload, cell, root=file.parent, device="cpu", seed=3)


def checked(session: Any, kernel: Standing, folder: Path) -> ModelCheck:
    examiner = Examiner(session, OP, OP.find_sites(session.model))
    examiner.reference_logits(tokens=TOKENS, seed=1, kept=Kept(None, []))
    model_logits(session, [kernel], calls=session.exam(TOKENS, 1), path=folder / "logits", seed=1)
    return ModelCheck.model_validate(examiner.compare_logits(path=folder / "logits", ratio=2.0))


def patched(session: Any, change: Callable[[Any], None]) -> Standing:
    """The model with something else in one of its modules."""
    model = copy.deepcopy(session.model)
    change(model)
    return Standing(OP, [], Replica(model, ()))


def test_the_call_is_late_padded_and_comes_one_by_one_at_its_end(session: Any) -> None:
    ((name, (ids, mask, places)),) = session.conditions(1)
    assert name == "positions from 4064, left padding, a cache"
    assert ids.shape == mask.shape == places.shape == (2, 32)
    assert mask.sum(1).tolist() == [32, 22]
    assert places[0].tolist() == list(range(4064, LONG)), "the last that the model has"
    assert places[1, 10:].tolist() == list(range(4064, 4086))


def test_a_padded_row_is_answered_as_it_is_by_itself(session: Any) -> None:
    ((_, (ids, mask, places)),) = session.conditions(1)
    with torch.no_grad():
        found = session.answers_under(session.model, ids, mask, places)
        alone = session.model(input_ids=ids[1:, 10:], use_cache=False).logits
    assert not found[1, :10].any()
    torch.testing.assert_close(found[1:, 10:], alone, rtol=1e-3, atol=1e-4)


def test_a_right_kernel_passes_under_all_conditions(session: Any, tmp_path: Path) -> None:
    kernel = Standing(OP, OP.find_sites(session.model), OP.alternatives["F.rms_norm"])
    (found,) = checked(session, kernel, tmp_path).conditions
    assert (found.status, found.tokens) == ("passed", 32 + 22)
    assert found.error_candidate is not None
    assert found.error_candidate < 2 * found.error_baseline


def test_positions_rounded_to_bfloat16_are_wrong_at_late_positions(session: Any, tmp_path: Path) -> None:
    """It has eight bits: early positions come out exactly, late ones are all the same."""

    class Rounded(nn.Module):
        def __init__(self, own: nn.Module) -> None:
            super().__init__()
            self.own = own

        def forward(self, x: Tensor, position_ids: Tensor) -> Any:
            return self.own(x, position_ids.bfloat16())

    def change(model: Any) -> None:
        model.model.rotary_emb = Rounded(model.model.rotary_emb)

    check = checked(session, patched(session, change), tmp_path)
    assert check.status == "passed", "the exam's positions are early"
    (found,) = check.conditions
    assert (found.status, found.code) == ("wrong", ReasonCode.MODEL_ERROR_EXCEEDED)
    verdict = judge(fakes.stopped_at(Stage.CHECK, model_check=check), fakes.policy())
    assert verdict.outcome is Outcome.INCORRECT
    assert verdict.numerics.outcome is Outcome.INCORRECT
    assert verdict.reasons[0].where.position == f"row {found.first[0]}, token {found.first[1]}" if found.first else ""


def test_a_kernel_that_ignores_padding_is_wrong_where_there_is_some(session: Any, tmp_path: Path) -> None:
    def change(model: Any) -> None:
        forward = model.forward
        model.forward = lambda *args, attention_mask=None, **named: forward(*args, **named)

    check = checked(session, patched(session, change), tmp_path)
    (found,) = check.conditions
    assert (check.status, found.status) == ("passed", "wrong")
    assert found.first == [1, 10], "the first token behind the padding"


def test_a_kernel_that_refuses_such_calls_aloud_is_not_wrong(session: Any, tmp_path: Path) -> None:
    def refuses(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        if x.shape[:2] not in ((1, 32), (4, 32)):
            raise ValueError("one row of 32 only")
        found: Tensor = OP.alternatives["F.rms_norm"](x, weight, eps)
        return found

    kernel = Standing(OP, OP.find_sites(session.model), refuses)
    check = checked(session, kernel, tmp_path)
    assert (check.status, check.conditions[0].status) == ("passed", "declined")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda y: y[:1], ReasonCode.WRONG_OUTPUT_LAYOUT),
        (lambda y: y.double(), ReasonCode.WRONG_OUTPUT_LAYOUT),
        (lambda y: y.masked_fill(torch.arange(3)[:, None] == 2, torch.nan), ReasonCode.NONFINITE_OUTPUT),
        (lambda y: y * 1.01, ReasonCode.MODEL_ERROR_EXCEEDED),
        (lambda y: y, None),
    ],
    ids=["rows", "dtype", "nan", "a hundredth more", "its own"],
)
def test_answers_under_conditions_are_judged_like_the_others(change: Any, code: ReasonCode | None) -> None:
    exact = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    row = ConditionCheck.model_validate(judged("late", change(exact.float()), exact.float(), exact, ratio=2.0))
    assert (row.code, row.tokens) == (code, 6)
    assert row.first == ([0, 2] if code is ReasonCode.NONFINITE_OUTPUT else row.first)


@pytest.mark.parametrize("given", ["an error", "no number"])
def test_what_pytorch_itself_does_not_answer_is_not_asked(given: str, tmp_path: Path) -> None:
    """The second condition keeps its own answers, though the first has none."""

    class Conditioned(LlamaSession):
        def conditions(self, seed: int) -> list[tuple[str, tuple[Tensor, ...]]]:
            return [("impossible", (torch.zeros(1, 4).long(),)), ("possible", self.batch(seed))]

        def answers_under(self, model: Any, ids: Tensor) -> Tensor:
            found = self.answers(model, ids)
            if ids.any():
                return found
            if given == "an error":
                raise RuntimeError("not this")
            return found / 0

    session = Conditioned()
    kernel = Standing(OP, OP.find_sites(session.model), OP.alternatives["F.rms_norm"])
    (found,) = checked(session, kernel, tmp_path).conditions
    assert (found.name, found.status) == ("possible", "passed")


@pytest.mark.parametrize("told", [torch.ones(99, tiny.VOCABULARY), torch.ones(1), torch.full((1, 9), torch.nan)])
def test_a_row_among_others_of_another_form_says_nothing(told: Tensor, tmp_path: Path) -> None:
    session = LlamaSession()
    examiner = Examiner(session, OP, OP.find_sites(session.model))
    examiner.reference_logits(tokens=24, seed=1, kept=Kept(None, []))
    own = torch.cat([session.answers(session.model, *inputs) for inputs in session.exam(24, 1)]).flatten(0, -2)
    save_file({"logits": own, "resplit": told}, tmp_path / "logits")
    assert examiner.compare_logits(path=tmp_path / "logits", ratio=2.0)["split_candidate"] is None


def test_a_task_that_knows_of_no_conditions_has_none(tmp_path: Path) -> None:
    session = LlamaSession()
    kernel = Standing(OP, OP.find_sites(session.model), OP.alternatives["F.rms_norm"])
    assert checked(session, kernel, tmp_path).conditions == []
